// Arguments of `norm`, shared by the CPU and CUDA kernels. POD; see vivace/ops/norm.h for the formula.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

enum class NormKind : int32_t { rms, layer };

struct NormArgs {
  const void* x;         // [T, H] x_dtype
  void* residual;        // [T, H] x_dtype, updated in place; or null
  const void* gate;      // [R, H] x_dtype or null
  const void* weight;    // [H] w_dtype or null
  const void* bias;      // [H] w_dtype or null
  const void* scale;     // [R, H] x_dtype or null
  const void* shift;     // [R, H] x_dtype or null
  const int32_t* ada_row;  // [T] row of gate/scale/shift for each token, or null: row min(t, R-1)
  void* out;             // [T, H] out_dtype
  const float* out_scale;  // [1] static quantization scale, or null
  float* row_scale;        // [T] dynamic quantization scale, written; or null
  const int32_t* rows;     // [1] device-side T, or null
  int64_t x_stride, residual_stride, out_stride, gate_stride, scale_stride, shift_stride;  // elements a row
  int32_t T, H, R;
  float eps;
  NormKind kind;
  bool weight_plus_one;  // multiply by (1 + w), Gemma's convention
  DType x_dtype, w_dtype, out_dtype;
};

inline constexpr int kNormGroup = 8;  // consecutive elements that one thread takes together
inline constexpr uint32_t kNormFewRows = 132;  // up to here, one for each SM of the largest chips, latency decides

/// One thread block a row. Which thread sums which group, and so every bit of the result, follows from
/// threads and items alone, which follow from H alone: the same row gives the same bits in any place.
struct NormPolicy {
  int32_t threads;  // a block
  int32_t items;    // groups a thread keeps in registers: rows of up to threads * items * 8; 0 re-reads the row
  bool aligned;     // groups are whole and aligned: 16-byte accesses; else element by element
  bool plain;  // at most a residual, a weight, the bias of a layer norm and a row's scale: no gate, no adaptive rows
  // What only plain kernels ask here; the others look at the arguments. The arithmetic is the same.
  bool residual;    // there is one
  bool early;  // the weight is asked for before the reduction: shorter for few rows, slower for many; always in layer
               // norm and with a row's scale
  bool layer;       // the mean is taken off, and there may be a bias
  bool scaled;      // there is a row_scale
  constexpr bool operator==(const NormPolicy&) const = default;
  constexpr int64_t capacity() const { return int64_t{threads} * items * kNormGroup; }
};

}  // namespace vivace::kernels
