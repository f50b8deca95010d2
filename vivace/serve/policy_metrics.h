// What a policy host counts, and how /metrics says it. Any thread may count; nothing waits.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace vivace::serve {

/// Seconds, in buckets from 50 microseconds to 5 seconds.
class Histogram {
 public:
  static constexpr std::array<double, 16> kBounds{5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                                                  2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1,    2,    5};
  void add(double seconds);
  /// In Prometheus's text form.
  void write(const char* name, const char* help, std::string* out) const;

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<uint64_t> nanoseconds_{0};
};

struct PolicyMetrics {
  using Count = std::atomic<uint64_t>;
  Count connections{0}, refused{0};                // websockets that were opened; connections that were turned away
  Count answered{0}, failed{0}, missed{0},
      abandoned{0};  // requests: with actions, with an error, past their deadline, whose client left
  Count slow_readers{0}, silent{0},
      broken{0};  // connections that were closed: they did not read, did not answer pings, broke the protocol
  Count bytes_in{0}, bytes_out{0}, calls{0};       // calls of the policy: fewer than requests where several shared one
  std::atomic<int64_t> clients{0}, waiting{0};     // now
  Histogram queue, infer, total;  // waiting for the policy; in it; from the whole request to its answer
  std::string text(bool ready) const;
};

}  // namespace vivace::serve
