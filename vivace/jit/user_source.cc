#include "vivace/jit/user_source.h"

#include <cxxabi.h>

#include <cstdlib>

#include "vivace/base/check.h"

namespace vivace::jit {
namespace {

// A kernel's symbol does not tell its types when it is extern "C". The symbol of this template,
// instantiated for the type of the kernel, always does.
constexpr const char* kProbe = "\ntemplate <class> __global__ void vivace_signature_() {}\n";

std::string probe_expression(const std::string& kernel) { return "vivace_signature_<decltype(&" + kernel + ")>"; }

// Splits at commas outside brackets.
std::vector<std::string> split_types(const std::string& list) {
  std::vector<std::string> types;
  int depth = 0;
  std::string current;
  for (char c : list) {
    depth += c == '<' || c == '(' || c == '[';
    depth -= c == '>' || c == ')' || c == ']';
    if (c == ',' && depth == 0) {
      types.push_back(current);
      current.clear();
    } else if (!(c == ' ' && current.empty())) {
      current += c;
    }
  }
  if (!current.empty()) types.push_back(current);
  return types;
}

}  // namespace

Source user_source(const std::string& label, const std::string& text, const std::string& kernel, Arch arch) {
  return {label, text + kProbe, {kernel, probe_expression(kernel)}, {}, arch};
}

Result<std::vector<std::string>> parameter_types(const Binary& binary, const std::string& kernel) {
  VV_ASSIGN(const std::string symbol, binary.symbol(probe_expression(kernel)));
  int status = 0;
  char* raw = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  const std::string text = status == 0 && raw != nullptr ? raw : "";
  std::free(raw);
  // "void vivace_signature_<void (*)(float const*, int)>()"
  const std::string head = "void (*)(";
  const size_t begin = text.find(head), end = text.rfind(")>(");
  if (begin == std::string::npos || end == std::string::npos || end < begin + head.size())
    return Status(Code::kCorruptData, "the signature of " + kernel + " cannot be read from symbol " + symbol);
  return split_types(text.substr(begin + head.size(), end - begin - head.size()));
}

}  // namespace vivace::jit
