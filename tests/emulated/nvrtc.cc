// An NVRTC that makes a shared library of a kernel by the C++ compiler: the "cubin" is its path. $VV_EMULATED_CXX is
// the compiler, $VV_EMULATED_ROOT the sources, $VV_EMULATED_OUT where libraries go.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {
struct Program {
  std::string text, path, log;
  std::vector<std::string> wanted, symbols;
};
Program* of(void* p) {
  return static_cast<Program*>(p);
}
std::string env(const char* name) {
  const char* v = std::getenv(name);
  return v == nullptr ? "" : v;
}
}  // namespace

extern "C" {
const char* nvrtcGetErrorString(int) {
  return "emulated";
}
int nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* n) {
  *n = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int* a) {
  *a = 90;
  return 0;
}
int nvrtcCreateProgram(void** p, const char* text, const char*, int, const char* const*, const char* const*) {
  *p = new Program{text, "", "", {}, {}};
  return 0;
}
int nvrtcDestroyProgram(void** p) {
  delete of(*p);
  return 0;
}
int nvrtcAddNameExpression(void* p, const char* e) {
  of(p)->wanted.push_back(e);
  return 0;
}
int nvrtcCompileProgram(void* handle, int, const char* const*) {
  static std::atomic<int> count{0};
  Program& p = *of(handle);
  const std::string base = env("VV_EMULATED_OUT") + "/k" + std::to_string(getpid()) + "_" + std::to_string(count++);
  std::string t =
      p.text +
      "template <class F> struct ArgsOf;\ntemplate <class A> struct ArgsOf<void (*)(A)> { using type = A; };\n";
  for (size_t i = 0; i < p.wanted.size(); ++i) {
    const std::string n = std::to_string(i), f = "(&" + p.wanted[i] + ")";
    const bool barriers = p.wanted[i].rfind("vivace::kernels::map<", 0) != 0;
    p.symbols.push_back("run_" + n);
    t += "using Args_" + n + " = ArgsOf<decltype" + f + ">::type;\n";
    t += "extern \"C\" size_t run_" + n + "_bytes() { return sizeof(Args_" + n + "); }\n";
    t += "extern \"C\" void run_" + n + "(const void* a, const unsigned* g, const unsigned* b) { emulated::run(g, b, " +
         (barriers ? "true" : "false") + ", [&] { " + f + "(*static_cast<const Args_" + n + "*>(a)); }); }\n";
  }
  if (FILE* out = std::fopen((base + ".cc").c_str(), "w")) {
    std::fputs(t.c_str(), out);
    std::fclose(out);
  }
  p.path = base + ".so";
  const std::string run =
      env("VV_EMULATED_CXX") +
      " -std=c++20 -O1 -w -fno-strict-aliasing -ffp-contract=off -fno-math-errno -shared -fPIC -include " +
      env("VV_EMULATED_OUT") + "/threads.h -I " + env("VV_EMULATED_ROOT") + " -o " + p.path + " " + base + ".cc 2> " +
      base + ".log";
  const int failed = std::system(run.c_str());
  if (FILE* in = std::fopen((base + ".log").c_str(), "r")) {
    for (char line[4096]; std::fgets(line, sizeof line, in);) p.log += line;
    std::fclose(in);
  }
  return failed == 0 ? 0 : 6;
}
int nvrtcGetProgramLogSize(void* p, size_t* n) {
  *n = of(p)->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(void* p, char* to) {
  std::strcpy(to, of(p)->log.c_str());
  return 0;
}
int nvrtcGetCUBINSize(void* p, size_t* n) {
  *n = of(p)->path.size() + 1;
  return 0;
}
int nvrtcGetCUBIN(void* p, char* to) {
  std::strcpy(to, of(p)->path.c_str());
  return 0;
}
int nvrtcGetLoweredName(void* p, const char* e, const char** symbol) {
  for (size_t i = 0; i < of(p)->wanted.size(); ++i)
    if (of(p)->wanted[i] == e) *symbol = of(p)->symbols[i].c_str();
  return 0;
}
}
