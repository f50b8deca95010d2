#include "vivace/base/forks.h"

#include <pthread.h>

#include <atomic>

namespace vivace {

int forks() {
  static std::atomic<int> count{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return count.load(std::memory_order_relaxed);
}

}  // namespace vivace
