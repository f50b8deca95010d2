#include "vivace/serve/notifier.h"

#include <cerrno>
#include <cstring>
#include <ctime>

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vivace/base/check.h"

namespace vivace::serve {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is the number itself");

Notifier::~Notifier() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<std::shared_ptr<Notifier>> Notifier::with_descriptor() {
  auto made = std::make_shared<Notifier>();
  made->descriptor_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made->descriptor_ < 0)
    return Status(Code::kLimitExceeded,
                  std::string("eventfd: ") + std::strerror(errno) + "; close files, or raise `ulimit -n`");
  return made;
}

void Notifier::ring() {
  // Sequentially consistent with wait(): either it sees the new number, or this sees that it sleeps.
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0)
    syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  if (descriptor_ >= 0 && !rung_.exchange(true, std::memory_order_seq_cst)) {
    const uint64_t one = 1;
    (void)!write(descriptor_, &one, sizeof(one));  // fails only where it is readable already
  }
}

void Notifier::wait(uint32_t seen, std::chrono::microseconds limit) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const timespec time{static_cast<time_t>(limit.count() / 1'000'000),
                      static_cast<long>(limit.count() % 1'000'000 * 1000)};
  syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, &time, nullptr,
          0);  // at once where the number is another already
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Notifier::acknowledge() {
  uint64_t count = 0;
  (void)!read(descriptor_, &count, sizeof(count));
  rung_.store(false, std::memory_order_seq_cst);
}

}  // namespace vivace::serve
