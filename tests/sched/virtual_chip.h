// A chip with a virtual clock: streams of launches, gates and marks, whole launches one after the other. Streams whose
// heads can run take turns, which is what kernels of two graphs do that each fill the chip
// (docs/design/025-scheduling.md).
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace vivace::sched::testing {

class VirtualChip {
 public:
  enum class Kind : uint8_t { launch, pass, set, mark };
  struct Item {
    Kind kind = Kind::launch;
    double us = 0;             // launch
    uint32_t mask = 0;         // pass; set: the word's number
    bool shut = false;         // set
    std::function<void()> fn;  // mark: runs when the stream gets there
  };

  int add_stream() { return streams_.emplace_back(), static_cast<int>(streams_.size()) - 1; }
  void launch(int s, double us) { streams_[at(s)].push_back({Kind::launch, us, 0, false, {}}); }
  void pass(int s, uint32_t mask) { streams_[at(s)].push_back({Kind::pass, 0, mask, false, {}}); }
  void set(int s, uint32_t word, bool shut) { streams_[at(s)].push_back({Kind::set, 0, word, shut, {}}); }
  void mark(int s, std::function<void()> fn) { streams_[at(s)].push_back({Kind::mark, 0, 0, false, std::move(fn)}); }
  size_t queued(int s) const { return streams_[at(s)].size(); }

  void write(uint32_t word, bool shut) { words_ = shut ? words_ | 1u << word : words_ & ~(1u << word); }
  bool shut(uint32_t word) const { return words_ >> word & 1; }
  double now() const { return now_; }
  double busy_us() const { return busy_; }
  double last_start(int s) const { return starts_.size() > at(s) ? starts_[at(s)] : -1; }

  /// Runs until `end`, or until nothing can go on before it; then the clock is `end`.
  void run(double end) {
    for (;;) {
      settle();
      if (running_ < 0 && !start()) break;
      if (free_ > end) break;
      now_ = free_;
      running_ = -1;
    }
    if (now_ < end) now_ = end;
  }

 private:
  static size_t at(int s) { return static_cast<size_t>(s); }

  /// Everything at a stream's head that takes no time, until no stream moves.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < streams_.size(); ++s) {
        if (static_cast<int>(s) == running_) continue;
        auto& q = streams_[s];
        while (!q.empty() && q.front().kind != Kind::launch) {
          if (q.front().kind == Kind::pass && (words_ & q.front().mask) != 0) break;
          const Item item = std::move(q.front());
          q.pop_front();
          moved = true;
          if (item.kind == Kind::set) write(item.mask, item.shut);
          if (item.kind == Kind::mark) item.fn();
        }
      }
    }
  }
  bool start() {
    for (size_t i = 1; i <= streams_.size(); ++i) {
      const size_t s = (at(last_) + i) % streams_.size();
      auto& q = streams_[s];
      if (q.empty() || q.front().kind != Kind::launch) continue;
      last_ = running_ = static_cast<int>(s);
      starts_.resize(streams_.size(), -1);
      starts_[s] = now_;
      busy_ += q.front().us;
      free_ = now_ + q.front().us;
      q.pop_front();
      return true;
    }
    return false;
  }

  std::vector<std::deque<Item>> streams_;
  std::vector<double> starts_;
  uint32_t words_ = 0;
  double now_ = 0, free_ = 0, busy_ = 0;
  int running_ = -1, last_ = 0;
};

}  // namespace vivace::sched::testing
