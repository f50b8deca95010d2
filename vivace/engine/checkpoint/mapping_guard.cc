#include "vivace/engine/checkpoint/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

namespace vivace::engine {
namespace {

// Read by a signal handler: plain atomics, never freed.
struct Slot {
  std::atomic<bool> taken{false}, lost{false};
  std::atomic<uintptr_t> begin{0}, end{0};
};
constexpr int kSlots = 4096;
Slot slots[kSlots];
std::atomic<int> used{0};  // slots below it may be taken
struct sigaction before = {};
uintptr_t page_bytes = 4096;

/// Whether the address is a guarded mapping's: zeros lie there now.
bool replace(uintptr_t at) {
  for (int i = 0; i < used.load(std::memory_order_acquire); ++i) {
    const uintptr_t begin = slots[i].begin.load(std::memory_order_acquire),
                    end = slots[i].end.load(std::memory_order_acquire);
    if (at < begin || at >= end) continue;
    const uintptr_t page = at & ~(page_bytes - 1);
    slots[i].lost.store(true, std::memory_order_release);
    void* p =
        mmap(reinterpret_cast<void*>(page), end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return p != MAP_FAILED;
  }
  return false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  if (info->si_code > 0 && replace(reinterpret_cast<uintptr_t>(info->si_addr))) return;  // the access is tried again
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    sigaction(SIGBUS, &before, nullptr);  // returning meets the fault again, with the system's own answer
    if (info->si_code <= 0) raise(SIGBUS);
  }
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction ours = {};
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &before);
  });
}

}  // namespace

MappingGuard::MappingGuard(const void* data, size_t bytes) {
  install();
  for (int i = 0; i < kSlots; ++i) {
    if (slots[i].taken.exchange(true)) continue;
    slots[i].lost = false;
    slots[i].begin = reinterpret_cast<uintptr_t>(data);
    slots[i].end = reinterpret_cast<uintptr_t>(data) + bytes;
    for (int n = used; n <= i && !used.compare_exchange_weak(n, i + 1);) {
    }
    slot_ = i;
    return;
  }
}

MappingGuard::MappingGuard(MappingGuard&& o) noexcept : slot_(std::exchange(o.slot_, -1)) {}

MappingGuard& MappingGuard::operator=(MappingGuard&& o) noexcept {
  std::swap(slot_, o.slot_);
  return *this;
}

bool MappingGuard::lost() const { return slot_ >= 0 && slots[slot_].lost.load(std::memory_order_acquire); }

void MappingGuard::release() {
  if (slot_ < 0) return;
  Slot& s = slots[std::exchange(slot_, -1)];
  s.end = 0, s.begin = 0;
  s.taken = false;
}

}  // namespace vivace::engine
