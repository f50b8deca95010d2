// Compiler: the one door to compiled kernels: memory, then packs, then the disk cache, then NVRTC.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "vivace/jit/cache.h"
#include "vivace/jit/pack.h"

namespace vivace::jit {


struct Progress {
  size_t done = 0, total = 0;
  std::string current;  // name of the source that was just finished
};

enum class Origin : uint8_t { memory, pack, cache, compiled };
const char* name(Origin o);

/// How one source was obtained.
struct Timing {
  std::string source;
  std::string key;
  Origin origin = Origin::memory;
  double milliseconds = 0;
};

struct CompilerOptions {
  std::string cache_folder;         // "" is Cache::default_folder()
  bool use_cache = true;            // false: nothing is read from or written to disk
  std::vector<std::string> packs;   // paths, searched in this order
  int jobs = 0;                     // compiles at a time; 0 is one a core
  /// Called after each source, never from two threads at once. Must not call the Compiler.
  std::function<void(const Progress&)> on_progress;
};

/// Thread-safe.
class Compiler {
 public:
  /// A cache that cannot be opened is gone without, with one warning. Errors: those of Pack::open.
  static Result<std::unique_ptr<Compiler>> create(CompilerOptions options);

  /// One binary a source, in order; what must be compiled is compiled in parallel, equal sources once, many of them in
  /// helper processes where there is a command for them (helper.h).
  /// On an error no further source is begun, and the error of the first failed one is returned.
  Result<std::vector<BinaryPtr>> get(std::span<const Source> sources);
  Result<BinaryPtr> get(const Source& source);

  /// From now on nothing may be compiled: a source that is neither in memory, pack nor cache is
  /// FailedPrecondition. Called when the engine becomes ready in `strict` mode.
  void forbid_compiling() { forbidden_ = true; }
  /// Everything obtained so far, memory hits left out.
  std::vector<Timing> timings() const;

 private:
  explicit Compiler(CompilerOptions options) : options_(std::move(options)) {}
  struct Lane;  // one of the threads of a get()
  Result<BinaryPtr> find(const Source& source, const std::string& key, Lane& lane);
  Result<Binary> build(const Source& source, Lane& lane) const;

  CompilerOptions options_;
  std::vector<Pack> packs_;
  Cache cache_;
  std::atomic<bool> forbidden_{false};
  mutable std::mutex mutex_;  // guards the two below
  std::unordered_map<std::string, BinaryPtr> memory_;
  std::vector<Timing> timings_;
};

}  // namespace vivace::jit
