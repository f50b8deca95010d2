// What a map or a fold computes, and over what: plain data that both backends take.
#pragma once
#include "vivace/kernels/map/types.h"

namespace vivace::kernels {

enum class Rule : uint8_t { number, real, wide, whole, shift, same, test, real_test, truth, long_bits };

/// Whether functions of a rule compute in this type.
VV_HD constexpr bool takes(Rule r, Elem e) {
  switch (r) {
    case Rule::number:
    case Rule::test:
      return has_arithmetic(e) && e != Elem::boolean;
    case Rule::real:
    case Rule::real_test:
      return is_real(e);
    case Rule::wide:
      return e == Elem::f32 || e == Elem::f64;
    case Rule::whole:
      return e == Elem::boolean || is_integer(e);
    case Rule::shift:
      return is_integer(e);
    case Rule::same:
      return has_arithmetic(e);
    case Rule::truth:
      return e == Elem::boolean;
    case Rule::long_bits:
      return e == Elem::u64;
  }
  return false;
}
VV_HD constexpr bool gives_truth(Rule r) {
  return r == Rule::same || r == Rule::test || r == Rule::real_test || r == Rule::truth;
}

/// The functions of ufuncs.def, then those that are not of one type.
enum class Func : uint8_t {
#define UFUNC(name, arity, rule, expression) name,
#include "vivace/kernels/map/ufuncs.def"
#undef UFUNC
  cast,    // of step.from to step.type
  select,  // x ? y : w, of step.type
};
#define UFUNC(name, arity, rule, expression) +1
inline constexpr int kFuncCount = 0
#include "vivace/kernels/map/ufuncs.def"
    ;
#undef UFUNC

inline constexpr int kMaxOperands = 8, kMaxSteps = 48, kMapRank = 6;
inline constexpr uint8_t kIndex = 255;  // as an operand of a step: the output element's number, i64

/// One function applied to registers. Registers 0 to kMaxOperands - 1 are the operands; step i writes register
/// kMaxOperands + i.
struct MapStep {
  Func func;
  Elem type;  // what it computes in
  Elem from;  // cast: what it reads
  uint8_t in[3];
};

/// A straight line of steps; the last one's register is the value.
struct MapProgram {
  int operands = 0, steps = 0;
  bool index = false;  // some step reads kIndex: the output is dense then
  Elem operand[kMaxOperands] = {};
  MapStep step[kMaxSteps] = {};
  Elem result = Elem::f32;
};

/// Where a program runs: axes outermost first, strides in elements (0 and negative allowed).
struct MapSpace {
  int rank = 0;
  int64_t dim[kMapRank] = {};
  int64_t in_stride[kMaxOperands][kMapRank] = {};
  int64_t out_stride[kMapRank] = {};
  const void* in[kMaxOperands] = {};
  void* out = nullptr;
};

enum class Fold : uint8_t { sum, prod, max, min, any, all, argmax, argmin };

struct Joining;
/// How a fold joins: by a kind, or by a program of one's own.
struct How {
  Fold kind = Fold::sum;
  const Joining* own = nullptr;
};

/// A fold's space: the first `kept` axes of `space` stay, the others are folded. `space.out` and its strides speak of
/// the kept axes alone.
struct FoldSpace {
  MapSpace space;
  int kept = 0;
};

/// A value of any arithmetic type, bit for bit: scalars keep the sign of zero.
union Scalar {
  uint64_t bits;
  bool b;
  int64_t i;
  uint64_t u;
  float f;
  double d;
  uint16_t h;
};

/// Two values to one, associative and commutative: operands 0 and 1 of `combine`, the others are constants. Values,
/// result and identity are of one type, combine.result.
struct Joining {
  MapProgram combine;
  Scalar constant[kMaxOperands];
  Scalar identity;
};

}  // namespace vivace::kernels
