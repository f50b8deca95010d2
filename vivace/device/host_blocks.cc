#include "vivace/device/host_blocks.h"

#include <atomic>
#include <utility>

#include "vivace/base/check.h"
#include "vivace/device/driver.h"
#include "vivace/device/waits.h"

namespace vivace::device {
namespace {

constexpr size_t kPage = 4096;

std::atomic<const Device*> g_device{nullptr};  // any one: what was put off is given back by whoever closes last

HostBlocks& pinned() {
  static auto* blocks = new HostBlocks(
      [](size_t bytes) -> Result<void*> {
        void* p = nullptr;
        VV_CU(cuMemHostAlloc, &p, bytes, cu::kHostAllocPortable);
        return p;
      },
      [](void* data) {
        count_device_wide_wait();
        if (g_device.load()->bind().ok()) VV_CU_IGNORE(cuMemFreeHost, data);
      });
  return *blocks;
}

}  // namespace

Result<void*> HostBlocks::allocate(size_t bytes) {
  if (bytes == 0 || bytes > (size_t{1} << 62))
    return Status(Code::kInvalidArgument, strf("page-locked memory: %zu bytes cannot be allocated", bytes));
  bytes = (bytes + kPage - 1) / kPage * kPage;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Up to a quarter may be lost, as in the pool.
    if (const auto it = kept_.lower_bound(bytes); it != kept_.end() && it->first <= bytes + bytes / 4) {
      void* const data = it->second;
      kept_bytes_ -= static_cast<int64_t>(it->first);
      kept_.erase(it);
      return data;
    }
  }
  Result<void*> made = get_(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!made.ok()) {
    Status s = std::move(made).status();
    if (kept_bytes_ == 0) return s;
    return std::move(s).with_context(
        strf("page-locked memory: %zu bytes; %lld are kept, in other sizes, until the scheduler is closed", bytes,
             static_cast<long long>(kept_bytes_)));
  }
  sizes_[*made] = bytes;
  return made;
}

void HostBlocks::free(void* data) {
  if (data == nullptr) return;
  const bool keeps = gates_alive();
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = sizes_.find(data);
    if (keeps) {
      first = !std::exchange(put_off_, true);
      kept_.emplace(it->second, data);
      kept_bytes_ += static_cast<int64_t>(it->second);
    } else {
      sizes_.erase(it);
    }
  }
  if (!keeps)
    give_(data);
  else if (first)
    when_no_gates([this] { give_back(); });
}

int64_t HostBlocks::kept() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_bytes_;
}

void HostBlocks::give_back() {
  std::multimap<size_t, void*> gone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    gone.swap(kept_);
    kept_bytes_ = 0;
    put_off_ = false;
    for (const auto& [bytes, data] : gone) sizes_.erase(data);
  }
  for (const auto& [bytes, data] : gone) give_(data);
}

Result<void*> allocate_pinned(const Device& device, size_t bytes) {
  VV_TRY(device.bind());
  g_device = &device;
  return pinned().allocate(bytes);
}

void free_pinned(void* data) {
  pinned().free(data);
}

}  // namespace vivace::device
