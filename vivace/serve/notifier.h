// Notifier: how a thread that serves tells those who wait that there is news. No lock: whoever rings never waits.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "vivace/base/status.h"

namespace vivace::serve {

/// Owned by shared_ptr from this on, so that Python's references to it are C++'s own: whoever drops the last one, on
/// whatever thread, needs nothing of the interpreter.
class Notifier : public std::enable_shared_from_this<Notifier> {
 public:
  Notifier() = default;
  ~Notifier();
  Notifier(const Notifier&) = delete;
  /// With a file descriptor besides, for event loops: readable after ring() until acknowledge(). Errors: LimitExceeded.
  static Result<std::shared_ptr<Notifier>> with_descriptor();

  void ring();
  uint32_t now() const { return word_.load(std::memory_order_acquire); }
  /// Returns when ring() was called since now() gave `seen`, after `limit`, or when a signal came to this thread.
  void wait(uint32_t seen, std::chrono::microseconds limit);
  int descriptor() const { return descriptor_; }
  /// To be called before what rang is looked at, so that news in between ring again.
  void acknowledge();

 private:
  std::atomic<uint32_t> word_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> rung_{false};  // since the last acknowledge()
  int descriptor_ = -1;
};

}  // namespace vivace::serve
