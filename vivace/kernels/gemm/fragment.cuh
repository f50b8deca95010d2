// Sixteen bytes of K a lane, as operands of the tensor cores. Shared by the gemm tactics, whose sums agree
// bit for bit where they feed the same words in the same order.
#pragma once
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mma.cuh"

namespace vivace::kernels {

/// Four lanes hold one row's 4 * kElems consecutive elements, 16 bytes each. The tensor cores see them
/// permuted: product j takes words 2 j and 2 j + 1 of every lane, on both sides alike.
template <class T>
struct Fragment {  // bf16 and f16: the words as they are
  using Mma = T;
  static constexpr int kElems = 8, kProducts = 2;
  uint32_t w[4];
  __device__ __forceinline__ explicit Fragment(uint4 v) : w{v.x, v.y, v.z, v.w} {}
  __device__ __forceinline__ uint32_t low(int j) const { return w[2 * j]; }
  __device__ __forceinline__ uint32_t high(int j) const { return w[2 * j + 1]; }
};
template <>
struct Fragment<float> {  // the tensor cores cut them to tf32
  using Mma = float;
  static constexpr int kElems = 4, kProducts = 2;
  uint32_t w[4];
  __device__ __forceinline__ explicit Fragment(uint4 v) : w{v.x, v.y, v.z, v.w} {}
  __device__ __forceinline__ uint32_t low(int j) const { return w[2 * j]; }
  __device__ __forceinline__ uint32_t high(int j) const { return w[2 * j + 1]; }
};
template <>
struct Fragment<e4m3> {  // multiplied as f16, which holds every e4m3 and every product of two
  using Mma = f16;
  static constexpr int kElems = 16, kProducts = 4;
  uint32_t w[8];
  __device__ __forceinline__ explicit Fragment(uint4 v) {
    ptx::upcast_e4m3(v.x, w[0], w[1]);
    ptx::upcast_e4m3(v.y, w[2], w[3]);
    ptx::upcast_e4m3(v.z, w[4], w[5]);
    ptx::upcast_e4m3(v.w, w[6], w[7]);
  }
  __device__ __forceinline__ uint32_t low(int j) const { return w[2 * j]; }
  __device__ __forceinline__ uint32_t high(int j) const { return w[2 * j + 1]; }
};

/// d += 16 rows (lanes' rows g in `top`, g + 8 in `bottom`) times 8 columns, over these bytes of K.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], const Fragment<T>& top, const Fragment<T>& bottom,
                                         const Fragment<T>& columns) {
#pragma unroll
  for (int j = 0; j < Fragment<T>::kProducts; ++j)
    ptx::mma_words<typename Fragment<T>::Mma>(d, top.low(j), bottom.low(j), top.high(j), bottom.high(j), columns.low(j),
                                              columns.high(j));
}

/// 16 bytes of elements k .. of a row into shared memory: one copy, or element by element where the
/// alignment or the length allows no more. Not `valid`: zeros, and nothing is read.
template <class T, bool kAligned>
__device__ __forceinline__ void fetch16(uint4* to, const T* row, int64_t k, int64_t K, bool valid) {
  constexpr int kElems = 16 / sizeof(T);
  if constexpr (kAligned) {
    ptx::copy16(to, row + k, valid && k < K);
  } else {
    Vec<T, kElems> v;
#pragma unroll
    for (int i = 0; i < kElems; ++i) v.v[i] = valid && k + i < K ? row[k + i] : T{};
    *reinterpret_cast<Vec<T, kElems>*>(to) = v;
  }
}

}  // namespace vivace::kernels
