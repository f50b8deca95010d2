// HostBlocks: page-locked host memory. The driver takes it back only when every stream has ended, so while somebody has
// gates what is freed is kept for whoever wants such memory next.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

#include "vivace/base/status.h"
#include "vivace/device/device.h"

namespace vivace::device {

/// Thread-safe.
class HostBlocks {
 public:
  /// How memory is got and given back: the driver's calls, or a test's.
  using Get = std::function<Result<void*>(size_t)>;
  using Give = std::function<void(void*)>;
  HostBlocks(Get get, Give give) : get_(std::move(get)), give_(std::move(give)) {}
  HostBlocks(const HostBlocks&) = delete;

  /// Contents are anybody's former ones. Errors: those of `get`; OutOfMemory says how much is kept.
  Result<void*> allocate(size_t bytes);
  /// No work of a device uses it any more. Given back at once, or, while gates are alive, kept until the last has gone.
  void free(void* data);
  int64_t kept() const;  // bytes

 private:
  void give_back();

  const Get get_;
  const Give give_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;  // of all
  std::multimap<size_t, void*> kept_;
  int64_t kept_bytes_ = 0;
  bool put_off_ = false;  // give_back() is to come
};

/// This process's, for all of its devices. `device` is the caller's; it is bound here.
Result<void*> allocate_pinned(const Device& device, size_t bytes);
void free_pinned(void* data);

}  // namespace vivace::device
