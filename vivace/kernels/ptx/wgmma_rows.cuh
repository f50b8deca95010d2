// wgmma whose first factor lies in registers and whose second is read along its rows: what multiplies
// attention weights with values.
#pragma once
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels::ptx {

/// What the tensor core reads as 16 rows of K, columns of N in panels of 64 elements (rows of 128 bytes,
/// swizzled in groups of 8 rows of 1024 bytes, aligned); `panel` bytes from one panel to the next.
__device__ __forceinline__ uint64_t wgmma_rows(uint32_t address, uint32_t panel) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupBytes = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupBytes | uint64_t{(panel & 0x3ffffu) >> 4} << 16 | ((address & 0x3ffffu) >> 4);
}

/// d (64 x N) += A (64 x 16, registers as in mma16816 for each warp's 16 rows) times B (16 x N, wgmma_rows()).
template <class T, int N>
struct WgmmaRows;

// The instruction names every register, so each width N is a row of the table below, as in wgmma.cuh.
#define VV_REG0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define VV_REG1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VV_REG2 "%32, %33, %34, %35, %36, %37, %38, %39"
#define VV_REG3                                                                                                      \
  ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
  "%62, %63"
#define VV_REG4                                                                                                    \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define VV_REG5                                                                                                    \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, " \
  "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define VV_ACC8(i)                                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define VV_ACC32 VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24)
#define VV_ACC40 VV_ACC32, VV_ACC8(32)
#define VV_ACC64 VV_ACC40, VV_ACC8(40), VV_ACC8(48), VV_ACC8(56)
#define VV_ACC128 \
  VV_ACC64, VV_ACC8(64), VV_ACC8(72), VV_ACC8(80), VV_ACC8(88), VV_ACC8(96), VV_ACC8(104), VV_ACC8(112), VV_ACC8(120)

#define VV_WGMMA_ROWS(T, N, type, registers, a0, a1, a2, a3, b_at, ...)                                       \
  template <>                                                                                                 \
  struct WgmmaRows<T, N> {                                                                                    \
    __device__ __forceinline__ static void run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {       \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" registers "}, {%" #a0 \
                   ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", 1, 1, 1, 1;"                                 \
                   : __VA_ARGS__                                                                              \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                     \
    }                                                                                                         \
  };
#define VV_WGMMA_ROWS_WIDTH(N, ...)             \
  VV_WGMMA_ROWS(bf16, N, "bf16", __VA_ARGS__)    \
  VV_WGMMA_ROWS(f16, N, "f16", __VA_ARGS__)

VV_WGMMA_ROWS_WIDTH(64, VV_REG0 ", " VV_REG1, 32, 33, 34, 35, 36, VV_ACC32)
VV_WGMMA_ROWS_WIDTH(80, VV_REG0 ", " VV_REG1 ", " VV_REG2, 40, 41, 42, 43, 44, VV_ACC40)
VV_WGMMA_ROWS_WIDTH(128, VV_REG0 ", " VV_REG1 ", " VV_REG2 VV_REG3, 64, 65, 66, 67, 68, VV_ACC64)
VV_WGMMA_ROWS_WIDTH(256, VV_REG0 ", " VV_REG1 ", " VV_REG2 VV_REG3 ", " VV_REG4 ", " VV_REG5, 128, 129, 130, 131, 132,
                    VV_ACC128)

#undef VV_WGMMA_ROWS_WIDTH
#undef VV_WGMMA_ROWS
#undef VV_ACC8
#undef VV_ACC32
#undef VV_ACC40
#undef VV_ACC64
#undef VV_ACC128
#undef VV_REG0
#undef VV_REG1
#undef VV_REG2
#undef VV_REG3
#undef VV_REG4
#undef VV_REG5

}  // namespace vivace::kernels::ptx
