// One row of `norm`, for the ops that end in it.
#pragma once
#include "vivace/kernels/norm/norm.h"

namespace vivace::cpu {

/// Row t into a.out, all of what norm writes.
void norm_row(const kernels::NormArgs& a, int64_t t);

}  // namespace vivace::cpu
