// wgmma whose first factor is in registers and whose second lies by rows of K (Hopper): what multiplies 8-bit weights
// with values that lie by columns, and weights that were dequantized there.
#pragma once
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels::ptx {

/// d (64 x N, as Wgmma has it) += A (64 x 32 bytes of K; registers as mma.m16n8k32 has them for each warp's 16 rows)
/// times B (N rows of 32 bytes of K, as wgmma_tile() describes them) transposed.
template <class T, int N>
struct WgmmaHeld;

#define VV_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define VV_ACC16(i) VV_ACC4(i), VV_ACC4(i + 4), VV_ACC4(i + 8), VV_ACC4(i + 12)
template <>
struct WgmmaHeld<e4m3, 128> {
  __device__ __forceinline__ static void run(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "
        "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1;"
        : VV_ACC16(0), VV_ACC16(16), VV_ACC16(32), VV_ACC16(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

/// Two bytes from a shared address, in the lower half: such registers in the making. In the order of products.
__device__ __forceinline__ uint32_t load_half_word(uint32_t from) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from));
  return v;
}

/// One byte, likewise; and four.
__device__ __forceinline__ uint32_t load_byte(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from));
  return v;
}
__device__ __forceinline__ uint32_t load_word(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
  return v;
}

/// WgmmaHeld of 16 bf16 of K, 32 bytes too; registers as mma16816 has them.
#define VV_WGMMA_HELD(N, registers, a0, a1, a2, a3, b_at, ...)                                                 \
  template <>                                                                                                  \
  struct WgmmaHeld<bf16, N> {                                                                                  \
    __device__ __forceinline__ static void run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {        \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" registers "}, {%" #a0 ", %" #a1 \
                   ", %" #a2 ", %" #a3 "}, %" #b_at ", 1, 1, 1, 0;"                                             \
                   : __VA_ARGS__                                                                               \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
    }                                                                                                          \
    /* d = A times B */                                                                                        \
    __device__ __forceinline__ static void begin(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {      \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" registers "}, {%" #a0 ", %" #a1 \
                   ", %" #a2 ", %" #a3 "}, %" #b_at ", 0, 1, 1, 0;"                                             \
                   : __VA_ARGS__                                                                               \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
    }                                                                                                          \
  };
#define VV_REG0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define VV_REG1 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VV_REG2                                                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define VV_REG3 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
VV_WGMMA_HELD(8, "%0, %1, %2, %3", 4, 5, 6, 7, 8, VV_ACC4(0))
VV_WGMMA_HELD(16, "%0, %1, %2, %3, %4, %5, %6, %7", 8, 9, 10, 11, 12, VV_ACC4(0), VV_ACC4(4))
VV_WGMMA_HELD(32, VV_REG0, 16, 17, 18, 19, 20, VV_ACC16(0))
VV_WGMMA_HELD(64, VV_REG0 VV_REG1, 32, 33, 34, 35, 36, VV_ACC16(0), VV_ACC16(16))
VV_WGMMA_HELD(128, VV_REG0 VV_REG1 VV_REG2, 64, 65, 66, 67, 68, VV_ACC16(0), VV_ACC16(16), VV_ACC16(32), VV_ACC16(48))
VV_WGMMA_HELD(256, VV_REG0 VV_REG1 VV_REG2 VV_REG3, 128, 129, 130, 131, 132, VV_ACC16(0), VV_ACC16(16), VV_ACC16(32),
              VV_ACC16(48), VV_ACC16(64), VV_ACC16(80), VV_ACC16(96), VV_ACC16(112))
#undef VV_WGMMA_HELD
#undef VV_REG0
#undef VV_REG1
#undef VV_REG2
#undef VV_REG3
#undef VV_ACC4
#undef VV_ACC16

}  // namespace vivace::kernels::ptx
