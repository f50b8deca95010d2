#include "vivace/cpu/map/block.h"

namespace vivace::cpu {

using kernels::kIndex;
using kernels::kMaxOperands;
using kernels::MapStep;

int elem_bytes(Elem e) {
  switch (e) {
    case Elem::boolean:
    case Elem::u8:
    case Elem::i8:
      return 1;
    case Elem::u16:
    case Elem::i16:
    case Elem::f16:
    case Elem::bf16:
      return 2;
    case Elem::u32:
    case Elem::i32:
    case Elem::f32:
      return 4;
    case Elem::u64:
    case Elem::i64:
    case Elem::f64:
      return 8;
    default:
      return 1;
  }
}

Evaluator::Evaluator(const kernels::MapProgram& program)
    : program_(program), steps_(program.steps), index_(program.index) {
  for (int i = 0; i < steps_; ++i) {
    const MapStep& s = program.step[i];
    loops_[i] = s.func == Func::cast     ? cast_loop(s.from, s.type)
                : s.func == Func::select ? select_loop(elem_bytes(s.type))
                                         : loop_of(s.func, s.type);
  }
  if (steps_ == 0) copy_ = copy_loop(elem_bytes(program.result));
}

void Evaluator::eval(int64_t n, const char* const* in, const int64_t* in_stride, int64_t index, int64_t index_step,
                     char* out, int64_t out_stride, char* scratch) const {
  if (steps_ == 0) return copy_(n, in, in_stride, out, out_stride);
  if (index_) {
    auto* const numbers = reinterpret_cast<int64_t*>(scratch + static_cast<size_t>(steps_) * kBlock * 8);
    for (int64_t i = 0; i < n; ++i) numbers[i] = index + i * index_step;
  }
  const auto width = [&](int step) {
    const MapStep& s = program_.step[step];
    bool truth = false;
    switch (s.func) {
#define UFUNC(name, arity, rule, expression)  \
  case Func::name:                            \
    truth = kernels::gives_truth(Rule::rule); \
    break;
#include "vivace/kernels/map/ufuncs.def"
#undef UFUNC
      default:
        break;
    }
    return truth ? 1 : elem_bytes(s.type);
  };
  for (int i = 0; i < steps_; ++i) {
    const char* p[3];
    int64_t s[3];
    for (int k = 0; k < 3; ++k) {
      const uint8_t r = program_.step[i].in[k];
      if (r == kIndex)
        p[k] = scratch + static_cast<size_t>(steps_) * kBlock * 8, s[k] = 8;
      else if (r < kMaxOperands)
        p[k] = in[r], s[k] = in_stride[r];
      else
        p[k] = scratch + static_cast<size_t>(r - kMaxOperands) * kBlock * 8, s[k] = width(r - kMaxOperands);
    }
    if (i + 1 == steps_)
      loops_[i](n, p, s, out, out_stride);
    else
      loops_[i](n, p, s, scratch + static_cast<size_t>(i) * kBlock * 8, width(i));
  }
}

char* thread_scratch(size_t bytes) {
  thread_local std::unique_ptr<char[]> held;
  thread_local size_t have = 0;
  if (have < bytes) {
    held = std::make_unique<char[]>(bytes);
    have = bytes;
  }
  return held.get();
}

}  // namespace vivace::cpu
