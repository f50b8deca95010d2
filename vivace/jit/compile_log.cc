// Reading NVRTC and ptxas logs.
#include <cstdio>
#include <sstream>

#include "vivace/jit/nvrtc.h"

namespace vivace::jit {
namespace {

bool is_error(const std::string& line) {
  return line.find(": error:") != std::string::npos || line.find(": error #") != std::string::npos ||
         line.find("catastrophic error:") != std::string::npos || line.find("; error ") != std::string::npos ||
         line.find(": internal error") != std::string::npos || line.rfind("nvrtc: error", 0) == 0 ||
         line.rfind("ptxas fatal", 0) == 0;
}

std::vector<std::string> lines_of(const std::string& log) {
  std::vector<std::string> lines;
  std::istringstream in(log);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::string first_error(const std::string& log) {
  const std::vector<std::string> lines = lines_of(log);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!is_error(lines[i])) continue;
    // The compiler prints the source line, a caret and the instantiations below; a blank line ends them.
    std::string text = lines[i];
    for (size_t k = i + 1; k < lines.size() && k < i + 6 && !lines[k].empty() && lines[k][0] == ' '; ++k)
      text += "\n" + lines[k];
    return text;
  }
  return "";
}

std::vector<Resources> parse_resources(const std::string& log) {
  std::vector<Resources> found;
  for (const std::string& line : lines_of(log)) {
    const size_t entry = line.find("Compiling entry function '");
    if (entry != std::string::npos) {
      const size_t begin = entry + 26, end = line.find('\'', begin);
      if (end != std::string::npos) found.emplace_back().symbol = line.substr(begin, end - begin);
      continue;
    }
    if (found.empty()) continue;
    Resources& r = found.back();
    int stack = 0, stores = 0, loads = 0;
    const size_t dot = line.find_first_of("0123456789");
    if (line.find("bytes stack frame") != std::string::npos && dot != std::string::npos &&
        std::sscanf(line.c_str() + dot, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &stack,
                    &stores, &loads) == 3) {
      r.stack_bytes = stack;
      r.spill_stores = stores;
      r.spill_loads = loads;
    }
    if (const size_t used = line.find("Used "); used != std::string::npos) {
      std::sscanf(line.c_str() + used, "Used %d registers", &r.registers);
      for (size_t at = line.find(", "); at != std::string::npos; at = line.find(", ", at + 2)) {
        int bytes = 0, taken = 0;
        if (std::sscanf(line.c_str() + at, ", %d bytes smem%n", &bytes, &taken) == 1 && taken > 0)
          r.static_smem = bytes;
      }
    }
  }
  return found;
}

}  // namespace vivace::jit
