// MappedFile: a read-only mapping of one regular file.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "vivace/base/status.h"

namespace vivace::engine {

using Bytes = std::span<const uint8_t>;

/// Move-only. The size is fixed when the file is opened, and no reader looks beyond it.
/// NOTE: a file that another process shortens while it is mapped raises SIGBUS on access; no reader
/// can prevent that. Replace checkpoints by rename, never in place. check_unchanged() finds such a
/// change before the data is used.
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

 private:
  void unmap();
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  uint64_t inode_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace vivace::engine
