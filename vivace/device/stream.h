// Stream, Event and pinned host memory: owners of driver handles.
#pragma once
#include <cstddef>
#include <utility>

#include "vivace/device/device.h"

namespace vivace::device {

/// Ordering, and if asked for timing, between streams. Move-only.
class Event {
 public:
  Event() = default;
  /// Events without timing are cheaper to record and to wait for.
  static Result<Event> create(const Device& device, bool timing = false);
  Event(Event&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  Event& operator=(Event&& o) noexcept { std::swap(handle_, o.handle_); return *this; }
  ~Event();

  cu::Event handle() const { return handle_; }
  Status record(cu::Stream stream);
  /// True if the work recorded so far is done (or nothing was recorded); never blocks.
  Result<bool> done() const;
  Status synchronize() const;
  /// Microseconds between two recorded and finished events created with timing.
  static Result<double> elapsed_us(const Event& start, const Event& end);

 private:
  cu::Event handle_ = nullptr;
};

/// An ordered queue of device work, never synchronised with the legacy default stream. Move-only.
class Stream {
 public:
  Stream() = default;
  /// `level`: 0 is the least urgent, device.priority_levels() - 1 the most.
  static Result<Stream> create(const Device& device, int level = 0);
  /// Uses a handle that others own (a framework's stream); it is not destroyed here.
  static Stream borrow(const Device& device, cu::Stream handle);
  /// Takes over a handle created elsewhere. `partition`: multiprocessors of its green context, 0 without one.
  static Stream adopt(const Device& device, cu::Stream handle, int partition = 0);
  Stream(Stream&& o) noexcept
      : device_(o.device_),
        handle_(std::exchange(o.handle_, nullptr)),
        partition_(o.partition_),
        owned_(o.owned_) {}
  Stream& operator=(Stream&& o) noexcept;
  ~Stream();

  cu::Stream handle() const { return handle_; }
  const Device& device() const { return *device_; }
  int partition() const { return partition_; }  // multiprocessors that its work stays on; 0: the device's
  Status wait(const Event& event);
  Status synchronize() const;
  Result<bool> idle() const;
  /// CUDA's own number, smaller is more urgent.
  Result<int> priority() const;
  /// Any two addresses that the context can reach; the driver finds the direction.
  Status copy(void* to, const void* from, size_t bytes);
  Status fill(void* to, unsigned char value, size_t bytes);
  /// Runs fn(data) on a driver thread when the stream gets there. fn must not call CUDA or block.
  Status call(cu::HostFn fn, void* data);

 private:
  const Device* device_ = nullptr;
  cu::Stream handle_ = nullptr;
  int partition_ = 0;
  bool owned_ = false;
};

/// Memory operations of streams: waits and writes of 32-bit words between kernels, which hold no SM and which captures
/// record. Unsupported where a driver has none; then also the calls below.
Status check_memory_operations();
inline constexpr unsigned kMostWaits = 32;
/// What follows on the stream runs once all of the words, at most kMostWaits, are 0. No check, no allocation.
Status wait_until_zero(cu::Stream stream, const cu::DevicePtr* words, unsigned count);
Status write_word(cu::Stream stream, cu::DevicePtr word, uint32_t value);

/// Page-locked host memory: what asynchronous copies need to overlap. Move-only.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> create(const Device& device, size_t bytes);
  PinnedBuffer(PinnedBuffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~PinnedBuffer();
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace vivace::device
