#include "vivace/sched/work.h"

#include "vivace/base/check.h"

namespace vivace::sched {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Result<std::unique_ptr<Work>> Work::open(std::shared_ptr<Tenant> tenant, const Times& times, double partition) {
  const bool urgent = tenant->cls() == Class::guaranteed;
  VV_ASSIGN(std::unique_ptr<engine::Runtime> runtime, engine::Runtime::open(tenant->device(), 1, partition, urgent));
  Times known = times;
  known.apart = partition != 0;
  VV_TRY(tenant->admit(known));
  return std::unique_ptr<Work>(new Work(std::move(tenant), std::move(runtime)));
}

Work::~Work() {
  static_cast<void>(end());
}

Status Work::begin() {
  if (running_) return Status(Code::kFailedPrecondition, "work: a run has begun; end() it first");
  static constexpr engine::GateSite kNone{};
  if (guaranteed()) {
    double retry_us = 0;
    Result<Turn> turn = tenant_->enter(0, &retry_us);
    if (!turn.ok())
      return retry_us == 0
                 ? std::move(turn).status()
                 : Status(turn.status().code(), turn.status().message() + strf("; come again in %.0f us", retry_us));
    turn_.emplace(std::move(*turn));
    call_.emplace(tenant_->urgent().get(), kNone, stream());
    if (Status s = call_->begin(); !s.ok()) {
      call_.reset();
      turn_.reset();
      return s;
    }
  } else {
    tenant_->want(true);
  }
  begun_ = Clock::now();
  running_ = true;
  return {};
}

Status Work::gate() {
  if (!running_) return Status(Code::kFailedPrecondition, "work: no run has begun; begin() comes first");
  return guaranteed() ? Status() : stream().pass(*sites_.gate, sites_.mask);
}

Status Work::end() {
  if (!running_) return {};
  running_ = false;
  Status s = call_ ? call_->end() : Status();
  call_.reset();
  if (Status done = stream().synchronize(); s.ok()) s = std::move(done);
  if (turn_) {
    turn_.reset();
  } else {
    tenant_->charge(std::chrono::duration<double, std::micro>(Clock::now() - begun_).count());
    tenant_->want(false);
  }
  return s;
}

}  // namespace vivace::sched
