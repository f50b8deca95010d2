#include "vivace/exec/cuda_gate.h"

#include <atomic>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/device/driver.h"

namespace vivace::exec {
namespace {

constexpr size_t kPage = 256;  // kMaxWords words fit, and nothing else shares their lines
constexpr size_t kWord = sizeof(uint32_t);
static_assert(Gate::kMaxWords * kWord <= kPage && Gate::kMaxWords <= device::kMostWaits);

std::atomic_ref<uint32_t> host_word(const device::PinnedBuffer& page, int i) {
  return std::atomic_ref<uint32_t>(reinterpret_cast<uint32_t*>(page.data())[i]);
}

}  // namespace

Result<std::unique_ptr<CudaGate>> CudaGate::create(const device::Device& device, int stream_words, int host_words) {
  VV_TRY(check_gate_words("cuda", stream_words, host_words));
  if (Status s = device::check_memory_operations(); !s.ok())
    return Status(s.code(), "gate: " + s.message() + "; schedule at step boundaries instead");
  VV_TRY(device.bind());
  std::unique_ptr<CudaGate> gate(new CudaGate(device, stream_words, host_words));
  VV_ASSIGN(gate->host_side_, device::Stream::create(device));
  VV_ASSIGN(gate->host_page_, device::PinnedBuffer::create(device, kPage));
  std::memset(gate->host_page_.data(), 0, kPage);
  VV_CU(cuMemAlloc_v2, &gate->stream_page_, kPage);
  VV_CU(cuMemsetD8Async, gate->stream_page_, 0, kPage, gate->host_side_.handle());
  VV_TRY(gate->host_side_.synchronize());
  return gate;
}

CudaGate::~CudaGate() {
  if (stream_page_ != 0 && device_.bind().ok()) VV_CU_IGNORE(cuMemFree_v2, stream_page_);
}

cu::DevicePtr CudaGate::address(int word) const {
  if (word < stream_words()) return stream_page_ + static_cast<size_t>(word) * kWord;
  return reinterpret_cast<cu::DevicePtr>(host_page_.data() + static_cast<size_t>(word - stream_words()) * kWord);
}

Status CudaGate::set(int word, bool shut) {
  VV_TRY(check_word("cuda", "set", *this, word, true));
  host_word(host_page_, word - stream_words()).store(shut ? 1 : 0, std::memory_order_release);
  return {};
}

Status CudaGate::open_all() {
  for (int i = 0; i < host_words(); ++i) host_word(host_page_, i).store(0, std::memory_order_release);
  VV_TRY(device_.bind());
  for (int i = 0; i < stream_words(); ++i) VV_TRY(queue_set(host_side_.handle(), i, false));
  return host_side_.synchronize();
}

Result<bool> CudaGate::shut(int word) {
  if (word < 0 || word >= words())
    return Status(Code::kInvalidArgument, strf("cuda gate: word %d of %d", word, words()));
  if (word >= stream_words()) return host_word(host_page_, word - stream_words()).load(std::memory_order_acquire) != 0;
  VV_TRY(device_.bind());
  uint32_t value = 0;
  VV_TRY(host_side_.copy(&value, reinterpret_cast<const void*>(address(word)), kWord));
  VV_TRY(host_side_.synchronize());
  return value != 0;
}

Status CudaGate::queue_pass(cu::Stream stream, uint32_t mask) const {
  cu::DevicePtr asked[kMaxWords];
  unsigned count = 0;
  for (int i = 0; i < words(); ++i)
    if ((mask >> i & 1) != 0) asked[count++] = address(i);
  return device::wait_until_zero(stream, asked, count);
}

Status CudaGate::queue_set(cu::Stream stream, int word, bool shut) const {
  return device::write_word(stream, address(word), shut ? 1 : 0);
}

}  // namespace vivace::exec
