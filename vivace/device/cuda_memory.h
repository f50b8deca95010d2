// CudaMemory: the pool's backend on a GPU, by the virtual memory API.
#pragma once
#include <map>
#include <mutex>

#include "vivace/device/memory.h"
#include "vivace/device/stream.h"

namespace vivace::device {

class CudaMemory : public MemoryBackend {
 public:
  /// Errors: Unsupported if the device has no virtual memory API.
  static Result<std::unique_ptr<CudaMemory>> create(const Device& device);

  size_t granularity() const override { return granularity_; }
  Result<uint64_t> reserve(size_t bytes) override;
  void unreserve(uint64_t address, size_t bytes) override;
  Status map(uint64_t address, size_t bytes) override;
  Status unmap(uint64_t address, size_t bytes) override;
  Result<void*> host_allocate(size_t bytes) override;
  void host_free(void* data) override;
  Status copy_out(void* host, uint64_t address, size_t bytes) override;
  Status copy_in(uint64_t address, const void* host, size_t bytes) override;
  Result<Usage> usage() override;
  Result<Event> event_create() override;
  void event_destroy(Event event) override;
  Status event_record(Event event, StreamId stream) override;
  Result<bool> event_done(Event event) override;
  Status event_wait(Event event) override;
  Status stream_wait(StreamId stream, Event event) override;

 private:
  CudaMemory(const Device& device, Stream stream) : device_(device), stream_(std::move(stream)) {}
  const Device& device_;
  Stream stream_;  // of the copies to and from the host
  cu::MemAllocationProp prop_;
  size_t granularity_ = 0;
  std::mutex mutex_;
  std::map<uint64_t, cu::MemHandle> handles_;  // of each map()
};

/// The pool of a device that everything in this process shares; made at the first call, never torn down,
/// for buffers may die after static destructors. Errors: those of CudaMemory::create and Pool::create.
Result<Pool*> shared_pool(const Device& device);

}  // namespace vivace::device
