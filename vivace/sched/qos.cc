#include "vivace/sched/qos.h"

#include <cmath>

#include "vivace/base/check.h"

namespace vivace::sched {
namespace {

Status refuse(const std::string& tenant, const char* field, double got, const char* wanted) {
  return Status(Code::kInvalidArgument, strf("tenant %s: %s is %g; wanted %s", tenant.c_str(), field, got, wanted));
}
bool bad(double v) { return !std::isfinite(v) || v < 0; }

}  // namespace

const char* name(Class c) {
  switch (c) {
    case Class::guaranteed: return "guaranteed";
    case Class::burstable: return "burstable";
    case Class::best_effort: return "best_effort";
  }
  return "unknown";
}

Status check(const std::string& d, const Qos& q) {
  if (d.empty()) return Status(Code::kInvalidArgument, "tenant: it has no name");
  if (q.cls != Class::guaranteed && q.cls != Class::burstable && q.cls != Class::best_effort)
    return refuse(d, "class", static_cast<double>(q.cls), "guaranteed, burstable or best_effort");
  if (bad(q.period_us) || bad(q.deadline_us))
    return refuse(d, bad(q.period_us) ? "period_us" : "deadline_us", bad(q.period_us) ? q.period_us : q.deadline_us,
                  "a finite time");
  if (bad(q.min_share) || q.min_share >= 1) return refuse(d, "min_share", q.min_share, "0 or more and below 1");
  if (!std::isfinite(q.weight) || q.weight <= 0) return refuse(d, "weight", q.weight, "above 0");
  if (!std::isfinite(q.blocking_us) || q.blocking_us <= 0) return refuse(d, "blocking_us", q.blocking_us, "above 0");
  if (q.queue < 1 || q.queue > 4096) return refuse(d, "queue", q.queue, "1 to 4096 calls");
  if (q.bytes < 0) return refuse(d, "bytes", static_cast<double>(q.bytes), "0 or more");
  if (q.cls == Class::guaranteed) {
    if (q.period_us == 0)
      return refuse(d, "period_us", 0, "the least time between two calls: without it nothing can be guaranteed");
    if (q.min_share != 0) return refuse(d, "min_share", q.min_share, "0: a guaranteed tenant has its calls' time");
  } else if (q.period_us != 0 || q.deadline_us != 0) {
    return refuse(d, q.period_us != 0 ? "period_us" : "deadline_us", q.period_us != 0 ? q.period_us : q.deadline_us,
                  "0: only guaranteed tenants have one");
  }
  if (q.cls == Class::best_effort && q.min_share != 0)
    return refuse(d, "min_share", q.min_share, "0: best effort has no least share; ask for burstable");
  return {};
}

Status check(const Demand& d) {
  VV_TRY(check(d.name, d.qos));
  const Qos& q = d.qos;
  const Times& t = d.times;
  if (bad(t.worst_us) || bad(t.stretch_us))
    return refuse(d.name, bad(t.worst_us) ? "worst_us" : "stretch_us", bad(t.worst_us) ? t.worst_us : t.stretch_us,
                  "a finite time");
  if (t.worst_us == 0 || t.stretch_us == 0)
    return Status(Code::kFailedPrecondition,
                  strf("tenant %s: nothing is known of its times; profile the model first", d.name.c_str()));
  const double deadline = q.deadline_us != 0 ? q.deadline_us : q.period_us;
  if (q.cls == Class::guaranteed && t.worst_us > deadline)
    return Status(Code::kFailedPrecondition,
                  strf("tenant %s: a call alone takes up to %.0f us, its deadline is %.0f us", d.name.c_str(),
                       t.worst_us, deadline));
  return {};
}

}  // namespace vivace::sched
