// HostMemory: a MemoryBackend of ordinary memory with a fixed size, for tests and machines without a
// GPU. Unmapped addresses fault, as on a device.
#pragma once
#include <atomic>
#include <map>
#include <mutex>

#include "vivace/device/memory_backend.h"

namespace vivace::device {

class HostMemory : public MemoryBackend {
 public:
  explicit HostMemory(int64_t total_bytes, size_t granularity = 64 * 1024)
      : total_(total_bytes), granularity_(granularity) {}
  ~HostMemory() override;

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

  // What a test controls and observes. Streams here run nothing: work is done when finish() says so.
  void finish(StreamId stream);                  // all work recorded so far on the stream is done
  void take_outside(int64_t bytes) { outside_ += bytes; }  // memory that somebody else uses
  void fail_map_after(int64_t calls) { fail_map_ = calls; }      // -1: never; 0: the next one, once
  void fail_host_after(int64_t calls) { fail_host_ = calls; }
  int64_t live_events() const;
  int64_t live_host_blocks() const { return host_blocks_; }
  int64_t mapped() const { return mapped_; }
  int64_t stream_waits() const { return stream_waits_; }

 private:
  struct State {
    StreamId stream = 0;
    uint64_t position = 0;  // in its stream's order; done when the stream has finished that far
  };
  mutable std::mutex mutex_;
  int64_t total_;
  size_t granularity_;
  std::atomic<int64_t> outside_{0}, mapped_{0}, host_blocks_{0}, stream_waits_{0}, fail_map_{-1}, fail_host_{-1};
  std::map<uint64_t, size_t> maps_;
  std::map<Event, State> events_;
  std::map<StreamId, uint64_t> recorded_, finished_;
  Event next_event_ = 1;
};

}  // namespace vivace::device
