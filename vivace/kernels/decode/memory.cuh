// Loads and stores of the kernels that go through all layers, where the compiler may neither move nor join them.
// Chosen when: decode_layers, decode_layers_cross.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::decode {

__device__ __forceinline__ void store_word(uint32_t* at, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}
/// Two words, each by itself single-copy atomic.
__device__ __forceinline__ void store_words(uint32_t* at, uint32_t a, uint32_t b) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ uint2 load_two_words(const uint32_t* at) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
  return v;
}
/// Four words, each by itself single-copy atomic.
__device__ __forceinline__ uint4 load_four_words(const uint32_t* at) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}

/// Contiguous bytes (a multiple of 16) to shared memory; they count down `barrier`.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ uint4 read_shared(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t read_shared_word(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void write_shared(uint32_t at, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
/// Eight bytes, asked for here and not later: a phase before they are used.
__device__ __forceinline__ uint2 load_early(const void* at) {
  uint2 v;
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
  return v;
}
/// The same of sixteen, four and two bytes.
__device__ __forceinline__ uint4 load_early_16(const void* at) {
  uint4 v;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
__device__ __forceinline__ uint32_t load_early_4(const void* at) {
  uint32_t v;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ uint32_t load_early_2(const void* at) {
  uint16_t v;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(v) : "l"(at));
  return v;
}

}  // namespace vivace::kernels::decode
