// MemoryBackend: the few verbs that the memory pool needs of a device. CUDA has one implementation
// (cuda_memory.h), the host another (host_memory.h), on which the pool's policy is tested.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vivace/base/status.h"

namespace vivace::device {

/// The CUstream's value; on the host any number. 0 is no stream: nothing is in flight. CUDA's legacy
/// default stream is 1 (CU_STREAM_LEGACY) here.
using StreamId = uintptr_t;

class MemoryBackend {
 public:
  struct Usage {
    int64_t free_bytes = 0, total_bytes = 0;  // of the device, all processes together
  };
  using Event = uint64_t;  // never 0

  virtual ~MemoryBackend() = default;
  /// Unit of map(): a power of two.
  virtual size_t granularity() const = 0;
  /// Addresses without memory behind them. `bytes` is a multiple of granularity().
  virtual Result<uint64_t> reserve(size_t bytes) = 0;
  virtual void unreserve(uint64_t address, size_t bytes) = 0;
  /// Puts memory behind reserved addresses. Both are multiples of granularity(): a GPU's driver takes no others.
  /// Errors: OutOfMemory; then nothing has changed.
  virtual Status map(uint64_t address, size_t bytes) = 0;
  /// Takes it away again; a range as it was given to map(). Nothing may use it any more.
  virtual Status unmap(uint64_t address, size_t bytes) = 0;
  /// Page-locked host memory.
  virtual Result<void*> host_allocate(size_t bytes) = 0;
  virtual void host_free(void* data) = 0;
  /// Copies that are finished when they return.
  virtual Status copy_out(void* host, uint64_t address, size_t bytes) = 0;
  virtual Status copy_in(uint64_t address, const void* host, size_t bytes) = 0;
  virtual Result<Usage> usage() = 0;

  virtual Result<Event> event_create() = 0;
  virtual void event_destroy(Event event) = 0;
  virtual Status event_record(Event event, StreamId stream) = 0;
  /// An event that was never recorded is done.
  virtual Result<bool> event_done(Event event) = 0;
  virtual Status event_wait(Event event) = 0;
  virtual Status stream_wait(StreamId stream, Event event) = 0;
};

}  // namespace vivace::device
