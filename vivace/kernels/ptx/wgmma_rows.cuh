// wgmma whose first factor lies in registers and whose second is read along its rows: what multiplies
// attention weights with values.
#pragma once
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels::ptx {

/// What the tensor unit reads as 16 rows of K, columns of N in panels of 64 elements (rows of 128 bytes,
/// swizzled in groups of 8 rows of 1024 bytes, aligned); `panel` bytes from one panel to the next.
__device__ __forceinline__ uint64_t wgmma_rows(uint32_t address, uint32_t panel) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupBytes = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupBytes | uint64_t{(panel & 0x3ffffu) >> 4} << 16 | ((address & 0x3ffffu) >> 4);
}

/// Shared memory that ordinary stores and cp.async have written, for the tensor unit: by each writing
/// thread, before the barrier.
__device__ __forceinline__ void tensor_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// d (64 x N) += A (64 x 16, registers as in mma16816 for each warp's 16 rows) times B (16 x N, wgmma_rows()).
template <class T, int N>
struct WgmmaRows;

#define VV_ACC8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
template <>
struct WgmmaRows<bf16, 64> {
  __device__ __forceinline__ static void run(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 "
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct WgmmaRows<bf16, 128> {
  __device__ __forceinline__ static void run(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40), VV_ACC8(48), VV_ACC8(56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct WgmmaRows<bf16, 256> {
  __device__ __forceinline__ static void run(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127 "
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40), VV_ACC8(48), VV_ACC8(56), VV_ACC8(64), VV_ACC8(72), VV_ACC8(80), VV_ACC8(88), VV_ACC8(96), VV_ACC8(104), VV_ACC8(112), VV_ACC8(120)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct WgmmaRows<f16, 64> {
  __device__ __forceinline__ static void run(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 "
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct WgmmaRows<f16, 128> {
  __device__ __forceinline__ static void run(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40), VV_ACC8(48), VV_ACC8(56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct WgmmaRows<f16, 256> {
  __device__ __forceinline__ static void run(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127 "
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40), VV_ACC8(48), VV_ACC8(56), VV_ACC8(64), VV_ACC8(72), VV_ACC8(80), VV_ACC8(88), VV_ACC8(96), VV_ACC8(104), VV_ACC8(112), VV_ACC8(120)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
#undef VV_ACC8

}  // namespace vivace::kernels::ptx
