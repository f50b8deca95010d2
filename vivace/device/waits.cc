#include "vivace/device/waits.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace vivace::device {
namespace {

std::atomic<uint64_t> g_waits{0};

struct PutOff {
  std::mutex mutex;
  int gates = 0;
  std::vector<std::function<void()>> calls;
};

PutOff& put_off() {
  static auto* p = new PutOff;  // never destroyed: objects are freed during process exit too
  return *p;
}

}  // namespace

uint64_t device_wide_waits() {
  return g_waits;
}
void count_device_wide_wait() {
  ++g_waits;
}

GatesAlive::GatesAlive() {
  PutOff& p = put_off();
  const std::lock_guard<std::mutex> lock(p.mutex);
  ++p.gates;
}

GatesAlive::~GatesAlive() {
  PutOff& p = put_off();
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard<std::mutex> lock(p.mutex);
    if (--p.gates == 0) calls.swap(p.calls);
  }
  for (const auto& call : calls) call();
}

bool gates_alive() {
  PutOff& p = put_off();
  const std::lock_guard<std::mutex> lock(p.mutex);
  return p.gates > 0;
}

void when_no_gates(std::function<void()> call) {
  PutOff& p = put_off();
  {
    const std::lock_guard<std::mutex> lock(p.mutex);
    if (p.gates > 0) {
      p.calls.push_back(std::move(call));
      return;
    }
  }
  call();
}

}  // namespace vivace::device
