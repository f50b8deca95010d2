// Words that say themselves that they are valid: how thread blocks of one persistent kernel hand activations on.
//
// A word is an f32 rounded to 15 bits of fraction; its low 8 bits are a tag, the turn it was written in. It is stored
// and polled relaxed at gpu scope. The datum and its flag are one word, so no fence orders them and nothing is reset:
// what a word held before has another tag. A buffer is written every second layer, so that one tag a turn is enough.
#pragma once
#include "ptx.cuh"

namespace lab {

/// What a wait that never ended was about: the host reads it from page-locked memory after the trap.
struct Stuck {
  volatile uint32_t where, cta, thread, layer, want, got;
};

constexpr uint32_t kPatience = 1u << 21;  // polls of about 0.4 us

__device__ __noinline__ void give_up(Stuck* stuck, uint32_t where, uint32_t layer, uint32_t want, uint32_t got) {
  if (stuck->where == 0) {
    stuck->cta = blockIdx.x;
    stuck->thread = threadIdx.x;
    stuck->layer = layer;
    stuck->want = want;
    stuck->got = got;
    stuck->where = where;
    __threadfence_system();
  }
#pragma unroll 1
  for (int i = 0; i < 1000; ++i) __nanosleep(1000);
  stop();
}

__device__ __forceinline__ uint32_t tag_of(uint32_t turn) {
  return ((turn >> 1) + 1) & 0xff;
}
__device__ __forceinline__ uint32_t word_of(float v, uint32_t tag) {
  return ((__float_as_uint(v) + 0x80u) & 0xffffff00u) | tag;
}
__device__ __forceinline__ float value_of(uint32_t word) {
  return __uint_as_float(word & 0xffffff00u);
}

__device__ __forceinline__ bool valid(uint4 v, uint32_t tag) {
  return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 0xff) == 0;
}

/// Until the words at[offset[j]..+3] of every wanted j have the tag. `wanted`: a bit for each j, of this thread.
/// `wait` false is a planted fault: takes what is there.
template <int kCount>
__device__ __forceinline__ void wait_words(uint4 (&v)[kCount], const uint32_t* at, const int (&offset)[kCount],
                                           uint32_t wanted, uint32_t tag, bool wait, Stuck* stuck, uint32_t where,
                                           uint32_t layer) {
  uint32_t polls = 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) v[j] = make_uint4(0, 0, 0, 0);
  while (wanted) {
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (wanted >> j & 1) v[j] = load_words(at + offset[j]);
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if ((wanted >> j & 1) && (valid(v[j], tag) || !wait)) wanted &= ~(1u << j);
    if (++polls == kPatience) give_up(stuck, where, layer, tag, v[0].x);
  }
  __syncwarp();
}

}  // namespace lab
