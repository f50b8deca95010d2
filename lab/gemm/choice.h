// What the op chooses for a product: the shipped table's tile, or the model's where it has no row.
#pragma once
#include <cstring>

#include "vivace/ops/gemm_table.h"

namespace lab {

/// `fast`: an e4m3 product whose sums stay in the tensor core, which the table does not hold.
inline vivace::kernels::GemmWgmma op_choice(bool e4m3, bool fast, int64_t M, int64_t N, int64_t K) {
  using vivace::ops::GemmTiles;
  struct Row {
    const char* dtype;
    int N, K, T;
    GemmTiles::Layout layout;
  };
  static constexpr Row kRows[] = {
#define ROW(dtype, N, K, T, rows, tokens, multicast_x, multicast_w, us) \
  {#dtype, N, K, T, {rows, tokens, multicast_x, multicast_w}},
#include "vivace/ops/gemm_rows.inc"
#undef ROW
  };
  const bool promote = e4m3 && !fast;
  const int64_t k_bytes = K * (e4m3 ? 1 : 2);
  vivace::kernels::GemmWgmma p = GemmTiles::pick(M, N, k_bytes, promote);
  for (const Row& r : kRows)  // by T: the first that holds M
    if (!fast && std::strcmp(r.dtype, e4m3 ? "e4m3" : "bf16") == 0 && r.N == N && r.K == K && r.T >= M) {
      if (vivace::ops::GemmRow{.T = r.T}.serves(M)) p = GemmTiles::laid(r.layout, M, N, k_bytes, promote);
      break;
    }
  p.epilogue = vivace::kernels::kEpilogueFast;
  return GemmTiles::fill(p);
}

}  // namespace lab
