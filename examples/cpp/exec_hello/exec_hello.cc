// Capture a step once, then replay it: two stages on two streams, ordered by a plan.
#include <cstdio>

#include "vivace/base/check.h"
#include "vivace/cpu/pool.h"
#include "vivace/exec/cpu_stream.h"
#include "vivace/exec/plan.h"

using namespace vivace;

namespace {

constexpr int kCount = 8;
constexpr exec::ShapeKey kKey{kCount};  // what a key means is up to the program

struct AddArgs {
  float* to;
  const float* from;
};

void add(const void* raw, cpu::Pool& pool) {
  const auto& args = *static_cast<const AddArgs*>(raw);
  pool.run(kCount, [&](int64_t i) { args.to[i] += args.from[i]; });
}

Status enqueue_add(exec::Stream& stream, const exec::Buffer& to, const exec::Buffer& from) {
  exec::Launch launch;
  launch.op = "add";
  launch.host = add;
  launch.set_args(AddArgs{static_cast<float*>(to.data()), static_cast<const float*>(from.data())});
  return stream.launch(launch);
}

Status run() {
  // Setup: may allocate and fail.
  cpu::Pool pool;
  exec::CpuBackend backend(pool);
  VV_ASSIGN(auto first, backend.make_stream());
  VV_ASSIGN(auto second, backend.make_stream());
  VV_ASSIGN(exec::Buffer x, backend.make_buffer("x", kCount * sizeof(float)));
  VV_ASSIGN(exec::Buffer y, backend.make_buffer("y", kCount * sizeof(float)));
  for (int i = 0; i < kCount; ++i) static_cast<float*>(x.data())[i] = 1;

  exec::Graph context("context", 4), action("action", 4);
  VV_TRY(context.capture(kKey, *first, [&](exec::Stream& s) { return enqueue_add(s, y, x); }));
  VV_TRY(action.capture(kKey, *second, [&](exec::Stream& s) { return enqueue_add(s, x, y); }));
  exec::Plan plan("step", backend);
  VV_ASSIGN(const auto a, plan.add(context, kKey, *first));
  VV_ASSIGN(const auto b, plan.add(action, kKey, *second));
  VV_TRY(plan.edge(a, b));
  VV_TRY(plan.freeze());

  // Replay: allocates nothing, locks nothing.
  for (int i = 0; i < 5; ++i) VV_TRY(plan.run());
  VV_TRY(plan.synchronize());
  std::printf("x = %g, y = %g after 5 runs\n", static_cast<float*>(x.data())[0], static_cast<float*>(y.data())[0]);

  const Status miss = context.replay(exec::ShapeKey{9}, *first);
  std::printf("%s\n", miss.to_string().c_str());
  return {};
}

}  // namespace

int main() {
  const Status s = run();
  if (!s.ok()) std::fprintf(stderr, "%s\n", s.to_string().c_str());
  return s.ok() ? 0 : 1;
}
