// The CPU backend's gate: a pass holds up the thread that runs the stream.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "vivace/exec/gate.h"

namespace vivace::exec {

class CpuGate final : public Gate {
 public:
  CpuGate(int stream_words, int host_words) : Gate(stream_words, host_words) {}
  Status set(int word, bool shut) override;
  Status open_all() override;
  Result<bool> shut(int word) override;

  /// Of streams. No check, no allocation.
  void write(int word, bool shut);
  /// Returns once no word of `mask` is shut: at once, without a lock, where none is.
  void pass(uint32_t mask);
  bool open(uint32_t mask) const { return (shut_.load(std::memory_order_acquire) & mask) == 0; }

 private:
  std::atomic<uint32_t> shut_{0};  // a bit a word
  std::mutex mutex_;               // of those who wait, and of those who open
  std::condition_variable opened_;
};

}  // namespace vivace::exec
