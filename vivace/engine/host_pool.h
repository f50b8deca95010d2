// HostPool: host memory for what goes to a device and comes from it: messages with frames, keys and values that left.
// Copies to and from page-locked memory run at once and by themselves; the driver takes others through a small buffer
// of its own.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "vivace/base/status.h"
#include "vivace/exec/buffer.h"

namespace vivace::engine {

class HostPool;

/// A piece of host memory. It may outlive its pool's model; page-locked ones go back to the pool. Move-only.
class HostBytes {
 public:
  HostBytes() = default;
  HostBytes(HostBytes&& o) noexcept { *this = std::move(o); }
  HostBytes& operator=(HostBytes&& o) noexcept;
  ~HostBytes();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool page_locked() const { return pool_ != nullptr; }
  operator std::span<std::byte>() const { return {data_, size_}; }
  operator std::span<const std::byte>() const { return {data_, size_}; }

 private:
  friend class HostPool;
  std::shared_ptr<HostPool> pool_;  // of page-locked memory
  exec::Buffer buffer_;
  std::unique_ptr<std::byte[]> plain_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Thread-safe. To lock pages costs more than to fill them, so that they are kept for the next piece of about that
/// size.
class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  using Lock = std::function<Result<exec::Buffer>(size_t bytes)>;
  /// `lock` gives page-locked memory that may outlive everything else here; null: there is none. `most`: bytes of it.
  static std::shared_ptr<HostPool> make(Lock lock, size_t most);
  /// An eighth of this machine's memory.
  static size_t share_of_host();

  /// Not zeroed. Page-locked as far as `most` goes, else plain. Errors: OutOfMemory.
  Result<HostBytes> take(size_t bytes);
  struct Stats {
    size_t most = 0, locked = 0, kept = 0;  // bytes: that may be page-locked, that are, of these those that nobody has
  };
  Stats stats() const;

 private:
  friend class HostBytes;
  HostPool(Lock lock, size_t most) : lock_(std::move(lock)), most_(most) {}
  void give_back(exec::Buffer buffer);

  const Lock lock_;
  const size_t most_;
  mutable std::mutex mutex_;
  size_t locked_ = 0;
  std::vector<exec::Buffer> kept_;  // by size
};

}  // namespace vivace::engine
