// Evaluates a program over one block: what map and fold share.
#pragma once
#include <memory>

#include "vivace/cpu/map/loops.h"

namespace vivace::cpu {

inline constexpr int64_t kBlock = 512;  // elements of a block: a register is 4 KiB at most

int elem_bytes(Elem e);

/// The loops of a program, found once a call.
class Evaluator {
 public:
  explicit Evaluator(const kernels::MapProgram& program);
  /// The scratch that eval() wants, for one thread.
  size_t scratch_bytes() const { return static_cast<size_t>(steps_ + 1) * kBlock * 8; }
  /// A program that only reads operand 0 as it is: no step at all.
  bool plain() const { return steps_ == 0; }
  /// Whether blocks may be longer than kBlock: nothing is kept between steps.
  bool single() const { return steps_ <= 1 && !index_; }
  /// n values at in[] (strides in bytes) to out; `index`, `index_step`: what kIndex reads.
  void eval(int64_t n, const char* const* in, const int64_t* in_stride, int64_t index, int64_t index_step, char* out,
            int64_t out_stride, char* scratch) const;

 private:
  const kernels::MapProgram& program_;
  int steps_;
  bool index_;
  Loop loops_[kernels::kMaxSteps];
  Loop copy_ = nullptr;
};

/// Memory of this thread, kept between calls.
char* thread_scratch(size_t bytes);

}  // namespace vivace::cpu
