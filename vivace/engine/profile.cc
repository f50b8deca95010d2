#include "vivace/engine/profile.h"

#include <algorithm>
#include <chrono>

#include "vivace/base/check.h"

namespace vivace::engine {
namespace {

/// A stream that keeps what is launched on it and runs nothing.
class Listener final : public exec::Stream {
 public:
  explicit Listener(const exec::Stream& of) : device_(of.device()), partition_(of.partition()) {}
  Status launch(const exec::Launch& launch) override { return launches.push_back(launch), Status(); }
  Status copy(void*, const void*, size_t) override { return refuse("copy"); }
  Status begin_capture() override { return refuse("begin_capture"); }
  Result<std::unique_ptr<exec::Executable>> end_capture() override { return refuse("end_capture"); }
  bool capturing() const override { return false; }
  const device::Device* device() const override { return device_; }
  int partition() const override { return partition_; }
  Status replay(exec::Executable&) override { return refuse("replay"); }
  Status record(exec::Event&) override { return refuse("record"); }
  Status wait(exec::Event&) override { return refuse("wait"); }
  Status pass(exec::Gate&, uint32_t) override { return points.push_back(launches.size()), Status(); }
  Status set(exec::Gate&, int, bool) override { return refuse("set"); }
  Status synchronize() override { return refuse("synchronize"); }

  std::vector<exec::Launch> launches;
  std::vector<size_t> points;

 private:
  static Status refuse(const char* call) {
    return Status(Code::kUnsupported, strf("profile: a step that calls %s cannot be listened to", call));
  }
  const device::Device* device_;
  int partition_;
};

bool alike(const exec::Launch& a, const exec::Launch& b) {
  return std::string_view(a.op) == b.op && a.kernel == b.kernel && a.bytes == b.bytes && a.flops == b.flops &&
         a.grid[0] == b.grid[0];
}

/// Microseconds of one run of the launches.
Result<double> time_of(Runtime& runtime, const std::vector<const exec::Launch*>& launches,
                       const std::function<Status()>& reset) {
  using Clock = std::chrono::steady_clock;
  constexpr int kSamples = 7, kLeast = 4;  // runs of a sample, so that the way to and from the device is shared
  constexpr double kSampleUs = 1500;
  exec::Stream& stream = runtime.stream();
  VV_TRY(stream.begin_capture());
  Status issued;
  for (const exec::Launch* l : launches)
    if (issued.ok()) issued = stream.launch(*l);
  Result<std::unique_ptr<exec::Executable>> graph = stream.end_capture();
  VV_TRY(std::move(issued));
  if (!graph.ok()) return std::move(graph).status();
  VV_TRY(reset());
  std::vector<double> samples;
  int runs = 1;
  while (samples.size() < kSamples) {
    VV_TRY(stream.synchronize());
    const auto start = Clock::now();
    for (int i = 0; i < runs; ++i) VV_TRY(stream.replay(**graph));
    VV_TRY(stream.synchronize());
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (runs < kLeast || (us < kSampleUs && runs < 64)) runs *= 2;  // until the wait at the end no longer shows
    else samples.push_back(us / runs);
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

}  // namespace

Result<Profile> profile(Runtime& runtime, const std::function<Status(exec::Stream&)>& record,
                        const std::function<Status()>& reset, bool in_step) {
  Listener listener(runtime.stream());
  VV_TRY(record(listener));
  Profile p;
  p.points = listener.points;
  std::vector<std::vector<const exec::Launch*>> members;
  std::vector<const exec::Launch*> all;
  for (const exec::Launch& l : listener.launches) {
    all.push_back(&l);
    const auto found =
        std::find_if(members.begin(), members.end(), [&](const auto& m) { return alike(*m.front(), l); });
    p.order.push_back(static_cast<int>(found - members.begin()));
    if (found != members.end()) found->push_back(&l);
    else members.push_back({&l});
  }
  VV_ASSIGN(p.step_us, time_of(runtime, all, reset));
  for (const auto& m : members) {
    VV_ASSIGN(const double us, time_of(runtime, m, reset));
    p.groups.push_back({m.front()->op, static_cast<int>(m.size()), m.front()->bytes, m.front()->flops,
                        us / static_cast<double>(m.size())});
  }
  for (size_t g = 0; in_step && members.size() > 1 && g < members.size(); ++g) {
    std::vector<const exec::Launch*> others;
    for (size_t i = 0; i < all.size(); ++i)
      if (p.order[i] != static_cast<int>(g)) others.push_back(all[i]);
    VV_ASSIGN(const double us, time_of(runtime, others, reset));
    p.groups[g].in_step_us = (p.step_us - us) / p.groups[g].launches;
  }
  VV_TRY(reset());
  VV_TRY(runtime.stream().synchronize());
  return p;
}

}  // namespace vivace::engine
