// What a scheduler's handles hold: models of the C ABI are loaded with them.
#pragma once
#include <memory>

#include "vivace/capi/sched.h"
#include "vivace/capi/tagged.h"
#include "vivace/sched/scheduler.h"

namespace vivace::capi {

enum class Move { sleep, wake };
inline constexpr size_t kMovedV1 = sizeof(vv_moved);

/// vv_..._sleep() and vv_..._wake() of a model and the tenant that it was loaded with.
Status move(Move way, sched::Tenant* tenant, engine::Model& model, vv_moved* moved);

}  // namespace vivace::capi

struct vv_scheduler : vivace::capi::Tagged<vivace::capi::Kind::scheduler> {
  explicit vv_scheduler(std::shared_ptr<vivace::sched::Scheduler> s) : scheduler(std::move(s)) {}
  ~vv_scheduler() { scheduler->close(); }
  std::shared_ptr<vivace::sched::Scheduler> scheduler;
};
struct vv_tenant : vivace::capi::Tagged<vivace::capi::Kind::tenant> {
  vv_tenant(std::shared_ptr<vivace::sched::Tenant> t, double us) : tenant(std::move(t)), worst_us(us) {}
  std::shared_ptr<vivace::sched::Tenant> tenant;
  double worst_us;  // of its calls or steps, where the caller says so; else 0
};
