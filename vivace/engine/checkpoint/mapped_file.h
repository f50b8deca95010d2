// MappedFile: a read-only mapping of one regular file.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "vivace/base/status.h"
#include "vivace/engine/checkpoint/mapping_guard.h"

namespace vivace::engine {

using Bytes = std::span<const uint8_t>;

/// Move-only. The size is fixed when the file is opened, and no reader looks beyond it.
/// NOTE: replace checkpoints by rename, never in place. Of a file that another process shortens while it is mapped,
/// what has gone reads as zeros and check_in_place() says so (mapping_guard.h); one that it overwrites gives
/// other values, which check_unchanged() and check_in_place() find by size and time.
class MappedFile {
 public:
  /// Follows symbolic links. Errors: NotFound, IoError, InvalidArgument (a directory, pipe or
  /// device).
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  ~MappedFile() { unmap(); }
  MappedFile(MappedFile&& o) noexcept { *this = std::move(o); }
  MappedFile& operator=(MappedFile&& o) noexcept;

  Bytes bytes() const { return {data_, size_}; }  // page-aligned; empty for an empty file
  const std::string& path() const { return path_; }
  /// IoError if the file at path() is no longer the one that was opened (inode, size or time
  /// differ).
  Status check_unchanged() const;
  /// Of a file that is used while it is mapped. IoError if it was cut short, or overwritten in place; one that was
  /// removed or replaced by rename is whole where it is mapped. A system call, no allocation.
  Status check_in_place() const;
  /// Whether reads gave zeros for bytes that have gone.
  bool lost() const { return guard_.lost(); }
  /// Of its bytes those that take place on the disk: holes do not.
  uint64_t stored_bytes() const { return stored_; }

 private:
  void unmap();
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  uint64_t inode_ = 0, device_ = 0, stored_ = 0;
  int64_t modified_ns_ = 0;
  MappingGuard guard_;
};

}  // namespace vivace::engine
