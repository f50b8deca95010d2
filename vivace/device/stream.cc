#include "vivace/device/stream.h"

#include "vivace/device/activity.h"
#include "vivace/device/host_blocks.h"

namespace vivace::device {
namespace {

cu::DevicePtr address(const void* p) { return reinterpret_cast<cu::DevicePtr>(p); }

// "not ready" is an answer, not a failure.
Result<bool> answered(cu::Result r, const char* call, const void* handle) {
  if (r == cu::kSuccess) return true;
  if (r == cu::kNotReady) return false;
  const detail::CallArg arg = detail::call_arg(handle);
  return detail::call_failed(r, call, "handle", &arg, 1);
}

}  // namespace

Result<Event> Event::create(const Device& device, bool timing) {
  VV_TRY(device.bind());
  Event e;
  VV_CU(cuEventCreate, &e.handle_, timing ? 0u : cu::kEventDisableTiming);
  return e;
}

Event::~Event() {
  if (handle_ != nullptr) VV_CU_IGNORE(cuEventDestroy_v2, handle_);
}

Status Event::record(cu::Stream stream) {
  VV_CU(cuEventRecord, handle_, stream);
  return Status();
}

Result<bool> Event::done() const { return answered(detail::g_api.cuEventQuery(handle_), "cuEventQuery", handle_); }

Status Event::synchronize() const {
  VV_CU(cuEventSynchronize, handle_);
  return Status();
}

Result<double> Event::elapsed_us(const Event& start, const Event& end) {
  float milliseconds = 0;
  VV_CU(cuEventElapsedTime, &milliseconds, start.handle_, end.handle_);
  return static_cast<double>(milliseconds) * 1e3;
}

Result<Stream> Stream::create(const Device& device, int level) {
  VV_ASSIGN(const int priority, device.priority(level));
  VV_TRY(device.bind());
  cu::Stream handle = nullptr;
  VV_CU(cuStreamCreateWithPriority, &handle, cu::kStreamNonBlocking, priority);
  return adopt(device, handle);
}

Stream Stream::borrow(const Device& device, cu::Stream handle) {
  Stream s;
  s.device_ = &device;
  s.handle_ = handle;
  return s;
}

Stream Stream::adopt(const Device& device, cu::Stream handle, int partition) {
  Stream s = borrow(device, handle);
  s.partition_ = partition;
  s.owned_ = true;
  return s;
}

Stream& Stream::operator=(Stream&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(handle_, o.handle_);
  std::swap(partition_, o.partition_);
  std::swap(owned_, o.owned_);
  return *this;
}

Stream::~Stream() {
  if (owned_ && handle_ != nullptr) VV_CU_IGNORE(cuStreamDestroy_v2, handle_);
}

Status Stream::wait(const Event& event) {
  count(stream_counts(device_->info().ordinal, handle_).waits);
  VV_CU(cuStreamWaitEvent, handle_, event.handle(), 0u);
  return Status();
}

Status Stream::synchronize() const {
  count(stream_counts(device_->info().ordinal, handle_).host_waits);
  VV_CU(cuStreamSynchronize, handle_);
  return Status();
}

Result<bool> Stream::idle() const { return answered(detail::g_api.cuStreamQuery(handle_), "cuStreamQuery", handle_); }

Result<int> Stream::priority() const {
  int p = 0;
  VV_CU(cuStreamGetPriority, handle_, &p);
  return p;
}

Status Stream::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return Status();
  StreamCounts& counts = stream_counts(device_->info().ordinal, handle_);
  count(counts.copies);
  count(counts.copied_bytes, static_cast<int64_t>(bytes));
  VV_CU(cuMemcpyAsync, address(to), address(from), bytes, handle_);
  return Status();
}

Status Stream::fill(void* to, unsigned char value, size_t bytes) {
  if (bytes == 0) return Status();
  VV_CU(cuMemsetD8Async, address(to), value, bytes, handle_);
  return Status();
}

Status Stream::call(cu::HostFn fn, void* data) {
  VV_CU(cuLaunchHostFunc, handle_, fn, data);
  return Status();
}

Result<PinnedBuffer> PinnedBuffer::create(const Device& device, size_t bytes) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "pinned buffer of 0 bytes");
  PinnedBuffer b;
  VV_ASSIGN(b.data_, allocate_pinned(device, bytes));
  b.bytes_ = bytes;
  return b;
}

PinnedBuffer::~PinnedBuffer() {
  free_pinned(data_);
}

Status check_memory_operations() {
  const cu::Api& api = detail::g_api;
  if (api.cuStreamBatchMemOp_v2 != nullptr && api.cuStreamWriteValue32_v2 != nullptr) return {};
  return Status(Code::kUnsupported, "this driver has no memory operations of streams (cuStreamBatchMemOp_v2)");
}

Status wait_until_zero(cu::Stream stream, const cu::DevicePtr* words, unsigned count) {
  cu::StreamMemOp waits[kMostWaits];
  for (unsigned i = 0; i < count; ++i)
    waits[i] = {.operation = cu::kMemOpWaitValue32, .address = words[i], .value = 0, .flags = cu::kWaitValueEqual};
  return VV_CU_STATUS(cuStreamBatchMemOp_v2, stream, count, waits, 0u);
}

Status write_word(cu::Stream stream, cu::DevicePtr word, uint32_t value) {
  return VV_CU_STATUS(cuStreamWriteValue32_v2, stream, word, value, 0u);
}

}  // namespace vivace::device
