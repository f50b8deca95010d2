// ByteRing: bytes from one thread to another, bounded, without a lock.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace vivace::serve {

class ByteRing {
 public:
  explicit ByteRing(size_t capacity) : capacity_(capacity), bytes_(std::make_unique<char[]>(capacity)) {}

  size_t capacity() const { return capacity_; }
  size_t used() const { return written_.load(std::memory_order_acquire) - read_.load(std::memory_order_acquire); }

  /// The writer's: takes as much of `data` as there is room for, and says how much.
  size_t write(std::string_view data) {
    const size_t at = written_.load(std::memory_order_relaxed),
                 count = std::min(data.size(), capacity_ - (at - read_.load(std::memory_order_acquire)));
    for (size_t done = 0; done < count;) {
      const size_t place = (at + done) % capacity_, run = std::min(count - done, capacity_ - place);
      std::copy_n(data.data() + done, run, bytes_.get() + place);
      done += run;
    }
    written_.store(at + count, std::memory_order_release);
    return count;
  }

  /// The reader's: everything that is there.
  std::string read() {
    const size_t at = read_.load(std::memory_order_relaxed), count = written_.load(std::memory_order_acquire) - at;
    std::string out(count, '\0');
    for (size_t done = 0; done < count;) {
      const size_t place = (at + done) % capacity_, run = std::min(count - done, capacity_ - place);
      std::copy_n(bytes_.get() + place, run, out.data() + done);
      done += run;
    }
    read_.store(at + count, std::memory_order_release);
    return out;
  }

 private:
  const size_t capacity_;
  const std::unique_ptr<char[]> bytes_;
  alignas(64) std::atomic<size_t> written_{0};  // of all time
  alignas(64) std::atomic<size_t> read_{0};
};

}  // namespace vivace::serve
