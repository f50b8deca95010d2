// The loops behind loops.h, for the files that instantiate them.
#pragma once
#include "vivace/cpu/map/loops.h"

namespace vivace::cpu {
namespace {

namespace math = kernels::math;

#define UFUNC(name, arity, rule, expression)                                                   \
  struct Of_##name {                                                                           \
    template <class T>                                                                         \
    static inline auto run([[maybe_unused]] T x, [[maybe_unused]] T y, [[maybe_unused]] T w) { \
      return expression;                                                                       \
    }                                                                                          \
  };
#include "vivace/kernels/map/ufuncs.def"
#undef UFUNC

/// kDense: bit i set where operand i walks densely; the others of the mask stand still. 8: any strides.
template <class F, int kArity, Elem E, Elem Out, int kDense>
inline void run(int64_t n, const char* const* in, const int64_t* s, char* out, int64_t so) {
  using C = typename Stored<E>::C;
  constexpr int64_t kIn = sizeof(typename Stored<E>::S), kOut = sizeof(typename Stored<Out>::S);
  constexpr bool kAny = kDense == 8;
  const int64_t s0 = kAny ? s[0] : kDense & 1 ? kIn : 0;
  const int64_t s1 = kArity < 2 ? 0 : kAny ? s[1] : kDense & 2 ? kIn : 0;
  const int64_t s2 = kArity < 3 ? 0 : kAny ? s[2] : kDense & 4 ? kIn : 0;
  const int64_t step = kAny ? so : kOut;
  const C x0 = !kAny && !(kDense & 1) ? load<E>(in[0]) : C{};
  const C y0 = kArity > 1 && !kAny && !(kDense & 2) ? load<E>(in[1]) : C{};
  const C w0 = kArity > 2 && !kAny && !(kDense & 4) ? load<E>(in[2]) : C{};
  const char *const a = in[0], *const b = kArity > 1 ? in[1] : nullptr, *const c = kArity > 2 ? in[2] : nullptr;
  for (int64_t i = 0; i < n; ++i) {
    C x = x0, y = y0, w = w0;
    if constexpr (kAny || (kDense & 1)) x = load<E>(a + i * s0);
    if constexpr (kArity > 1 && (kAny || (kDense & 2))) y = load<E>(b + i * s1);
    if constexpr (kArity > 2 && (kAny || (kDense & 4))) w = load<E>(c + i * s2);
    store<Out>(out + i * step, static_cast<typename Stored<Out>::C>(F::run(x, y, w)));
  }
}

template <class F, int kArity, Elem E, Elem Out>
void loop(int64_t n, const char* const* in, const int64_t* s, char* out, int64_t so) {
  constexpr int64_t kIn = sizeof(typename Stored<E>::S), kOut = sizeof(typename Stored<Out>::S);
  if (so == kOut) {
    if constexpr (kArity == 1) {
      if (s[0] == kIn) return run<F, kArity, E, Out, 1>(n, in, s, out, so);
    } else if constexpr (kArity == 2) {
      const int dense = (s[0] == kIn ? 1 : s[0] == 0 ? 0 : 8) + (s[1] == kIn ? 2 : s[1] == 0 ? 0 : 8);
      if (dense == 3) return run<F, kArity, E, Out, 3>(n, in, s, out, so);
      // A copy of the still operand: the output may lie on it.
      if (dense == 1) return run<F, kArity, E, Out, 1>(n, in, s, out, so);
      if (dense == 2) return run<F, kArity, E, Out, 2>(n, in, s, out, so);
    }
  }
  run<F, kArity, E, Out, 8>(n, in, s, out, so);
}

template <class F, int kArity, Rule kRule, Elem E>
constexpr Loop pick() {
  if constexpr (!kernels::takes(kRule, E))
    return nullptr;
  else if constexpr (kernels::gives_truth(kRule))
    return &loop<F, kArity, E, Elem::boolean>;
  else
    return &loop<F, kArity, E, E>;
}

template <Elem E>
Loop column(Func f) {
  static constexpr Loop kLoops[kernels::kFuncCount] = {
#define UFUNC(name, arity, rule, expression) pick<Of_##name, arity, Rule::rule, E>(),
#include "vivace/kernels/map/ufuncs.def"
#undef UFUNC
  };
  return kLoops[static_cast<int>(f)];
}

}  // namespace
}  // namespace vivace::cpu
