// Cache: compiled binaries on disk, by content, safe with many processes and against other users.
#pragma once
#include <functional>
#include <string>

#include "vivace/jit/binary.h"
#include "vivace/jit/whole_file.h"

namespace vivace::jit {

/// One folder of entries `<key>.vvc`, key = 64 hex digits. An entry appears by rename and is never
/// written in place; writers of one key take turns under a lock that the kernel frees when they die.
/// Nothing that another user could have written is read. Thread-safe.
class Cache {
 public:
  struct Stats {
    int64_t hits = 0, misses = 0, repaired = 0;  // repaired: a bad entry was rebuilt
    int64_t unkept = 0;  // built and not stored: the disk refused it, or another user's entry has its name
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
  /// entry is replaced. What cannot be locked, read or stored (a full or read-only disk, another user's entry) is built
  /// and used all the same, with one warning a folder. Errors: those of build() alone.
  Result<Binary> get_or_build(const std::string& key, const std::function<Result<Binary>()>& build);

  const std::string& folder() const { return folder_; }
  Stats stats() const;

 private:
  Status write_entry(const std::string& key, const Binary& binary) const;
  void remove_stale_files() const;
  void remove_if_stale(const char* name) const;
  int fd_ = -1;  // the folder
  std::string folder_;
  struct Counters;
  Counters* counters_ = nullptr;
};

/// Says on standard error, once a folder and process, that kernels are compiled without a cache, and why.
void warn_no_cache(const std::string& folder, const Status& why);

}  // namespace vivace::jit
