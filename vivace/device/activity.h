// What streams are given to do: counts that are always kept, and an observer that profiles set.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vivace/device/cuda_api.h"

namespace vivace::device {

class Device;
struct Kernel;

/// What one stream was given since the process began. A handle that the driver gives again goes on counting.
struct StreamCounts {
  std::atomic<int64_t> launches{0};      // kernels, or ops on the CPU; captured ones do not count
  std::atomic<int64_t> replays{0};       // of captured graphs
  std::atomic<int64_t> copies{0}, copied_bytes{0};
  std::atomic<int64_t> waits{0};         // for other streams' work, on the device
  std::atomic<int64_t> host_waits{0};    // the host waited for the stream
};

struct StreamRow {
  int device = -1;  // -1: the CPU
  uint64_t handle = 0;
  const StreamCounts* counts = nullptr;
};

/// The counts of a stream: of a GPU's number and a handle, or of the CPU (-1, 0). Never freed. From kMostStreams
/// streams on, all further ones share a row with handle ~0. Allocates at a stream's first use. Thread-safe.
StreamCounts& stream_counts(int device, const void* handle);
inline constexpr int kMostStreams = 256;
std::vector<StreamRow> stream_rows();

inline void count(std::atomic<int64_t>& counter, int64_t by = 1) { counter.fetch_add(by, std::memory_order_relaxed); }

/// A launch of a captured graph.
struct CapturedLaunch {
  const char* op = "";  // static
  const Kernel* kernel = nullptr;
  int64_t bytes = 0, flops = 0;
};

/// A piece of work as it is issued.
struct Work {
  enum Kind : uint8_t { launch, copy, replay } kind = launch;
  std::string op = {}, kernel = {};  // the op's or function's name; the kernel's symbol on a GPU
  int64_t bytes = 0, flops = 0;   // least traffic and arithmetic; 0 where nobody said
  const Device* device = nullptr; // null: the CPU
  cu::Stream stream = nullptr;
  bool captured = false;          // recorded into a graph: nothing runs now
  std::span<const CapturedLaunch> inside = {};  // replay: the launches of the graph, in order
};

/// Sees work while it is set, on the threads that issue it. Calls of one thread nest.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin(const Work& work) = 0;
  virtual void end(const Work& work) = 0;
};

namespace detail {
extern std::atomic<Observer*> g_observer;
}
inline Observer* observer() { return detail::g_observer.load(std::memory_order_acquire); }
/// Null ends it. The observer must stay alive for ever: a thread may be inside.
void set_observer(Observer* observer);

/// Tells the observer, if there is one, of the work that is issued during its life. `say()` makes the Work; it is not
/// called otherwise.
class Observed {
 public:
  template <class Say>
  explicit Observed(const Say& say) : observer_(observer()) {
    if (observer_ == nullptr) [[likely]] return;
    work_.emplace(say());
    observer_->begin(*work_);
  }
  Observed(const Observed&) = delete;
  ~Observed() {
    if (observer_ != nullptr) [[unlikely]] observer_->end(*work_);
  }

 private:
  Observer* observer_;
  std::optional<Work> work_;
};

}  // namespace vivace::device
