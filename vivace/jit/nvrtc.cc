#include "vivace/jit/nvrtc.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "vivace/base/check.h"
#include "vivace/jit/embedded.h"

namespace vivace::jit {
namespace {

using Program = struct _nvrtcProgram*;
using Return = int;  // nvrtcResult, 0 is success
constexpr Return kCompilation = 6;

#define VV_NVRTC_FUNCTIONS(X)                                                                     \
  X(nvrtcVersion, (int* major, int* minor))                                                       \
  X(nvrtcGetNumSupportedArchs, (int* count))                                                      \
  X(nvrtcGetSupportedArchs, (int* archs))                                                         \
  X(nvrtcCreateProgram, (Program* p, const char* text, const char* name, int headers,             \
                         const char* const* header_texts, const char* const* header_names))       \
  X(nvrtcDestroyProgram, (Program* p))                                                            \
  X(nvrtcAddNameExpression, (Program p, const char* expression))                                  \
  X(nvrtcGetLoweredName, (Program p, const char* expression, const char** symbol))                \
  X(nvrtcCompileProgram, (Program p, int options, const char* const* option))                     \
  X(nvrtcGetCUBINSize, (Program p, size_t* bytes))                                                \
  X(nvrtcGetCUBIN, (Program p, char* cubin))                                                      \
  X(nvrtcGetProgramLogSize, (Program p, size_t* bytes))                                           \
  X(nvrtcGetProgramLog, (Program p, char* log))

struct Nvrtc {
#define VV_NVRTC_DECLARE_(name, params) Return(*name) params = nullptr;
  VV_NVRTC_FUNCTIONS(VV_NVRTC_DECLARE_)
#undef VV_NVRTC_DECLARE_
  const char* (*nvrtcGetErrorString)(Return) = nullptr;
  NvrtcInfo info;
};

std::mutex g_paths_mutex;
std::vector<std::string>& added_paths() {
  static std::vector<std::string> paths;
  return paths;
}

bool exists(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

std::string parent(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string environment(const char* name) {
  const char* v = std::getenv(name);
  return v == nullptr ? "" : v;
}

// The toolkit that the nvcc in PATH belongs to, or "".
std::string toolkit_of_nvcc() {
  std::istringstream path(environment("PATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    if (!folder.empty() && exists(folder + "/nvcc")) return parent(folder);
  return "";
}

// Folders that may hold a toolkit or NVIDIA's Python wheels, in the order of preference.
std::vector<std::string> roots() {
  std::vector<std::string> r;
  {
    const std::lock_guard<std::mutex> lock(g_paths_mutex);
    r = added_paths();
  }
  for (const char* v : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string home = environment(v); !home.empty()) r.push_back(home);
  return r;
}

constexpr const char* kLibraryNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
// Below a root: wheels of CUDA 13 and 12, then a toolkit, then the folder itself.
constexpr const char* kLibraryDirs[] = {"/nvidia/cu13/lib/", "/nvidia/cuda_nvrtc/lib/", "/lib64/", "/lib/", "/"};
constexpr const char* kIncludeDirs[] = {"/nvidia/cu13/include", "/nvidia/cuda_runtime/include", "/include"};

// Opens the first library that loads; `tried` collects what did not.
void* open_library(std::string* tried) {
  const auto open = [&](const std::string& path) -> void* {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) *tried += "\n  " + path;
    return library;
  };
  const auto open_below = [&](const std::string& root) -> void* {
    for (const char* dir : kLibraryDirs)
      for (const char* name : kLibraryNames)
        if (exists(root + dir + name))
          if (void* library = open(root + dir + name)) return library;
    return nullptr;
  };
  if (const std::string wanted = environment("VIVACE_NVRTC"); !wanted.empty()) {
    struct stat s;
    if (stat(wanted.c_str(), &s) == 0 && S_ISDIR(s.st_mode)) return open_below(wanted);
    return open(wanted);  // an explicit choice: nothing else is tried in its place
  }
  for (const std::string& root : roots())
    if (void* library = open_below(root)) return library;
  for (const char* name : kLibraryNames)
    if (void* library = open(name)) return library;
  if (const std::string toolkit = toolkit_of_nvcc(); !toolkit.empty()) return open_below(toolkit);
  return nullptr;
}

std::vector<std::string> find_includes(const std::string& library) {
  const std::string root = parent(parent(library));  // of .../lib/libnvrtc.so
  std::vector<std::string> candidates = {root + "/include", parent(root) + "/cuda_runtime/include"};
  std::vector<std::string> places = roots();
  places.push_back(toolkit_of_nvcc());
  for (const std::string& place : places)
    for (const char* dir : kIncludeDirs)
      if (!place.empty()) candidates.push_back(place + dir);
  for (const std::string& c : candidates)
    if (exists(c + "/cuda_fp16.h")) return {c};  // one set: headers of two toolkits must not mix
  return {};
}

Result<Nvrtc> load() {
  std::string tried;
  void* library = open_library(&tried);
  if (library == nullptr)
    return Status(
        Code::kUnsupported,
        "NVRTC was not found: install the package nvidia-cuda-nvrtc (with nvidia-cuda-runtime and nvidia-cuda-crt for "
        "its "
        "headers), set CUDA_HOME, or set VIVACE_NVRTC to libnvrtc.so; or use a pack that has the kernels. Tried:" +
            tried);
  Nvrtc n;
  std::string missing;
#define VV_NVRTC_RESOLVE_(name, params)                                 \
  n.name = reinterpret_cast<decltype(n.name)>(dlsym(library, #name));   \
  if (n.name == nullptr) missing += " " #name;
  VV_NVRTC_FUNCTIONS(VV_NVRTC_RESOLVE_)
#undef VV_NVRTC_RESOLVE_
  n.nvrtcGetErrorString = reinterpret_cast<decltype(n.nvrtcGetErrorString)>(dlsym(library, "nvrtcGetErrorString"));
  if (!missing.empty() || n.nvrtcGetErrorString == nullptr)
    return Status(Code::kUnsupported, "this NVRTC lacks" + missing + ": install version 12.4 or newer");
  Dl_info where = {};
  if (dladdr(reinterpret_cast<void*>(n.nvrtcVersion), &where) != 0 && where.dli_fname != nullptr) {
    char real[4096];
    n.info.library = realpath(where.dli_fname, real) != nullptr ? real : where.dli_fname;
  }
  int major = 0, minor = 0, count = 0;
  n.nvrtcVersion(&major, &minor);
  n.info.version = strf("%d.%d", major, minor);
  if (n.nvrtcGetNumSupportedArchs(&count) == 0 && count > 0) {
    n.info.archs.resize(static_cast<size_t>(count));
    n.nvrtcGetSupportedArchs(n.info.archs.data());
  }
  n.info.include_dirs = find_includes(n.info.library);
  return n;
}

const Result<Nvrtc>& loaded() {
  static const Result<Nvrtc> n = load();
  return n;
}

// Writes the whole log where the user can read it later; "" if that is not possible.
std::string save_log(const Source& source, const std::string& log) {
  std::string path = environment("TMPDIR");
  path = (path.empty() ? std::string("/tmp") : path) + "/vivace-jit-XXXXXX";
  const int fd = mkstemp(path.data());
  if (fd < 0) return "";
  std::string text = "source: " + source.name + "\narch: " + std::string(name(source.arch)) + "\n\n" + log + "\n\n" +
                     source.text + "\n";
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return written ? path : "";
}

Status compile_failed(const Source& source, const std::string& log) {
  std::string error = first_error(log);
  if (error.empty()) error = log.empty() ? "NVRTC gave no log" : log;
  const std::string path = save_log(source, log);
  const bool no_header = error.find("open source file") != std::string::npos;
  if (no_header && loaded()->info.include_dirs.empty())
    error += "\nno CUDA headers were found: install nvidia-cuda-runtime and nvidia-cuda-crt, or set CUDA_HOME";
  return Status(Code::kCompileError, error +
                                         strf("\nwhile compiling %s for %s with NVRTC %s", source.name.c_str(),
                                              name(source.arch), loaded()->info.version.c_str()) +
                                         (path.empty() ? "" : "; full log and source: " + path));
}

// Destroys the program however compile() leaves.
struct ProgramOwner {
  const Nvrtc& n;
  Program p = nullptr;
  ~ProgramOwner() {
    if (p != nullptr) n.nvrtcDestroyProgram(&p);
  }
};

Status check(const Nvrtc& n, Return r, const char* call, const Source& source) {
  if (r == 0) return Status();
  return Status(Code::kCompileError, strf("%s failed for %s: %s", call, source.name.c_str(), n.nvrtcGetErrorString(r)));
}

// Everything but ptxas's figures, which parse_resources() reads.
std::string without_info(const std::string& log) {
  std::string kept;
  std::istringstream in(log);
  for (std::string line; std::getline(in, line);)
    if (line.rfind("ptxas info", 0) != 0 && line.rfind("ptxas         .", 0) != 0 && !line.empty()) kept += line + "\n";
  return kept;
}

}  // namespace

void add_search_path(const std::string& folder) {
  const std::lock_guard<std::mutex> lock(g_paths_mutex);
  added_paths().push_back(folder);
}

std::vector<std::string> search_paths() {
  const std::lock_guard<std::mutex> lock(g_paths_mutex);
  return added_paths();
}

Result<const NvrtcInfo*> nvrtc() {
  if (!loaded().ok()) return loaded().status();
  return &loaded()->info;
}

const char* find_header(const char* wanted) {
  const std::string_view w = wanted;
  const std::span<const Header> all = embedded_headers();
  const auto it =
      std::lower_bound(all.begin(), all.end(), w, [](const Header& h, std::string_view v) { return h.name < v; });
  return it != all.end() && it->name == w ? it->text : nullptr;
}

Result<Binary> compile(const Source& source) {
  if (!loaded().ok()) return loaded().status();
  const Nvrtc& n = *loaded();
  const int capability = static_cast<int>(source.arch);
  if (std::find(n.info.archs.begin(), n.info.archs.end(), capability) == n.info.archs.end())
    return Status(Code::kUnsupported, strf("NVRTC %s cannot compile for %s: install a newer nvidia-cuda-nvrtc",
                                           n.info.version.c_str(), name(source.arch)));

  std::vector<const char*> texts, names;
  for (const Header& h : embedded_headers()) {
    texts.push_back(h.text);
    names.push_back(h.name);
  }
  ProgramOwner program{n};
  VV_TRY(check(n,
               n.nvrtcCreateProgram(&program.p, source.text.c_str(), source.name.c_str(),
                                    static_cast<int>(texts.size()), texts.data(), names.data()),
               "nvrtcCreateProgram", source));
  for (const std::string& e : source.expressions)
    VV_TRY(check(n, n.nvrtcAddNameExpression(program.p, e.c_str()), "nvrtcAddNameExpression", source));

  std::vector<std::string> options = {"--std=c++20", std::string("--gpu-architecture=") + name(source.arch),
                                      "--ptxas-options=-v", "--device-as-default-execution-space"};
  for (const std::string& dir : n.info.include_dirs) options.push_back("--include-path=" + dir);
  options.insert(options.end(), source.flags.begin(), source.flags.end());
  std::vector<const char*> raw;
  for (const std::string& o : options) raw.push_back(o.c_str());
  const Return r = n.nvrtcCompileProgram(program.p, static_cast<int>(raw.size()), raw.data());

  size_t bytes = 0;
  VV_TRY(check(n, n.nvrtcGetProgramLogSize(program.p, &bytes), "nvrtcGetProgramLogSize", source));
  std::string log(bytes, '\0');
  VV_TRY(check(n, n.nvrtcGetProgramLog(program.p, log.data()), "nvrtcGetProgramLog", source));
  while (!log.empty() && log.back() == '\0') log.pop_back();
  if (r == kCompilation) return compile_failed(source, log);
  if (r != 0) return std::move(check(n, r, "nvrtcCompileProgram", source)).with_context(log.empty() ? "no log" : log);

  Binary b;
  VV_TRY(check(n, n.nvrtcGetCUBINSize(program.p, &bytes), "nvrtcGetCUBINSize", source));
  b.cubin.resize(bytes);
  VV_TRY(check(n, n.nvrtcGetCUBIN(program.p, b.cubin.data()), "nvrtcGetCUBIN", source));
  for (const std::string& e : source.expressions) {
    const char* symbol = nullptr;
    VV_TRY(check(n, n.nvrtcGetLoweredName(program.p, e.c_str(), &symbol), "nvrtcGetLoweredName", source));
    b.symbols.emplace_back(e, symbol);
  }
  b.resources = parse_resources(log);
  b.warnings = without_info(log);
  b.arch = name(source.arch);
  b.compiler = "NVRTC " + n.info.version;
  return b;
}

}  // namespace vivace::jit
