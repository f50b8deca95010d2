#include "vivace/engine/launch_profile.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "vivace/base/check.h"
#include "vivace/device/activity.h"
#include "vivace/device/cupti.h"
#include "vivace/device/graph.h"
#include "vivace/device/kernel.h"
#include "vivace/device/stream.h"

namespace vivace::engine {
namespace {

using Clock = std::chrono::steady_clock;

thread_local std::vector<std::string> regions;

std::string region_of_thread() {
  std::string all;
  for (const std::string& r : regions) all += (all.empty() ? "" : "/") + r;
  return all;
}

class Profiler final : public device::Observer {
 public:
  void begin(const device::Work& work) override;
  void end(const device::Work& work) override;
  Status start(LaunchTimer timer, const std::vector<std::string>& cupti);
  Result<LaunchReport> stop();

 private:
  /// A call on a GPU whose time is not known yet.
  struct Issued {
    size_t row = 0;
    device::Event start, stop;  // with events
    std::vector<device::CapturedLaunch> inside;
  };
  struct Open {  // of this thread, begun and not ended
    bool counted = false;
    int64_t number = 0;  // of the profile in which it began
    size_t row = 0;
    uint64_t id = 0;     // place in issued_, from 1
    Clock::time_point at;
  };
  static std::vector<Open>& open() {
    thread_local std::vector<Open> all;
    return all;
  }

  size_t row_of(const std::string& region, const device::Device* device, const std::string& op,
                const std::string& kernel, int64_t bytes, int64_t flops, int64_t inside);
  void add(size_t row, double us);
  void keep(Status s) {
    if (failed_.ok() && !s.ok()) failed_ = std::move(s);
  }
  Status read_events();
  Status read_cupti();

  std::mutex mutex_;
  bool on_ = false, cupti_ = false;
  int64_t number_ = 0;
  LaunchReport report_;
  std::map<std::tuple<std::string, std::string, std::string, std::string, int64_t, int64_t>, size_t> rows_;
  std::vector<Issued> issued_;
  std::set<const device::Device*> used_;
  Status failed_;
  Clock::time_point began_;
};

/// Never destroyed: threads may be inside.
Profiler& profiler() {
  static Profiler* only = new Profiler;
  return *only;
}

size_t Profiler::row_of(const std::string& region, const device::Device* device, const std::string& op,
                        const std::string& kernel, int64_t bytes, int64_t flops, int64_t inside) {
  const std::string where = device == nullptr ? "cpu" : strf("cuda:%d", device->info().ordinal);
  const auto [it, fresh] = rows_.try_emplace({region, where, op, kernel, bytes, flops}, report_.rows.size());
  if (fresh) {
    ProfiledLaunch row;
    row.region = region, row.device = where, row.op = op, row.kernel = kernel;
    row.bytes = bytes, row.flops = flops, row.inside = inside;
    report_.rows.push_back(std::move(row));
  }
  return it->second;
}

void Profiler::add(size_t row, double us) {
  ProfiledLaunch& r = report_.rows[row];
  r.least_us = r.calls == 0 ? us : std::min(r.least_us, us);
  r.most_us = std::max(r.most_us, us);
  r.us += us;
  ++r.calls;
}

void Profiler::begin(const device::Work& w) {
  open().emplace_back();
  Open& o = open().back();
  if (w.captured) return;
  if (w.device != nullptr) {  // somebody else may capture what is put on the stream
    const Result<bool> capturing = device::is_capturing(device::Stream::borrow(*w.device, w.stream));
    if (!capturing.ok() || *capturing) return;
  }
  const std::lock_guard lock(mutex_);
  if (!on_) return;
  o.counted = true, o.number = number_;
  o.row = row_of(region_of_thread(), w.device, w.op, w.kernel, w.bytes, w.flops,
                 w.kind == device::Work::replay ? static_cast<int64_t>(w.inside.size()) : 1);
  if (w.device != nullptr) {
    used_.insert(w.device);
    Issued i;
    i.row = o.row;
    i.inside.assign(w.inside.begin(), w.inside.end());
    const bool events = !cupti_ || w.kind == device::Work::copy;
    if (events) {
      Result<device::Event> start = device::Event::create(*w.device, true);
      Result<device::Event> stop = device::Event::create(*w.device, true);
      keep(start.status());
      keep(stop.status());
      if (start.ok() && stop.ok()) {
        i.start = std::move(*start), i.stop = std::move(*stop);
        keep(i.start.record(w.stream));
      }
    }
    issued_.push_back(std::move(i));
    o.id = issued_.size();
    if (cupti_ && !events) device::cupti::push(o.id);
  }
  o.at = Clock::now();
}

void Profiler::end(const device::Work& w) {
  const Clock::time_point now = Clock::now();
  if (open().empty()) return;
  const Open o = open().back();
  open().pop_back();
  if (!o.counted) return;
  const std::lock_guard lock(mutex_);
  if (!on_ || o.number != number_) return;
  if (w.device == nullptr) return add(o.row, std::chrono::duration<double, std::micro>(now - o.at).count());
  Issued& i = issued_[o.id - 1];
  if (i.stop.handle() != nullptr) keep(i.stop.record(w.stream));
  else if (cupti_) device::cupti::pop();
}

Status Profiler::start(LaunchTimer timer, const std::vector<std::string>& cupti) {
  const std::lock_guard lock(mutex_);
  if (on_) return Status(Code::kFailedPrecondition, "profile: one is on already; they do not nest");
  report_ = {};
  rows_.clear(), issued_.clear(), used_.clear();
  failed_ = {};
  cupti_ = false;
  if (timer != LaunchTimer::events) {
    const Result<device::cupti::Info> info = device::cupti::start(cupti);
    if (!info.ok() && timer == LaunchTimer::cupti) return info.status();
    cupti_ = info.ok();
    if (cupti_) report_.timer = strf("cupti %s, version %u", info->library.c_str(), info->version);
    else report_.note = info.status().message();
  }
  on_ = true;
  ++number_;
  began_ = Clock::now();
  device::set_observer(this);
  return {};
}

Status Profiler::read_events() {
  for (Issued& i : issued_) {
    if (i.stop.handle() == nullptr) continue;
    VV_ASSIGN(const double us, device::Event::elapsed_us(i.start, i.stop));
    add(i.row, us);
  }
  return {};
}

Status Profiler::read_cupti() {
  VV_ASSIGN(const std::vector<device::cupti::KernelRecord> records, device::cupti::stop());
  std::vector<std::vector<bool>> seen(issued_.size());
  for (size_t i = 0; i < issued_.size(); ++i) seen[i].resize(issued_[i].inside.size());
  for (const device::cupti::KernelRecord& k : records) {
    const double us = static_cast<double>(k.end_ns - k.start_ns) / 1e3;
    if (k.id == 0 || k.id > issued_.size()) {
      add(row_of("", *used_.begin(), "other", k.symbol, 0, 0, 1), us);
      continue;
    }
    Issued& i = issued_[k.id - 1];
    size_t row = i.row;
    if (!i.inside.empty()) {  // of a graph: the next of its launches with this symbol
      const ProfiledLaunch graph = report_.rows[i.row];
      row = row_of(graph.region, *used_.begin(), "other", k.symbol, 0, 0, 1);
      for (size_t n = 0; n < i.inside.size(); ++n) {
        const device::CapturedLaunch& l = i.inside[n];
        if (seen[k.id - 1][n] || l.kernel == nullptr || l.kernel->name != k.symbol) continue;
        seen[k.id - 1][n] = true;
        row = row_of(graph.region, l.kernel->device, l.op, k.symbol, l.bytes, l.flops, 1);
        break;
      }
    }
    add(row, us);
  }
  return {};
}

Result<LaunchReport> Profiler::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (!on_) return Status(Code::kFailedPrecondition, "profile: none is on");
  }
  device::set_observer(nullptr);
  const std::lock_guard lock(mutex_);
  on_ = false;
  report_.wall_us = std::chrono::duration<double, std::micro>(Clock::now() - began_).count();
  for (const device::Device* const d : used_) {
    keep(d->bind());
    keep(d->synchronize());
  }
  if (used_.empty()) {
    report_.timer = "host clock";
    report_.note.clear();
    if (cupti_) keep(device::cupti::stop().status());
  } else {
    if (!cupti_) report_.timer = "events";
    keep(read_events());
    if (cupti_) keep(read_cupti());
  }
  issued_.clear();
  // A replay whose kernels CUPTI has told one by one is not told again.
  std::erase_if(report_.rows, [](const ProfiledLaunch& r) { return r.calls == 0; });
  VV_TRY(std::exchange(failed_, {}));
  return std::exchange(report_, {});
}

}  // namespace

Status start_launch_profile(LaunchTimer timer, const std::vector<std::string>& cupti) {
  return profiler().start(timer, cupti);
}
Result<LaunchReport> stop_launch_profile() { return profiler().stop(); }
void enter_region(const std::string& name) { regions.push_back(name); }
void leave_region() {
  if (!regions.empty()) regions.pop_back();
}

}  // namespace vivace::engine
