// wgmma both of whose factors lie in shared memory and whose first is read along its columns: what multiplies values,
// turned, with attention weights.
#pragma once
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels::ptx {

/// d (64 x N, as Wgmma has it, + where `add`) = A (64 x 16: 16 rows of K, as wgmma_rows() describes 64 columns) times
/// B (N rows of 32 bytes of K, as wgmma_tile() describes them) transposed.
template <class T, int N>
struct WgmmaColumns;

#define VV_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define VV_WGMMA_COLUMNS(T, N, type, registers, a_at, b_at, add_at, ...)                                           \
  template <>                                                                                                      \
  struct WgmmaColumns<T, N> {                                                                                      \
    __device__ __forceinline__ static void run(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) {              \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #add_at ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #N \
                   "k16"                                                                                           \
                   ".f32." type "." type " {" registers "}, %" #a_at ", %" #b_at ", p, 1, 1, 1, 0;\n\t}"           \
                   : __VA_ARGS__                                                                                   \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                  \
    }                                                                                                              \
  };
#define VV_WGMMA_COLUMNS_WIDTH(N, ...)             \
  VV_WGMMA_COLUMNS(bf16, N, "bf16", __VA_ARGS__)    \
  VV_WGMMA_COLUMNS(f16, N, "f16", __VA_ARGS__)

VV_WGMMA_COLUMNS_WIDTH(8, "%0, %1, %2, %3", 4, 5, 6, VV_ACC4(0))
VV_WGMMA_COLUMNS_WIDTH(16, "%0, %1, %2, %3, %4, %5, %6, %7", 8, 9, 10, VV_ACC4(0), VV_ACC4(4))
VV_WGMMA_COLUMNS_WIDTH(32, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", 16, 17, 18,
                       VV_ACC4(0), VV_ACC4(4), VV_ACC4(8), VV_ACC4(12))

#undef VV_WGMMA_COLUMNS_WIDTH
#undef VV_WGMMA_COLUMNS
#undef VV_ACC4

}  // namespace vivace::kernels::ptx
