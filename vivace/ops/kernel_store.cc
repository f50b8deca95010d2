#include "vivace/ops/kernel_store.h"

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "vivace/base/check.h"

namespace vivace::ops {
namespace {

struct Store {
  std::mutex mutex;  // guards what follows
  std::vector<std::string> packs;
  std::unique_ptr<jit::Compiler> compiler;
  Status failed;  // why there is no compiler; stays
  bool made = false;
  std::mutex progress_mutex;  // taken last
  std::function<void(const jit::Progress&)> progress;
};

Store& store() {
  static Store* s = new Store;  // outlives every static that might launch
  return *s;
}

void report(const jit::Progress& p) {
  Store& s = store();
  const std::lock_guard lock(s.progress_mutex);
  if (s.progress) s.progress(p);
}

/// Sets the progress function for as long as it lives.
struct Reporting {
  explicit Reporting(const std::function<void(const jit::Progress&)>& f) { set(f); }
  ~Reporting() { set(nullptr); }
  static void set(const std::function<void(const jit::Progress&)>& f) {
    const std::lock_guard lock(store().progress_mutex);
    store().progress = f;
  }
};

/// Packs in the folder `packs` beside the library or module that holds this code, by name.
std::vector<std::string> packs_beside_us() {
  Dl_info where = {};
  if (dladdr(reinterpret_cast<const void*>(&compiler), &where) == 0 || where.dli_fname == nullptr) return {};
  const std::string file = where.dli_fname;
  const size_t slash = file.rfind('/');
  const std::string folder = (slash == std::string::npos ? std::string(".") : file.substr(0, slash)) + "/packs";
  std::vector<std::string> found;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return {};
  while (const dirent* entry = readdir(dir))
    if (const std::string name = entry->d_name; name.ends_with(".vvp")) found.push_back(folder + "/" + name);
  closedir(dir);
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Status add_pack(const std::string& path) {
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  if (s.made)
    return Status(Code::kFailedPrecondition,
                  "pack " + path + ": kernels were loaded already; add packs before the first op on a GPU");
  VV_TRY(jit::Pack::open(path).status());
  s.packs.push_back(path);
  return {};
}

Result<jit::Compiler*> compiler() {
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  if (!s.made) {
    jit::CompilerOptions options;
    options.packs = s.packs;
    const char* list = std::getenv("VIVACE_PACKS");
    std::istringstream paths(list == nullptr ? "" : list);
    for (std::string path; std::getline(paths, path, ':');)
      if (!path.empty()) options.packs.push_back(path);
    for (std::string& path : packs_beside_us()) options.packs.push_back(std::move(path));
    options.on_progress = report;
    Result<std::unique_ptr<jit::Compiler>> made = jit::Compiler::create(std::move(options));
    if (made.ok()) s.compiler = std::move(made).value();
    else s.failed = std::move(made).status();
    s.made = true;
  }
  if (s.compiler == nullptr) return s.failed;
  return s.compiler.get();
}

jit::Source source_of(const Instance& instance, Arch arch) {
  return {instance.expression, strf("#include \"%s\"\n", instance.header), {instance.expression}, {}, arch};
}

std::vector<jit::Source> kernel_sources(std::span<const OpRow* const> rows, Arch arch) {
  std::vector<jit::Source> all;
  std::set<std::string> seen;  // two ops may share a kernel
  for (const OpRow* row : rows) {
    if (row->instances == nullptr || row->spec->min_arch > arch) continue;
    for (const Instance& i : row->instances(arch))
      if (seen.insert(i.expression).second) all.push_back(source_of(i, arch));
  }
  return all;
}

Status prewarm(const device::Device& device, std::span<const OpRow* const> rows,
               const std::function<void(const jit::Progress&)>& progress) {
  VV_TRY(device.check_arch());
  VV_ASSIGN(jit::Compiler* const all, compiler());
  const Arch arch = device.info().arch;
  {
    const Reporting reporting(progress);
    VV_TRY(all->get(kernel_sources(rows, arch)).status());
  }
  for (const OpRow* row : rows) {
    if (row->instances == nullptr || row->spec->min_arch > arch) continue;
    for (const Instance& i : row->instances(arch)) VV_TRY(load_kernel(device, i.header, i.expression).status());
  }
  return {};
}

Result<size_t> pack_kernels(const std::string& path, std::span<const OpRow* const> rows, std::span<const Arch> archs,
                            jit::CompilerOptions options) {
  std::vector<jit::Source> sources;
  for (const Arch arch : archs)
    for (jit::Source& s : kernel_sources(rows, arch)) sources.push_back(std::move(s));
  if (sources.empty())
    return Status(Code::kInvalidArgument, "pack " + path + ": no op asked for has kernels for the chips asked for");
  VV_ASSIGN(const std::unique_ptr<jit::Compiler> all, jit::Compiler::create(std::move(options)));
  VV_ASSIGN(const std::vector<jit::BinaryPtr> binaries, all->get(sources));
  std::vector<std::pair<std::string, jit::BinaryPtr>> entries;
  for (size_t i = 0; i < sources.size(); ++i) entries.emplace_back(jit::cache_key(sources[i]), binaries[i]);
  VV_TRY(jit::write_pack(path, entries));
  return entries.size();
}

}  // namespace vivace::ops
