#include "vivace/exec/cuda_gate.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/device/driver.h"
#include "vivace/exec/held_streams.h"

namespace vivace::exec {
namespace {

constexpr size_t kPage = 256;  // kMaxWords words fit, and nothing else shares their lines
constexpr size_t kWord = sizeof(uint32_t);
static_assert(Gate::kMaxWords * kWord < kPage && Gate::kMaxWords <= device::kMostWaits);

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
  if (stream_page_ == 0) return;
  device::when_no_gates([&device = device_, page = stream_page_] {
    device::count_device_wide_wait();
    if (device.bind().ok()) VV_CU_IGNORE(cuMemFree_v2, page);
  });
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

Status CudaGate::queue_nothing(cu::Stream stream) const {
  return device::write_word(stream, stream_page_ + kMaxWords * kWord, 1);  // behind the gate's own
}

Result<HeldStreams> held_streams(const Gate& gate, int streams) {
  if (streams < 2) return Status(Code::kInvalidArgument, strf("held_streams: wanted 2 or more, got %d", streams));
  const auto* const of = dynamic_cast<const CudaGate*>(&gate);
  if (of == nullptr) return HeldStreams{};
  using Clock = std::chrono::steady_clock;
  using std::chrono::microseconds;
  constexpr microseconds kReached{500}, kMost{5000};
  const auto until = [](Clock::time_point end, const auto& what) -> Result<bool> {
    while (true) {
      VV_ASSIGN(const bool there, what());
      if (there || Clock::now() >= end) return there;
    }
  };
  const device::Device& device = of->device();
  VV_TRY(device.bind());
  VV_ASSIGN(const std::unique_ptr<CudaGate> shut, CudaGate::create(device, 0, 1));
  std::vector<device::Stream> all;
  std::vector<device::Event> ends;
  for (int i = 0; i < streams; ++i) {
    VV_ASSIGN(device::Stream stream, device::Stream::create(device, i == 0 ? device.priority_levels() - 1 : 0));
    VV_ASSIGN(device::Event end, device::Event::create(device));
    all.push_back(std::move(stream));
    ends.push_back(std::move(end));
  }
  HeldStreams held;
  VV_TRY(shut->set(0, true));
  const auto look = [&]() -> Status {
    VV_TRY(shut->queue_pass(all.back().handle(), 1));
    VV_TRY(ends.back().record(all.back().handle()));
    VV_ASSIGN(const bool through, until(Clock::now() + kReached, [&] { return ends.back().done(); }));
    if (through) return Status(Code::kInternal, "held_streams: a stream passed a gate that is shut");
    const size_t others = all.size() - 1;
    for (size_t i = 0; i < others; ++i) {
      VV_TRY(of->queue_nothing(all[i].handle()));
      VV_TRY(ends[i].record(all[i].handle()));
    }
    const auto end = Clock::now() + kMost;
    for (size_t i = 0; i < others; ++i) {
      VV_ASSIGN(const bool ran, until(end, [&] { return ends[i].done(); }));
      held.count += !ran, held.urgent |= i == 0 && !ran;
    }
    return {};
  };
  Status s = look();
  VV_TRY(shut->set(0, false));  // whatever was seen
  for (const device::Stream& stream : all) VV_TRY(stream.synchronize());
  VV_TRY(std::move(s));
  return held;
}

}  // namespace vivace::exec
