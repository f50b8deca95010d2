#include "vivace/device/cuda_transfer.h"

namespace vivace::device {
namespace {

cu::Event event_of(CopyBackend::Mark m) { return reinterpret_cast<cu::Event>(m); }

}  // namespace

Result<std::unique_ptr<CudaCopies>> CudaCopies::create(const Device& device, int level) {
  std::unique_ptr<CudaCopies> c(new CudaCopies(device));
  for (Stream& lane : c->lanes_) {
    VV_ASSIGN(lane, Stream::create(device, level));
  }
  return c;
}

Status CudaCopies::copy(Direction lane, void* to, const void* from, size_t bytes) {
  return lanes_[static_cast<size_t>(lane)].copy(to, from, bytes);
}

Result<CopyBackend::Mark> CudaCopies::mark_create() {
  VV_TRY(device_.bind());
  cu::Event e = nullptr;
  // Blocking: a thread that waits for a chunk sleeps instead of spinning on a core.
  VV_CU(cuEventCreate, &e, cu::kEventDisableTiming | cu::kEventBlockingSync);
  return reinterpret_cast<Mark>(e);
}

void CudaCopies::mark_destroy(Mark mark) { VV_CU_IGNORE(cuEventDestroy_v2, event_of(mark)); }

Status CudaCopies::mark_set(Direction lane, Mark mark) {
  VV_CU(cuEventRecord, event_of(mark), lanes_[static_cast<size_t>(lane)].handle());
  return Status();
}

Status CudaCopies::mark_wait(Mark mark) {
  VV_CU(cuEventSynchronize, event_of(mark));
  return Status();
}

Result<void*> CudaCopies::host_allocate(size_t bytes) {
  VV_TRY(device_.bind());
  void* p = nullptr;
  VV_CU(cuMemHostAlloc, &p, bytes, cu::kHostAllocPortable);
  return p;
}

void CudaCopies::host_free(void* data) { VV_CU_IGNORE(cuMemFreeHost, data); }

}  // namespace vivace::device
