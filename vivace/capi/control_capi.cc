// Chunk runners of the C ABI: vivace/capi/control.h over serve::ChunkRunner.
#include "vivace/capi/control.h"

#include <utility>

#include "vivace/capi/guard.h"
#include "vivace/serve/chunks.h"

using vivace::Code;
using vivace::Status;
using vivace::capi::guard;

namespace serve = vivace::serve;

struct vv_runner : vivace::capi::Tagged<vivace::capi::Kind::runner> {
  std::unique_ptr<serve::ChunkRunner> runner;
  size_t dims, horizon, network;  // network: 0 where no prefix is asked for
  size_t asked_with;              // values that start_request() fills in
};

namespace {

constexpr size_t kOptionsV1 = sizeof(vv_runner_options), kTickV1 = sizeof(vv_tick);

vivace::Result<serve::ChunkOptions> read_options(const vv_runner_options& o) {
  serve::ChunkOptions to;
  using Join = serve::ChunkOptions::Join;
  const std::string join = o.join != nullptr ? o.join : "swap";
  if (join == "blend") to.join = Join::blend;
  else if (join == "prefix") to.join = Join::prefix;
  else if (join == "future") to.join = Join::future;
  else if (join != "swap")
    return Status(Code::kInvalidArgument, "join: wanted swap, blend, prefix or future, got '" + join + "'");
  if (o.horizon != 0) to.horizon = o.horizon;
  if (o.blend != 0) to.blend = o.blend;
  to.dims = o.dims, to.network_dims = o.network_dims, to.ask_after = o.ask_after, to.deadline = o.deadline;
  if (o.max_action_age != 0) to.max_action_age = o.max_action_age;
  if (o.watchdog != 0) to.watchdog = o.watchdog;
  if (o.max_step != nullptr && o.dims > 0 && o.dims <= serve::ChunkOptions::kMost)
    to.max_step.assign(o.max_step, o.max_step + o.dims);
  return to;
}

serve::ChunkRequest request_of(const vv_chunk_request& r) {
  return {r.id, r.tick, r.observed, r.prefix_length, r.ahead};
}

}  // namespace

extern "C" {

vv_status vv_runner_create(const vv_runner_options* options, vv_runner** out) {
  return guard("vv_runner_create", [&]() -> Status {
    VV_NOT_NULL(out);
    vv_runner_options o{};
    VV_TRY(vivace::capi::read_struct(options, kOptionsV1, &o));
    VV_ASSIGN(const serve::ChunkOptions to, read_options(o));
    VV_ASSIGN(auto runner, serve::ChunkRunner::make(to));
    using Join = serve::ChunkOptions::Join;
    const auto dims = static_cast<size_t>(to.dims), horizon = static_cast<size_t>(to.horizon),
               network = to.join == Join::prefix ? static_cast<size_t>(to.network_dims) : 0;
    *out = new vv_runner{{}, std::move(runner), dims, horizon, network,
                         to.join == Join::future ? horizon * dims : (horizon - 1) * network};
    return {};
  }, out);
}

void vv_runner_destroy(vv_runner* runner) { vivace::capi::destroy(runner); }

vv_status vv_runner_start(vv_runner* runner, const float* position, double now) {
  return guard("vv_runner_start", [&]() -> Status {
    VV_NOT_NULL(runner);
    VV_NOT_NULL(position);
    return runner->runner->start({position, runner->dims}, now);
  });
}

vv_status vv_runner_next(vv_runner* runner, double now, float* action, vv_tick* tick) {
  return guard("vv_runner_next", [&]() -> Status {
    VV_NOT_NULL(runner);
    VV_NOT_NULL(action);
    vv_tick probe{};
    VV_TRY(vivace::capi::read_struct(static_cast<const vv_tick*>(tick), kTickV1, &probe));  // before a tick is used up
    serve::Tick t;
    VV_TRY(runner->runner->next(now, {action, runner->dims}, &t));
    return vivace::capi::write_struct({sizeof(vv_tick), static_cast<int>(t.source), t.clamped, t.chunk_index, t.age},
                                      kTickV1, tick);
  }, vivace::capi::Filled<vv_tick>{tick, kTickV1});
}

int vv_runner_needs_inference(const vv_runner* runner, double now) {
  return vivace::capi::usable(runner) && runner->runner->needs_inference(now);
}

vv_status vv_runner_start_request(vv_runner* runner, double now, vv_chunk_request* request, float* actions) {
  return guard("vv_runner_start_request", [&]() -> Status {
    VV_NOT_NULL(runner);
    VV_NOT_NULL(request);
    if (runner->asked_with > 0) {
      VV_NOT_NULL(actions);
    }
    serve::ChunkRequest r;
    VV_TRY(runner->runner->start_request(now, &r, {actions, runner->asked_with}));
    *request = {r.id, r.tick, r.observed, r.prefix_length, r.ahead};
    return {};
  }, request);
}

vv_status vv_runner_complete(vv_runner* runner, const vv_chunk_request* request, const float* actions,
                             const float* normalized) {
  return guard("vv_runner_complete", [&]() -> Status {
    VV_NOT_NULL(runner);
    VV_NOT_NULL(request);
    VV_NOT_NULL(actions);
    if (runner->network > 0) {
      VV_NOT_NULL(normalized);
    }
    return runner->runner->complete(request_of(*request), {actions, runner->horizon * runner->dims},
                                    {normalized, runner->network > 0 ? runner->horizon * runner->network : 0});
  });
}

vv_status vv_runner_cancel(vv_runner* runner, const vv_chunk_request* request) {
  return guard("vv_runner_cancel", [&]() -> Status {
    VV_NOT_NULL(runner);
    VV_NOT_NULL(request);
    return runner->runner->cancel(request_of(*request));
  });
}

}  // extern "C"
