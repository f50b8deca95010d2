#include "profile.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "vivace/base/check.h"
#include "vivace/device/activity.h"
#include "vivace/engine/launch_profile.h"

namespace nb = nanobind;

namespace vivace::python {
namespace {

void start_profile(const std::string& timer, const std::vector<std::string>& cupti) {
  using engine::LaunchTimer;
  const bool known = timer == "auto" || timer == "events" || timer == "cupti";
  if (!known)
    check(Status(Code::kInvalidArgument, "profile: timer is '" + timer + "', wanted auto, events or cupti"));
  check(engine::start_launch_profile(timer == "auto"     ? LaunchTimer::automatic
                                     : timer == "events" ? LaunchTimer::events
                                                         : LaunchTimer::cupti,
                                     cupti));
}

nb::dict stop_profile() {
  Result<engine::LaunchReport> report = Status(Code::kInternal, "not stopped");
  {
    const NoGil release;  // it waits for devices
    report = engine::stop_launch_profile();
  }
  check(report.status());
  nb::list rows;
  for (const engine::ProfiledLaunch& r : report->rows) {
    nb::dict d;
    d["region"] = r.region, d["device"] = r.device, d["op"] = r.op, d["kernel"] = r.kernel, d["calls"] = r.calls;
    d["launches"] = r.inside, d["bytes"] = r.bytes, d["flops"] = r.flops;
    d["us"] = r.us, d["least_us"] = r.least_us, d["most_us"] = r.most_us;
    rows.append(d);
  }
  nb::dict out;
  out["rows"] = rows, out["timer"] = report->timer, out["note"] = report->note, out["wall_us"] = report->wall_us;
  return out;
}

nb::list stream_stats() {
  nb::list out;
  for (const device::StreamRow& r : device::stream_rows()) {
    const device::StreamCounts& c = *r.counts;
    nb::dict d;
    d["device"] = r.device < 0 ? std::string("cpu") : strf("cuda:%d", r.device);
    d["handle"] = r.handle;
    d["launches"] = c.launches.load(), d["replays"] = c.replays.load(), d["copies"] = c.copies.load();
    d["copied_bytes"] = c.copied_bytes.load(), d["waits"] = c.waits.load(), d["host_waits"] = c.host_waits.load();
    out.append(d);
  }
  return out;
}

}  // namespace

void add_profile(nb::module_& m) {
  m.def("start_profile", &start_profile, nb::arg("timer"), nb::arg("cupti"));
  m.def("stop_profile", &stop_profile);
  m.def("enter_region", [](const std::string& name) { engine::enter_region(name); }, nb::arg("name"));
  m.def("leave_region", [] { engine::leave_region(); });
  m.def("stream_stats", &stream_stats,
        "What each stream of this process was given since it began, a dict a stream: device, handle (0 on the CPU), "
        "launches, replays (of captured graphs), copies, copied_bytes, waits (for other streams, on the device), "
        "host_waits.");
}

}  // namespace vivace::python
