#include "vivace/cpu/simd/isa.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "vivace/base/check.h"

namespace vivace::cpu {
namespace {

constexpr Isa kLevels[] = {Isa::portable, Isa::avx2, Isa::avx512};

Isa best() {
  Isa isa = Isa::portable;
  for (Isa level : kLevels)
    if (has(level)) isa = level;
  return isa;
}

struct Choice {
  Isa isa;
  Status status;
};

Choice choose() {
  const char* wanted = std::getenv("VIVACE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return {best(), {}};
  for (Isa level : kLevels) {
    if (std::strcmp(wanted, name(level)) != 0) continue;
    if (has(level)) return {level, {}};
    return {best(),
            Status(Code::kUnsupported, strf("VIVACE_CPU_ISA=%s: this CPU or build lacks it; the best level here is %s",
                                            wanted, name(best())))};
  }
  return {best(),
          Status(Code::kInvalidArgument, strf("VIVACE_CPU_ISA=%s is no level; use portable, avx2 or avx512", wanted))};
}

const Choice& choice() {
  static const Choice c = choose();
  return c;
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{choice().isa};
  return isa;
}

}  // namespace

const char* name(Isa isa) {
  switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  return "?";
}

bool has(Isa isa) {
  if (isa == Isa::portable) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

Isa isa() { return current().load(std::memory_order_relaxed); }
Status check_isa() { return choice().status; }

ScopedIsa::ScopedIsa(Isa level) : before_(isa()) { current().store(level); }
ScopedIsa::~ScopedIsa() { current().store(before_); }

}  // namespace vivace::cpu
