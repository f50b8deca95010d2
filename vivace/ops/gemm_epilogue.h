// Which epilogue of gemm_wgmma serves a call: one made for its epilogue, or the one that decides at run time.
#pragma once
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

/// GemmWgmma::epilogue of a call for a tile `p`. The outputs' bits are the same on every way.
inline int32_t gemm_epilogue(const kernels::GemmArgs& a, const kernels::GemmWgmma& p) {
  using namespace kernels;
  const int bytes = info(a.out_dtype).bytes;
  const int64_t columns = a.gated ? a.N / 2 : a.N;
  if (!p.aligned || bytes == 4 || (a.gate != nullptr && a.gate_rows != 1)) return kEpilogueAny;
  const bool paired = a.gated || bytes == 1;  // columns meet in one register where W's rows are loaded in another order
  const bool pieces = a.gated && (p.parts() == 1 || (p.tokens <= 64 && p.slice() % 16 == 0)) && a.gate == nullptr &&
                      a.residual == nullptr;  // what WgmmaGatedPiece serves
  if (paired && p.by_column) return kEpilogueAny;  // no map turns them and pairs them
  if (paired && ((p.direct() && !pieces) || a.N % 16 != 0)) return kEpilogueAny;
  const int vec = p.direct() ? 2 : 16 / bytes;
  if (columns % vec != 0 || !vectorizable(a.out, a.out_stride, a.out_dtype, vec) ||
      !vectorizable(a.residual, a.residual_stride, a.out_dtype, vec))
    return kEpilogueAny;
  int32_t epilogue = kEpilogueFast + kEpilogueActivation * static_cast<int32_t>(a.epilogue);
  if (a.bias != nullptr) epilogue |= kEpilogueBias;
  if (a.w_row_scale != nullptr) epilogue |= kEpilogueRowScales;
  if (a.x_row_scale != nullptr) epilogue |= kEpilogueTokenScales;
  if (a.gate != nullptr) epilogue |= kEpilogueGate;
  if (a.residual != nullptr) epilogue |= kEpilogueResidual;
  if (a.gated) epilogue |= kEpilogueGated;
  return epilogue;
}

}  // namespace vivace::ops
