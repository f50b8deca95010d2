// The scheduler of the C ABI: vivace/capi/sched.h over sched::Scheduler.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "vivace/capi/guard.h"
#include "vivace/capi/sched_handle.h"
#include "vivace/engine/json_text.h"

using vivace::Code;
using vivace::Status;
using vivace::strf;
using vivace::capi::guard;

namespace capi = vivace::capi;
namespace sched = vivace::sched;

namespace {

constexpr size_t kOptionsV1 = sizeof(vv_scheduler_options), kQosV1 = sizeof(vv_qos);

vivace::Result<sched::Qos> read_qos(const vv_qos* from) {
  vv_qos o{};
  VV_TRY(capi::read_struct(from, kQosV1, &o));
  sched::Qos to;
  if (o.qos_class < VV_GUARANTEED || o.qos_class > VV_BEST_EFFORT)
    return Status(Code::kInvalidArgument,
                  strf("qos_class: wanted VV_GUARANTEED, VV_BURSTABLE or VV_BEST_EFFORT, got %d", o.qos_class));
  to.cls = o.qos_class == VV_GUARANTEED  ? sched::Class::guaranteed
           : o.qos_class == VV_BURSTABLE ? sched::Class::burstable
                                         : sched::Class::best_effort;
  to.period_us = o.period_us, to.deadline_us = o.deadline_us, to.min_share = o.min_share, to.bytes = o.bytes;
  if (o.weight != 0) to.weight = o.weight;
  if (o.blocking_us != 0) to.blocking_us = o.blocking_us;
  if (o.queue != 0) to.queue = o.queue;
  if (o.hold_on_overrun != 0) to.overrun = sched::Overrun::hold;
  return to;
}

Status check_us(const char* what, double us) {
  return std::isfinite(us) && us >= 0
             ? Status()
             : Status(Code::kInvalidArgument, strf("%s: wanted microseconds, 0 or more, got %g", what, us));
}

std::string histogram(const sched::Histogram& h) {
  return strf("{\"count\": %lld, \"sum\": %.9g, \"p50\": %.9g, \"p99\": %.9g, \"p999\": %.9g, \"max\": %.9g}",
              static_cast<long long>(h.count()), h.sum_us(), h.quantile_us(0.5), h.quantile_us(0.99),
              h.quantile_us(0.999), h.max_us());
}

std::string json(const sched::Scheduler& s) {
  std::string out =
      strf("{\"device\": %s, \"healthy\": %s, \"utilisation\": %.9g, \"tenants\": {",
           vivace::engine::json_string(s.device()).c_str(), s.healthy() ? "true" : "false", s.utilisation());
  bool first = true;
  for (const auto& r : s.rows()) {
    const sched::TenantStats& t = r.stats;
    const auto count = [&](const char* name, int64_t n) {
      out += strf("\"%s\": %lld, ", name, static_cast<long long>(n));
    };
    out += strf("%s%s: {\"class\": \"%s\", ", std::exchange(first, false) ? "" : ", ",
                vivace::engine::json_string(r.demand.name).c_str(), sched::name(r.demand.qos.cls));
    count("calls", t.calls), count("missed", t.missed), count("rejected", t.rejected), count("overruns", t.overruns),
        count("lost", t.lost), count("early", t.early), count("early_wrong", t.early_wrong);
    count("bytes", r.demand.qos.bytes);
    out += strf(
        "\"demoted\": %s, \"fits\": %s, \"asleep\": %s, \"device_us\": %.9g, \"wcet_us\": %.9g, \"bound_us\": %.9g, "
        "\"promised\": "
        "%.9g, \"wait_us\": "
        "%s, \"response_us\": %s}",
        t.demoted ? "true" : "false", t.fits ? "true" : "false", t.asleep ? "true" : "false", t.device_us,
        r.demand.times.worst_us, r.demand.times.stretch_us, r.promised, histogram(t.wait).c_str(),
        histogram(t.response).c_str());
  }
  return out + "}}";
}

}  // namespace

Status capi::move(Move way, sched::Tenant* tenant, vivace::engine::Model& model, vv_moved* moved) {
  if (tenant == nullptr)
    return Status(Code::kFailedPrecondition,
                  "it was loaded without a tenant: nobody would know whose its memory is while it sleeps");
  if (vv_moved checked{}; moved != nullptr) VV_TRY(capi::read_struct(moved, kMovedV1, &checked));  // before it moves
  VV_ASSIGN(const vivace::engine::Moved m, way == Move::sleep ? tenant->sleep(model) : tenant->wake(model));
  return moved == nullptr ? Status()
                          : capi::write_struct(vv_moved{sizeof(vv_moved), m.bytes, m.seconds}, kMovedV1, moved);
}

extern "C" {

vv_status vv_scheduler_open(const vv_scheduler_options* options, vv_scheduler** out) {
  return guard("vv_scheduler_open", [&]() -> Status {
    VV_NOT_NULL(out);
    vv_scheduler_options o{};
    VV_TRY(capi::read_struct(options, kOptionsV1, &o));
    sched::Capacity capacity;
    if (o.utilisation != 0) capacity.utilisation = o.utilisation;
    if (!(capacity.utilisation > 0 && capacity.utilisation <= 1))
      return Status(Code::kInvalidArgument,
                    strf("utilisation: wanted a part of the device's time, 1 at most, got %g", o.utilisation));
    VV_TRY(check_us("handover_us", o.handover_us));
    if (o.handover_us != 0) capacity.handover_us = o.handover_us;
    if (o.bytes < 0)
      return Status(Code::kInvalidArgument, strf("bytes: wanted 0 or more, got %lld", static_cast<long long>(o.bytes)));
    capacity.bytes = o.bytes;
    VV_ASSIGN(auto opened, sched::Scheduler::open(o.device != nullptr ? o.device : "auto", capacity));
    *out = new vv_scheduler(std::move(opened));
    return {};
  }, out);
}

void vv_scheduler_destroy(vv_scheduler* scheduler) { capi::destroy(scheduler); }

vv_status vv_scheduler_join(vv_scheduler* scheduler, const char* name, const vv_qos* qos, double worst_us,
                            vv_tenant** out) {
  return guard("vv_scheduler_join", [&]() -> Status {
    VV_NOT_NULL(scheduler);
    VV_NOT_NULL(name);
    VV_NOT_NULL(out);
    VV_ASSIGN(const sched::Qos q, read_qos(qos));
    VV_TRY(check_us("worst_us", worst_us));
    VV_ASSIGN(auto tenant, scheduler->scheduler->join(name, q));
    *out = new vv_tenant(std::move(tenant), worst_us);
    return {};
  }, out);
}

void vv_tenant_destroy(vv_tenant* tenant) { capi::destroy(tenant); }

vv_status vv_tenant_set(vv_tenant* tenant, const vv_qos* qos) {
  return guard("vv_tenant_set", [&]() -> Status {
    VV_NOT_NULL(tenant);
    VV_NOT_NULL(qos);
    VV_ASSIGN(const sched::Qos wanted, read_qos(qos));
    return tenant->tenant->set(wanted);
  });
}

vv_status vv_tenant_pause(vv_tenant* tenant, int paused) {
  return guard("vv_tenant_pause", [&]() -> Status {
    VV_NOT_NULL(tenant);
    return tenant->tenant->pause(paused != 0);
  });
}

vv_status vv_tenant_expect_in(vv_tenant* tenant, double us) {
  return guard("vv_tenant_expect_in", [&]() -> Status {
    VV_NOT_NULL(tenant);
    VV_TRY(check_us("us", us));
    return tenant->tenant->expect_in(us);
  });
}

vv_status vv_scheduler_evaluate(const vv_scheduler* scheduler, const char* name, const vv_qos* qos, double worst_us,
                                double stretch_us, int* admitted, char* text, size_t capacity) {
  return guard("vv_scheduler_evaluate", [&]() -> Status {
    VV_NOT_NULL(scheduler);
    VV_NOT_NULL(name);
    VV_NOT_NULL(admitted);
    VV_ASSIGN(const sched::Qos q, read_qos(qos));
    VV_TRY(check_us("stretch_us", stretch_us));
    VV_ASSIGN(const sched::Verdict v,
              scheduler->scheduler->evaluate({name, q, {worst_us, stretch_us != 0 ? stretch_us : worst_us}}));
    if (text != nullptr && capacity > 0) text[v.text.copy(text, std::min(capacity - 1, v.text.size()))] = '\0';
    *admitted = v.admitted;
    return {};
  }, admitted);
}

vv_status vv_scheduler_stats(const vv_scheduler* scheduler, char* to, size_t capacity, size_t* bytes) {
  capi::reset(bytes);  // and no more: where memory is too small it says how much is needed
  return guard("vv_scheduler_stats", [&]() -> Status {
    VV_NOT_NULL(scheduler);
    VV_NOT_NULL(bytes);
    const std::string text = json(*scheduler->scheduler);
    *bytes = text.size();
    if (to == nullptr || capacity <= text.size())
      return Status(Code::kLimitExceeded, strf("json: room for %zu bytes, %zu are needed",
                                               to == nullptr ? size_t{0} : capacity, text.size() + 1));
    std::memcpy(to, text.c_str(), text.size() + 1);
    return {};
  });
}

}  // extern "C"
