#include "vivace/device/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "vivace/base/check.h"

namespace vivace::device {
namespace {

// Counts down to the one call that fails.
bool fails_now(std::atomic<int64_t>* countdown) {
  int64_t v = countdown->load();
  while (v >= 0)
    if (countdown->compare_exchange_weak(v, v - 1)) return v == 0;
  return false;
}

}  // namespace

HostMemory::~HostMemory() {
  for (const auto& [address, bytes] : maps_) munmap(reinterpret_cast<void*>(address), bytes);
}

Result<uint64_t> HostMemory::reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return Status(Code::kOutOfMemory, strf("no %zu bytes of addresses are left", bytes));
  return reinterpret_cast<uint64_t>(p);
}

void HostMemory::unreserve(uint64_t address, size_t bytes) { munmap(reinterpret_cast<void*>(address), bytes); }

Status HostMemory::map(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  VV_CHECK_EQ(kInternal, bytes % granularity_, 0u);
  if (fails_now(&fail_map_) || mapped_ + outside_ + static_cast<int64_t>(bytes) > total_)
    return Status(Code::kOutOfMemory,
                  strf("host device of %lld bytes has no %zu left", static_cast<long long>(total_), bytes));
  if (!maps_.emplace(address, bytes).second) return Status(Code::kInternal, "mapped twice");
  if (mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) != 0)
    return Status(Code::kInternal, "map outside a reserved range");
  mapped_ += static_cast<int64_t>(bytes);
  return Status();
}

Status HostMemory::unmap(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = maps_.find(address);
  if (it == maps_.end() || it->second != bytes)
    return Status(Code::kInternal, "unmap of a range that was not mapped so");
  maps_.erase(it);
  // A fresh mapping at the same place: the old contents are gone, and touching it faults.
  void* p = mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (p == MAP_FAILED) return Status(Code::kInternal, "unmap failed");
  mapped_ -= static_cast<int64_t>(bytes);
  return Status();
}

Result<void*> HostMemory::host_allocate(size_t bytes) {
  void* p = fails_now(&fail_host_) ? nullptr : std::malloc(bytes);
  if (p == nullptr) return Status(Code::kOutOfMemory, strf("no %zu bytes of host memory", bytes));
  ++host_blocks_;
  return p;
}

void HostMemory::host_free(void* data) {
  std::free(data);
  --host_blocks_;
}

Status HostMemory::copy_out(void* host, uint64_t address, size_t bytes) {
  std::memcpy(host, reinterpret_cast<const void*>(address), bytes);
  return Status();
}

Status HostMemory::copy_in(uint64_t address, const void* host, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(address), host, bytes);
  return Status();
}

Result<MemoryBackend::Usage> HostMemory::usage() { return Usage{total_ - mapped_ - outside_, total_}; }

Result<MemoryBackend::Event> HostMemory::event_create() {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_[next_event_] = {};
  return next_event_++;
}

void HostMemory::event_destroy(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.erase(event);
}

Status HostMemory::event_record(Event event, StreamId stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (events_.count(event) == 0) return Status(Code::kInternal, "record of a destroyed event");
  events_[event] = {stream, ++recorded_[stream]};
  return Status();
}

Result<bool> HostMemory::event_done(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = events_.find(event);
  if (it == events_.end()) return Status(Code::kInternal, "query of a destroyed event");
  return it->second.position <= finished_[it->second.stream];
}

// Waiting is what makes the stream finish here: there is no other clock.
Status HostMemory::event_wait(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const State s = events_[event];
  if (finished_[s.stream] < s.position) finished_[s.stream] = s.position;
  return Status();
}

Status HostMemory::stream_wait(StreamId, Event) {
  ++stream_waits_;
  return Status();
}

void HostMemory::finish(StreamId stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  finished_[stream] = recorded_[stream];
}

int64_t HostMemory::live_events() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(events_.size());
}

}  // namespace vivace::device
