// Products of a warpgroup (Hopper): 128 threads multiply tiles that lie in shared memory, asynchronously.
#pragma once
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels::ptx {

/// What the tensor unit reads: rows of 128 bytes of K, swizzled in groups of 8 rows (1024 bytes, aligned).
/// `address` is the tile's, or 32 bytes further for each 32 bytes of K.
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupBytes = uint64_t{1024 >> 4} << 32, kLeading = uint64_t{1} << 16;  // leading: unused here
  return kSwizzle128 | kGroupBytes | kLeading | ((address & 0x3ffffu) >> 4);
}

/// Before the first product that uses registers which other instructions have written.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most kLeft groups are unfinished. The accumulators pass through, so that no use moves ahead of it.
template <int kLeft, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&d)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// d (64 x N, + where `add`) = A (64 rows) times B (N rows) transposed, over 32 bytes of K. Warp w of the
/// group holds rows 16 w ..; lane i, g = i / 4, c = i % 4: d[4 j], d[4 j + 1] row g, columns 8 j + 2 c and
/// + 1; d[4 j + 2], d[4 j + 3] row g + 8.
template <class T, int N>
struct Wgmma;

#define VV_ACC8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
template <>
struct Wgmma<bf16, 64> {
  __device__ __forceinline__ static void run(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 "
                 "}, %32, %33, p, 1, 1, 0, 0;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
template <>
struct Wgmma<bf16, 96> {
  __device__ __forceinline__ static void run(float (&d)[48], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %50, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47 "
                 "}, %48, %49, p, 1, 1, 0, 0;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
template <>
struct Wgmma<bf16, 128> {
  __device__ __forceinline__ static void run(float (&d)[64], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
                 "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40), VV_ACC8(48), VV_ACC8(56)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
template <>
struct Wgmma<f16, 64> {
  __device__ __forceinline__ static void run(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 "
                 "}, %32, %33, p, 1, 1, 0, 0;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
template <>
struct Wgmma<f16, 96> {
  __device__ __forceinline__ static void run(float (&d)[48], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %50, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47 "
                 "}, %48, %49, p, 1, 1, 0, 0;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
template <>
struct Wgmma<f16, 128> {
  __device__ __forceinline__ static void run(float (&d)[64], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
                 "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40), VV_ACC8(48), VV_ACC8(56)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
template <>
struct Wgmma<e4m3, 64> {
  __device__ __forceinline__ static void run(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 "
                 "}, %32, %33, p, 1, 1;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
template <>
struct Wgmma<e4m3, 96> {
  __device__ __forceinline__ static void run(float (&d)[48], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %50, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47 "
                 "}, %48, %49, p, 1, 1;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
template <>
struct Wgmma<e4m3, 128> {
  __device__ __forceinline__ static void run(float (&d)[64], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
                 "}, %64, %65, p, 1, 1;\n\t}"
                 : VV_ACC8(0), VV_ACC8(8), VV_ACC8(16), VV_ACC8(24), VV_ACC8(32), VV_ACC8(40), VV_ACC8(48), VV_ACC8(56)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};
#undef VV_ACC8

/// Moves registers between the warpgroups of a block that launch bounds cap.
template <int kRegisters>
__device__ __forceinline__ void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters)); }
template <int kRegisters>
__device__ __forceinline__ void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters)); }

}  // namespace vivace::kernels::ptx
