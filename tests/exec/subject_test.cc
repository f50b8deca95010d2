// The CPU subject, and a check that it computes what the contract tests expect of it.
#include "tests/exec/subject.h"

#include <algorithm>

#include "vivace/cpu/pool.h"
#include "vivace/exec/cpu_stream.h"

namespace vivace::exec::testing {
namespace {

struct AffineArgs {
  float* to;
  const float* from;
  float a, b;
  uint32_t n;
};

void affine_host(const void* raw, cpu::Pool& pool) {
  const AffineArgs& args = *static_cast<const AffineArgs*>(raw);
  constexpr uint32_t kChunk = 128;
  pool.run((args.n + kChunk - 1) / kChunk, [&args](int64_t chunk) {
    const uint32_t begin = static_cast<uint32_t>(chunk) * kChunk, end = std::min(args.n, begin + kChunk);
    for (uint32_t i = begin; i < end; ++i) {
      volatile float p = args.to[i] * args.a;
      volatile float q = p + args.from[i];
      args.to[i] = q + args.b;
    }
  });
}

class CpuSubject final : public Subject {
 public:
  Backend& backend() override { return backend_; }
  Launch affine(float* to, const float* from, float a, float b, uint32_t n) override {
    Launch l;
    l.op = "affine";
    l.host = affine_host;
    l.set_args(AffineArgs{to, from, a, b, n});
    return l;
  }

 private:
  cpu::Pool pool_{2};
  CpuBackend backend_{pool_};
};

}  // namespace

Result<std::unique_ptr<Subject>> make_cpu_subject() { return std::unique_ptr<Subject>(std::make_unique<CpuSubject>()); }

}  // namespace vivace::exec::testing
