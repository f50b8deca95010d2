// Arguments of `lstm_cell`, shared by the CPU and CUDA kernels. POD; see vivace/ops/lstm_cell.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct LstmCellArgs {
  const float* gates;   // [T, 4 H]: input, forget, cell, output
  float* cell;          // [T, H]
  float* out;           // [T, H]
  const int32_t* rows;  // [1] device-side T, or null
  int64_t gates_stride, cell_stride, out_stride;
  int32_t T, H;
};

/// A block takes a row, a thread some of its cells.
struct LstmCellPolicy {
  int32_t threads;
  constexpr bool operator==(const LstmCellPolicy&) const = default;
};

}  // namespace vivace::kernels
