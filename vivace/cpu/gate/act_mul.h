// One row of `act_mul`, for the ops that end in it.
#pragma once
#include "vivace/kernels/gate/act_mul.h"

namespace vivace::cpu {

/// Row t into a.out, all of what act_mul writes.
void act_mul_row(const kernels::ActMulArgs& a, int64_t t);

}  // namespace vivace::cpu
