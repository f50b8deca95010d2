// Writes kernels/<group>/<op>_launch.h below a folder: an op's kernels for programs that nvcc compiles.
//     launch_headers [--check] FOLDER [op ...]
// An op whose kernels are not declared in the form that others have is left out and named; --check fails then.
// Kernels are `template <..., Policy P> __global__`, and nvcc cannot make the host side of a kernel whose template
// argument is a struct. So the header reads the kernel as a device function and wraps each instance of the op's
// table in a kernel without template arguments.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/jit/embedded.h"
#include "vivace/ops/registry.h"

namespace vivace {
namespace {

/// How a kernel is declared.
struct Declared {
  std::vector<std::string> parameters;  // names of its template parameters
  std::string bounds;                   // arguments of __launch_bounds__
  std::string args;                     // type of its parameter
};

/// Pieces of `list` between commas outside of brackets.
std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> all(1);
  int depth = 0;
  for (const char c : list) {
    depth += (c == '<' || c == '{' || c == '(') - (c == '>' || c == '}' || c == ')');
    if (c == ',' && depth == 0) all.emplace_back();
    else if (c != ' ' || !all.back().empty()) all.back() += c;
  }
  return all;
}

std::map<std::string, Declared> declared_kernels() {
  static const std::regex kernel(R"((?:template <([^\n]*)>\n)?__global__ void __launch_bounds__\(([^\n]*)\)\s+)"
                                R"((\w+)\(const __grid_constant__ (\w+) \w+\))");
  std::map<std::string, Declared> all;
  for (const jit::Header& header : jit::built_in_headers()) {
    const std::string text = header.text;
    for (std::sregex_iterator i(text.begin(), text.end(), kernel), end; i != end; ++i) {
      Declared d{{}, (*i)[2], (*i)[4]};
      for (std::string p : split((*i)[1])) {
        p = p.substr(0, p.find(" ="));
        d.parameters.push_back(p.substr(p.rfind(' ') + 1));
      }
      all.emplace((*i)[3], std::move(d));
    }
  }
  return all;
}

/// The macro that compiles an instance in or out: its first type's.
std::string type_macro(const std::string& expression) {
  static const std::map<std::string, const char*> names = {{"float", "F32"},
                                                           {"vivace::kernels::f16", "F16"},
                                                           {"vivace::kernels::bf16", "BF16"},
                                                           {"vivace::kernels::e4m3", "E4M3"},
                                                           {"vivace::kernels::e5m2", "E5M2"}};
  const size_t open = expression.find('<');
  const auto at = open == std::string::npos
                      ? names.end()
                      : names.find(expression.substr(open + 1, expression.find_first_of(",>", open) - open - 1));
  return at == names.end() ? "OTHER" : at->second;
}

Result<std::string> launch_bounds(const std::string& expression, const Declared& kernel) {
  std::string bounds = kernel.bounds;
  const size_t open = expression.find('<');
  const std::vector<std::string> arguments = open == std::string::npos
                                                 ? std::vector<std::string>()
                                                 : split(expression.substr(open + 1, expression.rfind('>') - open - 1));
  if (arguments.size() > kernel.parameters.size())
    return Status(Code::kInternal, strf("%s has %zu template arguments, its declaration %zu", expression.c_str(),
                                        arguments.size(), kernel.parameters.size()));
  for (size_t i = 0; i < arguments.size(); ++i)
    bounds = std::regex_replace(bounds, std::regex("\\b" + kernel.parameters[i] + "\\b"), "(" + arguments[i] + ")");
  return bounds;
}

Result<std::string> header_of(const ops::OpRow& row, const std::map<std::string, Declared>& kernels) {
  std::map<std::string, std::set<Arch>> instances;  // expression -> chips whose table has it
  const char* source = nullptr;
  for (const Arch arch : kGpuArchs) {
    if (row.spec->min_arch > arch) continue;
    for (const ops::Instance& i : row.instances(arch)) {
      instances[i.expression].insert(arch);
      source = i.header;
    }
  }
  const char* const op = row.spec->name;
  std::string entries, wrappers, args;
  int number = 0;
  for (const auto& [expression, archs] : instances) {
    const std::string prefix = "vivace::kernels::",
                      name = expression.substr(prefix.size(), expression.find('<') - prefix.size());
    const auto kernel = kernels.find(name);
    if (kernel == kernels.end())
      return Status(Code::kInternal, strf("%s: no declaration of kernel %s is in the headers", op, name.c_str()));
    if (args.empty()) args = kernel->second.args;
    if (args != kernel->second.args)
      return Status(Code::kUnsupported, strf("%s: its kernels take different arguments, %s and %s", op, args.c_str(),
                                             kernel->second.args.c_str()));
    VV_ASSIGN(const std::string bounds, launch_bounds(expression, kernel->second));
    std::string chips;
    for (const Arch a : archs)
      chips += strf("%s__CUDA_ARCH__ == %d", chips.empty() ? "" : " || ", 10 * static_cast<int>(a));
    const bool everywhere = archs.size() == std::size(kGpuArchs);
    wrappers += strf(
        "#if VV_LAUNCH_%s\nstatic __global__ void __launch_bounds__(%s) %s_%d(const __grid_constant__ "
        "ops::defs::%s::Args a) {\n%s  %s(a);\n%s}\n#endif\n",
        type_macro(expression).c_str(), bounds.c_str(), op, number, op,
        everywhere ? "" : ("#if " + chips + "\n").c_str(), expression.c_str(), everywhere ? "" : "#endif\n");
    entries += strf("#if VV_LAUNCH_%s\n      {\"%s\", reinterpret_cast<const void*>(&entries::%s_%d)},\n#endif\n",
                    type_macro(expression).c_str(), expression.c_str(), op, number);
    ++number;
  }
  std::string macros;
  for (const char* m : {"F32", "F16", "BF16", "E4M3", "E5M2", "OTHER"})
    macros += strf("#ifndef VV_LAUNCH_%s\n#define VV_LAUNCH_%s 1\n#endif\n", m, m);
  std::string push, pop;
  for (const char* m : {"__global__", "__grid_constant__", "__launch_bounds__"})
    push += strf("#pragma push_macro(\"%s\")\n#undef %s\n", m, m), pop += strf("#pragma pop_macro(\"%s\")\n", m);
  return strf(
      "// Generated from the op table: the kernels of `%s` for programs that nvcc compiles, and vivace::launch::%s() "
      "that\n"
      "// picks and launches one. Include it instead of %s. Define VV_LAUNCH_F32,\n"
      "// VV_LAUNCH_BF16, ... as 0 to leave out the kernels of a type.\n"
      "#pragma once\n#include \"vivace/ops/%s.h\"\n#include \"vivace/ops/direct_launch.h\"\n\n%s\n%s#define __global__ "
      "static __device__ __forceinline__\n#define __grid_constant__\n"
      "#define __launch_bounds__(...)\n#include \"%s\"\n%s\nnamespace vivace::launch {\nnamespace entries {\n%s}  // "
      "namespace entries\n\n"
      "inline std::span<const Entry> %s_entries() {\n  static const Entry rows[] = {\n%s      {nullptr, nullptr},\n  "
      "};\n  return {rows, std::size(rows) - 1};\n}\n\n"
      "/// %s\n/// Ports and attributes by name, checked; tensors in device memory; work goes to `stream`.\n"
      "inline Status %s(std::initializer_list<ops::PortArg> ports, std::initializer_list<ops::AttrArg> attrs, "
      "cudaStream_t stream) {\n"
      "  return direct<ops::defs::%s>(ports, attrs, %s_entries(), stream);\n}\n"
      "/// The same with the kernels' own arguments, unchecked.\ninline Status %s(const ops::defs::%s::Args& args, "
      "cudaStream_t stream) {\n"
      "  return direct<ops::defs::%s>(args, %s_entries(), stream);\n}\n\n}  // namespace vivace::launch\n",
      op, op, source, op, macros.c_str(), push.c_str(), source, pop.c_str(), wrappers.c_str(), op, entries.c_str(),
      row.spec->brief, op, op, op, op, op, op, op);
}

Status run(const std::filesystem::path& folder, const std::set<std::string>& wanted, bool check) {
  const std::map<std::string, Declared> kernels = declared_kernels();
  for (const ops::OpRow* row : ops::table()) {
    if (row->instances == nullptr || row->needs_device || row->instances(Arch::sm90a).empty()) continue;
    if (!wanted.empty() && !wanted.contains(row->spec->name)) continue;
    const Result<std::string> text = header_of(*row, kernels);
    if (!text.ok()) {
      if (check) return text.status();
      std::fprintf(stderr, "launch_headers: no header for %s\n", text.status().message().c_str());
      continue;
    }
    const std::filesystem::path to =
        folder / "vivace" / "kernels" / row->spec->group / strf("%s_launch.h", row->spec->name);
    std::filesystem::create_directories(to.parent_path());
    std::ofstream file(to, std::ios::binary);
    if (!(file << *text).flush()) return Status(Code::kIoError, to.string() + " cannot be written");
  }
  return {};
}

}  // namespace
}  // namespace vivace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string(argv[1]) == "--check";
  if (argc < 2 + check) {
    std::fputs("usage: launch_headers [--check] FOLDER [op ...]\n", stderr);
    return 2;
  }
  const vivace::Status s = vivace::run(argv[1 + check], std::set<std::string>(argv + 2 + check, argv + argc), check);
  if (!s.ok()) std::fprintf(stderr, "launch_headers: %s\n", s.to_string().c_str());
  return s.ok() ? 0 : 1;
}
