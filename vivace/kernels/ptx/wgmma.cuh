// Products of a warpgroup (Hopper): 128 threads multiply tiles that lie in shared memory, asynchronously.
#pragma once
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels::ptx {

/// What the tensor core reads: rows of 128 bytes of K, swizzled in groups of 8 rows (1024 bytes, aligned).
/// `address` is the tile's, or 32 bytes further for each 32 bytes of K.
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupBytes = uint64_t{1024 >> 4} << 32,
                     kLeading = uint64_t{1} << 16;  // leading: unused here
  return kSwizzle128 | kGroupBytes | kLeading | ((address & 0x3ffffu) >> 4);
}

/// A descriptor of a tile or of wgmma_rows() `bytes` further on; addresses stay below 2^18, so that nothing carries out
/// of the lower word.
__device__ __forceinline__ uint64_t wgmma_further(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000ull) | (static_cast<uint32_t>(descriptor) + bytes / 16);
}

/// wgmma_tile() from its lower half, which counts 16 bytes; `bytes` further.
__device__ __forceinline__ uint32_t wgmma_address(uint32_t address) { return (address & 0x3ffffu) >> 4 | 1u << 16; }
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t place, int bytes) {
  uint64_t tile;
  asm("mov.b64 %0, {%1, %2};" : "=l"(tile) : "r"(place + (static_cast<uint32_t>(bytes) >> 4)), "n"(0x40000040));
  return tile;
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

/// The same where it is about what the groups have read; nobody looks at their accumulators yet.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

/// d (64 x N, + where `add`) = A (64 rows) times B (N rows) transposed, over 32 bytes of K. Warp w of the
/// group holds rows 16 w ..; lane i, g = i / 4, c = i % 4: d[4 j], d[4 j + 1] row g, columns 8 j + 2 c and
/// + 1; d[4 j + 2], d[4 j + 3] row g + 8. f32 elements are cut to tf32, 10 bits of mantissa. kColumns, of 16-bit
/// elements: A lies turned, as 16 rows of K of 64 elements each, which wgmma_tile() describes too.
template <class T, int N, bool kColumns = false>
struct Wgmma;

// The instruction names every register, so each width N is a row of the table below: its registers in
// asm, the operand numbers of A, B and the predicate, and the registers in C++.
#define VV_REG0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define VV_REG1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VV_REG2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define VV_REG3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define VV_REG4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define VV_REG5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define VV_REG6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define VV_REG7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define VV_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define VV_ACC16(i) VV_ACC4(i), VV_ACC4(i + 4), VV_ACC4(i + 8), VV_ACC4(i + 12)
#define VV_ACC32 VV_ACC16(0), VV_ACC16(16)
#define VV_ACC48 VV_ACC32, VV_ACC16(32)
#define VV_ACC64 VV_ACC48, VV_ACC16(48)
#define VV_ACC80 VV_ACC64, VV_ACC16(64)
#define VV_ACC96 VV_ACC80, VV_ACC16(80)
#define VV_ACC112 VV_ACC96, VV_ACC16(96)
#define VV_ACC128 VV_ACC112, VV_ACC16(112)

#define VV_WGMMA(T, N, columns, shape, types, tail, registers, a_at, b_at, add_at, ...)                          \
  template <>                                                                                                    \
  struct Wgmma<T, N, columns> {                                                                                  \
    __device__ __forceinline__ static void run(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) {            \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #add_at                                              \
                   ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #N shape ".f32" types " {" registers "}, %" #a_at \
                   ", %" #b_at ", p, 1, 1" tail ";\n\t}"                                                         \
                   : __VA_ARGS__                                                                                 \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                \
    }                                                                                                            \
  };
#define VV_WGMMA_WIDTH(N, registers, a_at, b_at, add_at, ...)                                              \
  VV_WGMMA(bf16, N, false, "k16", ".bf16.bf16", ", 0, 0", registers, a_at, b_at, add_at, __VA_ARGS__)       \
  VV_WGMMA(f16, N, false, "k16", ".f16.f16", ", 0, 0", registers, a_at, b_at, add_at, __VA_ARGS__)          \
  VV_WGMMA(bf16, N, true, "k16", ".bf16.bf16", ", 1, 0", registers, a_at, b_at, add_at, __VA_ARGS__)        \
  VV_WGMMA(f16, N, true, "k16", ".f16.f16", ", 1, 0", registers, a_at, b_at, add_at, __VA_ARGS__)           \
  VV_WGMMA(e4m3, N, false, "k32", ".e4m3.e4m3", "", registers, a_at, b_at, add_at, __VA_ARGS__)             \
  VV_WGMMA(float, N, false, "k8", ".tf32.tf32", "", registers, a_at, b_at, add_at, __VA_ARGS__)

VV_WGMMA_WIDTH(8, "%0, %1, %2, %3", 4, 5, 6, VV_ACC4(0))
VV_WGMMA_WIDTH(16, "%0, %1, %2, %3, %4, %5, %6, %7", 8, 9, 10, VV_ACC4(0), VV_ACC4(4))
VV_WGMMA_WIDTH(32, VV_REG0, 16, 17, 18, VV_ACC16(0))
VV_WGMMA_WIDTH(64, VV_REG0 ", " VV_REG1, 32, 33, 34, VV_ACC32)
VV_WGMMA_WIDTH(80, VV_REG0 ", " VV_REG1 ", %32, %33, %34, %35, %36, %37, %38, %39", 40, 41, 42, VV_ACC32, VV_ACC4(32),
               VV_ACC4(36))
VV_WGMMA_WIDTH(96, VV_REG0 ", " VV_REG1 ", " VV_REG2, 48, 49, 50, VV_ACC48)
VV_WGMMA_WIDTH(128, VV_REG0 ", " VV_REG1 ", " VV_REG2 ", " VV_REG3, 64, 65, 66, VV_ACC64)
VV_WGMMA_WIDTH(144, VV_REG0 ", " VV_REG1 ", " VV_REG2 ", " VV_REG3 ", %64, %65, %66, %67, %68, %69, %70, %71", 72, 73,
               74, VV_ACC64, VV_ACC4(64), VV_ACC4(68))
VV_WGMMA_WIDTH(160, VV_REG0 ", " VV_REG1 ", " VV_REG2 ", " VV_REG3 ", " VV_REG4, 80, 81, 82, VV_ACC80)
VV_WGMMA_WIDTH(176,
               VV_REG0 ", " VV_REG1 ", " VV_REG2 ", " VV_REG3 ", " VV_REG4 ", %80, %81, %82, %83, %84, %85, %86, %87",
               88, 89, 90, VV_ACC80, VV_ACC4(80), VV_ACC4(84))
VV_WGMMA_WIDTH(192, VV_REG0 ", " VV_REG1 ", " VV_REG2 ", " VV_REG3 ", " VV_REG4 ", " VV_REG5, 96, 97, 98, VV_ACC96)
VV_WGMMA_WIDTH(208,
               VV_REG0 ", " VV_REG1 ", " VV_REG2 ", " VV_REG3 ", " VV_REG4 ", " VV_REG5
                       ", %96, %97, %98, %99, %100, %101, %102, %103",
               104, 105, 106, VV_ACC96, VV_ACC4(96), VV_ACC4(100))
VV_WGMMA_WIDTH(224, VV_REG0 ", " VV_REG1 ", " VV_REG2 ", " VV_REG3 ", " VV_REG4 ", " VV_REG5 ", " VV_REG6, 112, 113,
               114, VV_ACC112)
VV_WGMMA_WIDTH(256, VV_REG0 ", " VV_REG1 ", " VV_REG2 ", " VV_REG3 ", " VV_REG4 ", " VV_REG5 ", " VV_REG6 ", " VV_REG7,
               128, 129, 130, VV_ACC128)

#undef VV_WGMMA_WIDTH
#undef VV_WGMMA
#undef VV_ACC4
#undef VV_ACC16
#undef VV_ACC32
#undef VV_ACC48
#undef VV_ACC64
#undef VV_ACC80
#undef VV_ACC96
#undef VV_ACC112
#undef VV_ACC128
#undef VV_REG0
#undef VV_REG1
#undef VV_REG2
#undef VV_REG3
#undef VV_REG4
#undef VV_REG5
#undef VV_REG6
#undef VV_REG7

/// Moves registers between the warpgroups of a block that launch bounds cap.
template <int kRegisters>
__device__ __forceinline__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace vivace::kernels::ptx
