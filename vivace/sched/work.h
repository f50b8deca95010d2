// Work: launches that are no model's, a caller's own kernels say, as a tenant of the scheduler.
#pragma once
#include <chrono>
#include <memory>
#include <optional>

#include "vivace/sched/scheduler.h"

namespace vivace::sched {

/// A stream of its own on the tenant's device. A run is begin(), then for each launch gate() and the launch on
/// stream(), then end(). Guaranteed: a run is a call, before which it waits for its turn and while which others stand
/// back. Others: they stand back at each gate. One thread at a time.
class Work {
 public:
  /// Admits the tenant with `times`: a run's, and the longest of its launches. `partition`: share of the device's
  /// multiprocessors that its stream has, in (0, 1), so that it runs beside others; 0: all of them. Errors:
  /// Tenant::admit()'s, Runtime::open()'s.
  static Result<std::unique_ptr<Work>> open(std::shared_ptr<Tenant> tenant, const Times& times, double partition = 0);
  /// Ends a run that has begun.
  ~Work();
  Work(const Work&) = delete;

  exec::Stream& stream() { return runtime_->stream(); }
  Place place() const { return runtime_->place(); }
  int multiprocessors() const { return runtime_->multiprocessors(); }  // of its stream; 0 on the host
  /// Errors: Tenant::enter()'s; FailedPrecondition within a run.
  Status begin();
  /// Before a launch. On the host it waits, on a device the stream does. Errors: FailedPrecondition outside a run.
  Status gate();
  /// Waits until all launches are done. Nothing outside a run.
  Status end();

 private:
  Work(std::shared_ptr<Tenant> tenant, std::unique_ptr<engine::Runtime> runtime)
      : tenant_(std::move(tenant)), sites_(tenant_->gates()), runtime_(std::move(runtime)) {}
  bool guaranteed() const { return tenant_->cls() == Class::guaranteed; }

  const std::shared_ptr<Tenant> tenant_;  // outlives the stream, which uses its gate
  const engine::GateSite sites_;
  const std::unique_ptr<engine::Runtime> runtime_;
  std::chrono::steady_clock::time_point begun_{};
  bool running_ = false;
  std::optional<Turn> turn_;
  std::optional<engine::GatedCall> call_;  // before turn_ ends: it opens what the call has shut
};

}  // namespace vivace::sched
