#include "vivace/device/cuda_memory.h"

#include "vivace/device/host_blocks.h"

namespace vivace::device {
namespace {

cu::Event event_of(MemoryBackend::Event e) { return reinterpret_cast<cu::Event>(e); }
cu::Stream stream_of(StreamId s) { return reinterpret_cast<cu::Stream>(s); }

}  // namespace

Result<std::unique_ptr<CudaMemory>> CudaMemory::create(const Device& device) {
  if (!device.info().virtual_memory)
    return Status(Code::kUnsupported,
                  device.info().name + " has no virtual memory API, which the pool's stable addresses need");
  VV_ASSIGN(Stream stream, Stream::create(device));
  std::unique_ptr<CudaMemory> m(new CudaMemory(device, std::move(stream)));
  m->prop_.location.id = device.handle();
  VV_CU(cuMemGetAllocationGranularity, &m->granularity_, &m->prop_, cu::kGranularityRecommended);
  return m;
}

Result<uint64_t> CudaMemory::reserve(size_t bytes) {
  VV_TRY(device_.bind());
  cu::DevicePtr address = 0;
  VV_CU(cuMemAddressReserve, &address, bytes, size_t{0}, cu::DevicePtr{0}, 0ull);
  return static_cast<uint64_t>(address);
}

void CudaMemory::unreserve(uint64_t address, size_t bytes) { VV_CU_IGNORE(cuMemAddressFree, address, bytes); }

Status CudaMemory::map(uint64_t address, size_t bytes) {
  VV_TRY(device_.bind());
  cu::MemHandle handle = 0;
  VV_CU(cuMemCreate, &handle, bytes, &prop_, 0ull);
  Status s = VV_CU_STATUS(cuMemMap, address, bytes, size_t{0}, handle, 0ull);
  if (!s.ok()) {
    VV_CU_IGNORE(cuMemRelease, handle);
    return s;
  }
  cu::MemAccessDesc access;
  access.location.id = device_.handle();
  s = VV_CU_STATUS(cuMemSetAccess, address, bytes, &access, size_t{1});
  if (!s.ok()) {
    VV_CU_IGNORE(cuMemUnmap, address, bytes);
    VV_CU_IGNORE(cuMemRelease, handle);
    return s;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  handles_[address] = handle;
  return Status();
}

Status CudaMemory::unmap(uint64_t address, size_t bytes) {
  VV_TRY(device_.bind());
  VV_CU(cuMemUnmap, address, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = handles_.find(address);
  if (it == handles_.end())
    return Status(Code::kInternal,
                  strf("unmap of 0x%llx, which was not mapped here", static_cast<unsigned long long>(address)));
  const cu::MemHandle handle = it->second;
  handles_.erase(it);
  VV_CU(cuMemRelease, handle);
  return Status();
}

Result<void*> CudaMemory::host_allocate(size_t bytes) {
  return allocate_pinned(device_, bytes);
}

void CudaMemory::host_free(void* data) {
  free_pinned(data);
}

Status CudaMemory::copy_out(void* host, uint64_t address, size_t bytes) {
  VV_TRY(device_.bind());
  VV_TRY(stream_.copy(host, reinterpret_cast<const void*>(address), bytes));
  return stream_.synchronize();
}

Status CudaMemory::copy_in(uint64_t address, const void* host, size_t bytes) {
  VV_TRY(device_.bind());
  VV_TRY(stream_.copy(reinterpret_cast<void*>(address), host, bytes));
  return stream_.synchronize();
}

Result<MemoryBackend::Usage> CudaMemory::usage() {
  VV_ASSIGN(const MemoryInfo m, device_.memory());
  return Usage{m.free_bytes, m.total_bytes};
}

Result<MemoryBackend::Event> CudaMemory::event_create() {
  VV_TRY(device_.bind());
  cu::Event e = nullptr;
  VV_CU(cuEventCreate, &e, cu::kEventDisableTiming);
  return reinterpret_cast<Event>(e);
}

void CudaMemory::event_destroy(Event event) { VV_CU_IGNORE(cuEventDestroy_v2, event_of(event)); }

Status CudaMemory::event_record(Event event, StreamId stream) {
  VV_CU(cuEventRecord, event_of(event), stream_of(stream));
  return Status();
}

Result<bool> CudaMemory::event_done(Event event) {
  const cu::Result r = detail::g_api.cuEventQuery(event_of(event));
  if (r == cu::kSuccess || r == cu::kNotReady) return r == cu::kSuccess;
  const detail::CallArg arg = detail::call_arg(event);
  return detail::call_failed(r, "cuEventQuery", "event", &arg, 1);
}

Status CudaMemory::event_wait(Event event) {
  VV_CU(cuEventSynchronize, event_of(event));
  return Status();
}

Status CudaMemory::stream_wait(StreamId stream, Event event) {
  VV_CU(cuStreamWaitEvent, stream_of(stream), event_of(event), 0u);
  return Status();
}

Result<Pool*> shared_pool(const Device& device) {
  struct Shared {
    std::unique_ptr<CudaMemory> memory;
    std::unique_ptr<Pool> pool;
  };
  static std::mutex mutex;
  static auto* all = new std::map<const Device*, Shared>;
  const std::lock_guard lock(mutex);
  Shared& s = (*all)[&device];
  if (s.pool == nullptr) {
    VV_ASSIGN(s.memory, CudaMemory::create(device));
    VV_ASSIGN(s.pool, Pool::create(*s.memory, {}));
  }
  return s.pool.get();
}

}  // namespace vivace::device
