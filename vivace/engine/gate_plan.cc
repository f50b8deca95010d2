#include "vivace/engine/gate_plan.h"

#include <algorithm>
#include <chrono>

#include "vivace/base/check.h"
#include "vivace/engine/profile.h"

namespace vivace::engine {
namespace {

/// The host's stream with a clock around each launch, which has run when it returns.
class TimedStream final : public exec::Stream {
 public:
  explicit TimedStream(exec::Stream& stream) : stream_(stream) {}
  Status launch(const exec::Launch& launch) override {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    VV_TRY(stream_.launch(launch));
    times.us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    return {};
  }
  Status pass(exec::Gate&, uint32_t) override { return times.points.push_back(times.us.size()), Status(); }
  Status set(exec::Gate&, int, bool) override { return refuse("set"); }
  Status copy(void* to, const void* from, size_t bytes) override { return stream_.copy(to, from, bytes); }
  Status begin_capture() override { return refuse("begin_capture"); }
  Result<std::unique_ptr<exec::Executable>> end_capture() override { return refuse("end_capture"); }
  bool capturing() const override { return false; }
  const device::Device* device() const override { return stream_.device(); }
  int partition() const override { return stream_.partition(); }
  Status replay(exec::Executable&) override { return refuse("replay"); }
  Status record(exec::Event&) override { return refuse("record"); }
  Status wait(exec::Event&) override { return refuse("wait"); }
  Status synchronize() override { return stream_.synchronize(); }

  StepTimes times;

 private:
  static Status refuse(const char* call) {
    return Status(Code::kUnsupported, strf("gates: a step that calls %s cannot be timed", call));
  }
  exec::Stream& stream_;
};

}  // namespace

Result<StepTimes> time_launches(Runtime& runtime, const std::function<Status(exec::Stream&)>& record,
                                const std::function<Status()>& reset) {
  if (runtime.place() != Place::host) {
    VV_ASSIGN(Profile p, profile(runtime, record, reset));
    StepTimes times;
    for (const int group : p.order) times.us.push_back(p.groups[static_cast<size_t>(group)].us);
    times.points = std::move(p.points);
    return times;
  }
  StepTimes least;
  for (int round = 0; round < 3; ++round) {  // the first brings caches to what they are in use
    VV_TRY(reset());
    TimedStream timed(runtime.stream());
    VV_TRY(record(timed));
    if (round == 0) least = std::move(timed.times);
    else
      for (size_t i = 0; i < least.us.size(); ++i) least.us[i] = std::min(least.us[i], timed.times.us[i]);
  }
  VV_TRY(reset());
  return least;
}

GatePlan plan_gates(const StepTimes& times, double stretch_us) {
  GatePlan plan;
  const size_t points = times.points.size();
  plan.at.assign(points, false);
  const auto work = [&](size_t from, size_t to) {
    double us = 0;
    for (size_t i = from; i < to; ++i) us += times.us[i];
    return us;
  };
  if (points == 0) return plan.stretch_us = 2 * work(0, times.us.size()), plan;
  // The first point always has one: what lies before it joins the end of the step before.
  const double head = work(0, times.points[0]);
  plan.at[0] = true;
  size_t from = times.points[0];
  for (size_t p = 1; p < points; ++p) {
    const size_t next = p + 1 < points ? times.points[p + 1] : times.us.size();
    const double through = work(from, next) + (p + 1 < points ? 0 : head);
    if (through <= stretch_us) continue;
    plan.at[p] = true;
    plan.stretch_us = std::max(plan.stretch_us, work(from, times.points[p]));
    from = times.points[p];
  }
  plan.stretch_us = std::max(plan.stretch_us, work(from, times.us.size()) + head);
  plan.gates = static_cast<int>(std::count(plan.at.begin(), plan.at.end(), true));
  return plan;
}

Result<WorkTimes> plan_call(Runtime& runtime, double stretch_us, std::span<GatePlan> plans,
                            const std::function<Status(exec::Stream&, size_t)>& record) {
  WorkTimes work;
  for (size_t i = 0; i < plans.size(); ++i) {
    VV_ASSIGN(const StepTimes times, time_launches(
                                         runtime, [&](exec::Stream& stream) { return record(stream, i); },
                                         [&] { return runtime.stream().synchronize(); }));
    plans[i] = plan_gates(times, stretch_us);
    for (const double us : times.us) work.worst_us += us;
    work.stretch_us = std::max(work.stretch_us, plans[i].stretch_us);
    work.gates += plans[i].gates;
  }
  return work;
}

}  // namespace vivace::engine
