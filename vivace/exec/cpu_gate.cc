#include "vivace/exec/cpu_gate.h"

#include "vivace/base/check.h"

namespace vivace::exec {

Status CpuGate::set(int word, bool shut) {
  VV_TRY(check_word("cpu", "set", *this, word, true));
  write(word, shut);
  return {};
}

Status CpuGate::open_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  shut_.store(0, std::memory_order_release);
  opened_.notify_all();
  return {};
}

Result<bool> CpuGate::shut(int word) {
  if (word < 0 || word >= words())
    return Status(Code::kInvalidArgument, strf("cpu gate: word %d of %d", word, words()));
  return !open(1u << word);
}

void CpuGate::write(int word, bool shut) {
  if (shut) {
    shut_.fetch_or(1u << word, std::memory_order_acq_rel);
    return;
  }
  // Under the lock: a thread that has found the word shut is waiting before it is told.
  const std::lock_guard<std::mutex> lock(mutex_);
  shut_.fetch_and(~(1u << word), std::memory_order_acq_rel);
  opened_.notify_all();
}

void CpuGate::pass(uint32_t mask) {
  if (open(mask)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  opened_.wait(lock, [&] { return open(mask); });
}

}  // namespace vivace::exec
