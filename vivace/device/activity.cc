#include "vivace/device/activity.h"

#include <map>
#include <mutex>
#include <utility>

namespace vivace::device {
namespace detail {
std::atomic<Observer*> g_observer{nullptr};
}

namespace {

constexpr uint64_t kOthers = ~uint64_t{0};

struct Streams {
  std::mutex mutex;
  std::map<std::pair<int, uint64_t>, StreamCounts> rows;
};
Streams& streams() {
  static Streams* all = new Streams;  // outlives every static that might launch
  return *all;
}

}  // namespace

StreamCounts& stream_counts(int device, const void* handle) {
  const std::pair<int, uint64_t> key(device, reinterpret_cast<uint64_t>(handle));
  // A thread's own streams are found without the lock.
  constexpr size_t kSlots = 8;
  struct Slot {
    std::pair<int, uint64_t> key{-2, 0};
    StreamCounts* counts = nullptr;
  };
  thread_local Slot slots[kSlots];
  Slot& slot = slots[((key.second >> 4) ^ (key.second >> 12) ^ static_cast<uint64_t>(device)) % kSlots];
  if (slot.key == key) [[likely]] return *slot.counts;
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  const bool full = s.rows.size() >= kMostStreams && !s.rows.contains(key);
  StreamCounts& found = s.rows[full ? std::pair(-1, kOthers) : key];
  slot = {key, &found};
  return found;
}

std::vector<StreamRow> stream_rows() {
  Streams& s = streams();
  const std::lock_guard lock(s.mutex);
  std::vector<StreamRow> out;
  for (const auto& [key, counts] : s.rows) out.push_back({key.first, key.second, &counts});
  return out;
}

void set_observer(Observer* observer) { detail::g_observer.store(observer, std::memory_order_release); }

}  // namespace vivace::device
