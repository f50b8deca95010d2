// Cache: compiled binaries on disk, by content, safe with many processes and against other users.
#pragma once
#include <functional>
#include <string>

#include "vivace/jit/binary.h"

namespace vivace::jit {

/// One folder of entries `<key>.vvc`, key = 64 hex digits. An entry appears by rename and is never
/// written in place; writers of one key take turns under a lock that the kernel frees when they die.
/// Nothing that another user could have written is read. Thread-safe.
class Cache {
 public:
  struct Stats {
    int64_t hits = 0, misses = 0, repaired = 0;  // repaired: a bad entry was rebuilt
  };

  Cache() = default;
  Cache(Cache&& o) noexcept;
  Cache& operator=(Cache&& o) noexcept;
  ~Cache();

  /// Opens, and creates if needed with mode 0700, the folder. Its last component may not be a
  /// symbolic link; it must belong to this user and be writable by nobody else.
  /// Errors: FailedPrecondition says which rule is broken and how to repair it; IoError.
  static Result<Cache> open(const std::string& folder);
  /// $VIVACE_CACHE/jit, else $XDG_CACHE_HOME/vivace/jit, else $HOME/.cache/vivace/jit.
  /// Errors: NotFound if none of them is set.
  static Result<std::string> default_folder();

  /// The entry of `key`. Errors: NotFound; CorruptData for one that fails its digest or names another
  /// key; FailedPrecondition for one that is a link or belongs to somebody else.
  Result<Binary> load(const std::string& key) const;
  /// Stores, replacing what is there.
  Status store(const std::string& key, const Binary& binary);
  /// load(), else build() under the key's lock: of many processes that want it, one compiles. A bad
  /// entry is replaced. Another user's entry is an error, not a rebuild: it cannot be replaced safely.
  Result<Binary> get_or_build(const std::string& key, const std::function<Result<Binary>()>& build);

  const std::string& folder() const { return folder_; }
  Stats stats() const;

 private:
  Status write_entry(const std::string& key, const Binary& binary) const;
  void remove_stale_files() const;
  int fd_ = -1;  // the folder
  std::string folder_;
  struct Counters;
  Counters* counters_ = nullptr;
};

/// The steps of a write, in order. A test kills the process at each.
enum class WriteStep { locked, created, half_written, written, synced, renamed, done };
/// Called at each step if set; for tests.
extern void (*g_write_step_hook)(WriteStep step);

}  // namespace vivace::jit
