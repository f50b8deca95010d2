// Arguments of `moe_route`, shared by the CPU and CUDA kernels. POD; see vivace/ops/moe_route.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct MoeRouteArgs {
  const void* logits;    // [T, E] dtype
  float* weights;        // [T, K]
  int32_t* place;        // [T, K] row of each choice once choices are sorted by expert
  int32_t* token;        // [T * K] token of each sorted row
  int32_t* offsets;      // [E + 1] first sorted row of each expert, then their count
  const int32_t* rows;   // [1] device-side T, or null
  int64_t logits_stride, weights_stride, place_stride;  // elements a row
  int32_t T, E, K;
  bool renormalize;
  bool shared;  // the last expert is no candidate: always chosen, as the last of the K
  DType dtype;

  VV_HD int32_t candidates() const { return shared ? E - 1 : E; }
  VV_HD int32_t drawn() const { return shared ? K - 1 : K; }  // choices among the candidates
};

/// One cluster of blocks routes all tokens; or one warp one token, up to `experts` candidates in registers.
struct MoeRoutePolicy {
  int32_t threads;
  int32_t cluster;      // 1 before Hopper
  int32_t experts = 0;  // else 0
  constexpr bool operator==(const MoeRoutePolicy&) const = default;
  static constexpr int kChoicesOfOne = 32;  // that the warp draws
  constexpr int64_t smem_bytes(int64_t E) const { return experts > 0 ? 0 : (threads / 32 + 2) * E * 4; }
};

}  // namespace vivace::kernels
