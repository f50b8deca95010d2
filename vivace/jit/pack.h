// Pack: one read-only file with many compiled binaries, so that a driver-only machine needs no NVRTC.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vivace/jit/binary.h"

namespace vivace::jit {

/// A mapped pack. Its index is verified when it is opened, each binary when it is found. Copies share
/// the mapping. Thread-safe. The file must not be changed in place while it is open: replace it by rename.
class Pack {
 public:
  /// Errors: NotFound, IoError, CorruptData names the file and what is wrong with it.
  static Result<Pack> open(const std::string& path);
  /// Errors: NotFound if the pack has no such key, CorruptData if the binary fails its digest.
  Result<Binary> find(const std::string& key) const;
  std::vector<std::string> keys() const;  // sorted
  const std::string& path() const;

 private:
  struct Rep;
  std::shared_ptr<const Rep> rep_;
};

/// Writes a pack (temporary file, then rename). Equal inputs give equal bytes, in any order.
/// Errors: InvalidArgument for a malformed or repeated key.
Status write_pack(const std::string& path, std::span<const std::pair<std::string, BinaryPtr>> binaries);

}  // namespace vivace::jit
