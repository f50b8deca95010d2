// The scheduler for Python; vivace/schedule.py has the face. Thin: every decision is in vivace/sched.
#include "sched.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "gpu_runtime.h"
#include "vivace/base/check.h"
#include "vivace/exec/cuda_stream.h"
#include "vivace/sched/work.h"

namespace vivace::python {
namespace {

using sched::Class;
using sched::Demand;
using sched::Qos;

/// Keeps the scheduler while Python does; tenants keep it too.
struct Scheduler {
  std::shared_ptr<sched::Scheduler> live;
};

/// Its face in Python calls nothing else once it is closed.
struct Work {
  explicit Work(std::unique_ptr<sched::Work> w) : live(std::move(w)) {}
  Work(Work&&) = default;
  ~Work() { close(); }
  exec::CudaStream* on_gpu() const {
    return live && live->place() == Place::device ? &static_cast<exec::CudaStream&>(live->stream()) : nullptr;
  }
  void close() {
    if (const exec::CudaStream* const s = on_gpu(); s != nullptr) take_back(*s);
    const NoGil release;
    live.reset();
  }
  std::unique_ptr<sched::Work> live;
};

/// A dict with the fields of sched::Qos, `cls` as its name.
Qos read_qos(const nb::dict& d) {
  Qos q;
  const auto number = [&](const char* name) { return nb::cast<double>(d[name]); };
  const auto cls = nb::cast<std::string>(d["cls"]);
  if (cls == "guaranteed") q.cls = Class::guaranteed;
  else if (cls == "burstable") q.cls = Class::burstable;
  else if (cls != "best_effort")
    check(Status(Code::kInvalidArgument,
                 "qos: wanted a class of guaranteed, burstable or best_effort, got '" + cls + "'"));
  q.period_us = number("period_us"), q.deadline_us = number("deadline_us"), q.min_share = number("min_share"),
  q.weight = number("weight"), q.blocking_us = number("blocking_us");
  q.overrun = nb::cast<bool>(d["hold"]) ? sched::Overrun::hold : sched::Overrun::release;
  q.queue = nb::cast<int>(d["queue"]);
  q.bytes = nb::cast<int64_t>(d["bytes"]);
  return q;
}

nb::dict write_qos(const Demand& d) {
  nb::dict out;
  out["cls"] = sched::name(d.qos.cls), out["period_us"] = d.qos.period_us, out["deadline_us"] = d.qos.deadline_us,
  out["min_share"] = d.qos.min_share, out["weight"] = d.qos.weight;
  out["blocking_us"] = d.qos.blocking_us, out["hold"] = d.qos.overrun == sched::Overrun::hold,
  out["queue"] = d.qos.queue, out["bytes"] = d.qos.bytes;
  return out;
}

nb::dict histogram(const sched::Histogram& h) {
  nb::dict out;
  out["count"] = h.count(), out["sum"] = h.sum_us(), out["p50"] = h.quantile_us(0.5), out["p99"] = h.quantile_us(0.99),
  out["p999"] = h.quantile_us(0.999), out["max"] = h.max_us();
  nb::list below;  // as Prometheus has them
  for (double us = 10; us <= 1e7; us *= 10)
    for (const double step : {1.0, 2.0, 5.0}) below.append(nb::make_tuple(us * step, h.below(us * step)));
  out["below"] = below;
  return out;
}

nb::dict row(const sched::Scheduler::Row& r) {
  const sched::TenantStats& s = r.stats;
  nb::dict out;
  out["qos"] = write_qos(r.demand), out["wcet_us"] = r.demand.times.worst_us,
  out["bound_us"] = r.demand.times.stretch_us, out["promised"] = r.promised;
  out["calls"] = s.calls, out["missed"] = s.missed, out["rejected"] = s.rejected, out["overruns"] = s.overruns,
  out["lost"] = s.lost, out["demoted"] = s.demoted, out["fits"] = s.fits, out["asleep"] = s.asleep;
  out["whole_us"] = r.demand.times.whole_us, out["whole_calls"] = s.whole_calls;
  out["early"] = s.early, out["early_wrong"] = s.early_wrong, out["device_us"] = s.device_us,
  out["worst_us"] = s.worst_us;
  out["wait_us"] = histogram(s.wait), out["response_us"] = histogram(s.response);
  return out;
}

template <class F>
Status without_gil(F&& f) {
  const NoGil release;
  return f();
}

}  // namespace

nb::tuple moved(const Result<engine::Moved>& m) {
  check(m.status());
  return nb::make_tuple(m->bytes, m->seconds);
}

void add_sched(nb::module_& m) {
  nb::class_<Tenant>(m, "Tenant")
      .def("guaranteed", [](const Tenant& t) { return t.tenant->cls() == Class::guaranteed; })
      .def(
          "set", [](const Tenant& t, const nb::dict& qos) { check(t.tenant->set(read_qos(qos))); }, nb::arg("qos"))
      .def(
          "pause", [](const Tenant& t, bool paused) { check(t.tenant->pause(paused)); }, nb::arg("paused"))
      .def("cls", [](const Tenant& t) { return sched::name(t.tenant->cls()); })
      .def("bytes_short", [](const Tenant& t) { return t.tenant->bytes_short(); })
      .def(
          "expect_in", [](const Tenant& t, double seconds) { check(t.tenant->expect_in(seconds * 1e6)); },
          nb::arg("seconds"));
  nb::class_<Work>(m, "Work")
      .def_static(
          "open",
          [](const Tenant& t, double worst_us, double stretch_us, double partition) {
            auto work = [&] {
              const NoGil release;
              return sched::Work::open(t.tenant, {worst_us, stretch_us}, partition);
            }();
            check(work.status());
            return Work{std::move(work).value()};
          },
          nb::arg("tenant"), nb::arg("worst_us"), nb::arg("stretch_us"), nb::arg("partition") = 0.0)
      .def("multiprocessors", [](const Work& w) { return w.live->multiprocessors(); })
      .def("stream",
           [](const Work& w) {
             exec::CudaStream* const s = w.on_gpu();
             if (s != nullptr) lend_stream(*s);
             return s == nullptr ? uintptr_t{0} : reinterpret_cast<uintptr_t>(s->handle());
           })
      .def("begin", [](const Work& w) { check(without_gil([&] { return w.live->begin(); })); })
      .def("gate", [](const Work& w) { check(without_gil([&] { return w.live->gate(); })); })
      .def("end", [](const Work& w) { check(without_gil([&] { return w.live->end(); })); })
      .def("close", &Work::close);  // whoever else still holds this, a traceback say, holds no place
  nb::class_<Scheduler>(m, "Scheduler")
      .def_static(
          "open",
          [](const std::string& device, double utilisation, double handover_us, int64_t bytes) {
            auto opened = [&] {
              const NoGil release;
              return sched::Scheduler::open(device, {utilisation, handover_us, bytes});
            }();
            check(opened.status());
            return Scheduler{std::move(opened).value()};
          },
          nb::arg("device"), nb::arg("utilisation"), nb::arg("handover_us"), nb::arg("bytes"))
      .def("device", [](const Scheduler& s) { return s.live->device(); })
      .def(
          "join",
          [](const Scheduler& s, const std::string& name, const nb::dict& qos, double worst_us) {
            auto joined = s.live->join(name, read_qos(qos));
            check(joined.status());
            return Tenant{std::move(joined).value(), worst_us};
          },
          nb::arg("name"), nb::arg("qos"), nb::arg("worst_us"))
      .def(
          "evaluate",
          [](const Scheduler& s, const std::string& name, const nb::dict& qos, double worst_us, double stretch_us) {
            auto verdict = s.live->evaluate({name, read_qos(qos), {worst_us, stretch_us}});
            check(verdict.status());
            nb::list fixes;
            for (const sched::Fix& f : verdict->fixes)
              fixes.append(nb::make_tuple(f.text, f.demand.name, write_qos(f.demand)));
            return nb::make_tuple(verdict->admitted, verdict->text, verdict->response_us, verdict->utilisation, fixes);
          },
          nb::arg("name"), nb::arg("qos"), nb::arg("worst_us"), nb::arg("stretch_us"))
      .def("rows",
           [](const Scheduler& s) {
             nb::dict out;
             for (const auto& r : s.live->rows()) out[r.demand.name.c_str()] = row(r);
             return out;
           })
      .def("now",
           [](const Scheduler& s) {
             const auto n = s.live->now_of();
             nb::dict out;
             out["device"] = s.live->device(), out["healthy"] = s.live->healthy(),
             out["utilisation"] = s.live->utilisation(), out["queue_depth"] = n.waiting, out["running"] = n.running;
             out["gate_closed_us"] = n.closed_us, out["up_us"] = n.up_us;
             out["streams_held"] = n.streams_held, out["urgent_held"] = n.urgent_held;
             return out;
           })
      .def(
          "coldest", [](const Scheduler& s, bool burstable) { return s.live->coldest(burstable); },
          nb::arg("burstable"))
      .def(
          "timeline",
          [](const Scheduler& s, double since_us) {
            static constexpr const char* kKinds[] = {"wait", "call", "step", "stand_back"};
            nb::list out;
            for (const auto& span : s.live->timeline(since_us))
              out.append(
                  nb::make_tuple(span.tenant.data(), kKinds[static_cast<size_t>(span.kind)], span.at_us, span.us));
            return out;
          },
          nb::arg("since_us") = 0.0)
      .def("close", [](const Scheduler& s) {
        const NoGil release;
        s.live->close();
      });
}

}  // namespace vivace::python
