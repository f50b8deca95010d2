#include <atomic>
#include <cstdlib>
#include <cstring>

#include "vivace/array/array.h"
#include "vivace/array/gpu.h"
#include "vivace/base/check.h"
#include "vivace/device/cuda_memory.h"
#include "vivace/device/stream.h"

namespace vivace::array {
namespace {
std::atomic<int64_t> host_limit{0}, host_used{0}, host_peak{0}, host_allocations{0}, host_failures{0};

int64_t room_of(size_t bytes) {
  return static_cast<int64_t>((bytes + 63) / 64 * 64);
}

/// Null where there is no memory, or none within the limit.
void* take_host(int64_t room) {
  const int64_t limit = host_limit.load(), used = host_used.fetch_add(room) + room;
  void* const data = limit == 0 || used <= limit ? std::aligned_alloc(64, static_cast<size_t>(room)) : nullptr;
  if (data == nullptr) {
    host_used -= room, ++host_failures;
    return nullptr;
  }
  ++host_allocations;
  for (int64_t peak = host_peak.load(); peak < used && !host_peak.compare_exchange_weak(peak, used);) {
  }
  return data;
}
}  // namespace

HostMemory host_memory() {
  return {host_limit, host_used, host_peak, host_allocations, host_failures};
}

void reset_host_peak() {
  host_peak = host_used.load();
}

Status set_host_limit(int64_t bytes) {
  if (bytes < 0)
    return Status(Code::kInvalidArgument,
                  strf("a pool's limit is 0 (none) or more bytes, got %lld", static_cast<long long>(bytes)));
  host_limit = bytes;
  return {};
}

Storage::~Storage() {
  if (block != nullptr) {
    // Nobody can be told of a failure here; a lost context has lost the memory too.
    if (foreign && gpu->bind().ok()) (void)gpu->synchronize();
    if (stream != kLegacyStream && gpu->bind().ok())
      (void)device::Stream::borrow(*gpu, reinterpret_cast<cu::Stream>(kLegacyStream)).wait(used);
    (void)pool->free(block, kLegacyStream);
  } else if (device == kHost && owner == nullptr) {
    std::free(data);
    if (data != nullptr) host_used -= room_of(bytes);
  }
}

std::string device_name(int device) {
  return device == kHost ? "cpu" : strf("cuda:%d", device);
}

Result<int> parse_device(const std::string& text) {
  if (text == "cpu") return kHost;
  if (text == "cuda") return 0;
  if (text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
      text.find_first_not_of("0123456789", 5) == std::string::npos)
    return std::stoi(text.substr(5));
  return Status(Code::kInvalidDevice, "array: no device '" + text + "': wanted cpu, cuda or cuda:N");
}

Array borrow(void* data, Elem e, const Shape& shape, int device, bool read_only, std::shared_ptr<void> owner) {
  Array a;
  a.storage = std::make_shared<Storage>();
  a.storage->device = device;
  a.storage->data = data;
  a.storage->read_only = read_only;
  a.storage->owner = std::move(owner);
  a.elem = e, a.shape = shape, a.data = static_cast<char*>(data);
  int64_t stride = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    a.stride[i] = stride;
    stride *= shape.dim[i] > 0 ? shape.dim[i] : 1;
  }
  a.storage->bytes = static_cast<size_t>(a.nbytes());
  return a;
}

Result<Array> empty(Elem e, const Shape& shape, int device) {
  Array a = borrow(nullptr, e, shape, device, false, nullptr);
  Storage& s = *a.storage;
  if (device == kHost) {
    const int64_t room = room_of(s.bytes);
    if (room != 0) s.data = take_host(room);
    if (room != 0 && s.data == nullptr)
      return Status(Code::kOutOfMemory,
                    strf("array: %zu bytes of host memory for %s %s; arrays have %lld, their limit is %lld (0: none)",
                         s.bytes, name(e), to_string(shape).c_str(), static_cast<long long>(host_used.load()),
                         static_cast<long long>(host_limit.load())));
    a.data = static_cast<char*>(s.data);
    return a;
  }
  VV_ASSIGN(s.gpu, device::Device::get(device));
  VV_TRY(s.gpu->bind());
  if (s.bytes == 0) return a;
  VV_ASSIGN(s.pool, device::shared_pool(*s.gpu));
  VV_ASSIGN(s.block, s.pool->allocate({.bytes = s.bytes, .stream = kLegacyStream, .name = "vivace.Array"}));
  s.data = s.block->data();
  a.data = static_cast<char*>(s.data);
  return a;
}

Status check_open(const Array& a, const char* what) {
  return a.storage != nullptr ? Status() : Status(Code::kClosed, strf("array: %s after close()", what));
}

Result<Tensor> tensor_of(const Array& a) {
  VV_TRY(check_open(a, "use"));
  const std::optional<DType> d = dtype_of(a.elem);
  if (!d) return Status(Code::kInvalidDType, strf("array: ops take no %s; astype() it first", name(a.elem)));
  Tensor t{a.data, *d, a.device() == kHost ? Place::host : Place::device, a.shape, {}};
  for (int i = 0; i < a.shape.rank; ++i) t.stride[i] = a.stride[i];
  return t;
}

Status copy_host(const Array& a, void* host, bool to_device) {
  const size_t bytes = static_cast<size_t>(a.nbytes());
  if (bytes == 0) return {};
  if (a.device() == kHost) {
    std::memmove(to_device ? a.data : host, to_device ? host : a.data, bytes);
    return {};
  }
  VV_ASSIGN(device::Device* const device, device::Device::get(a.device()));
  VV_TRY(device->bind());
  VV_TRY(device->synchronize());
  device::Stream stream = device::Stream::borrow(*device, reinterpret_cast<cu::Stream>(kLegacyStream));
  VV_TRY(to_device ? stream.copy(a.data, host, bytes) : stream.copy(host, a.data, bytes));
  VV_TRY(stream.synchronize());
  return to_device ? Status() : take_bad_place(a.device());
}

}  // namespace vivace::array
