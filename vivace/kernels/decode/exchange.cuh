// Words that say themselves that they are valid: how the blocks of a kernel hand activations on.
//
// A word is an f32 rounded to 15 bits of fraction; its low 8 bits are a tag, of the turn it was written in. It is
// stored and polled relaxed at gpu scope: the value and its flag are one word, so that no fence orders them. A half of
// the words is written every second turn, all of it, so that what a word held before has another tag, and nothing is
// reset: from the host's zeros on, through steps, replays of a graph, and a count of turns that begins anew after 2^32.
// Chosen when: decode_layers, decode_layers_cross.
#pragma once
#include "vivace/kernels/decode/memory.cuh"

namespace vivace::kernels::decode {

constexpr uint32_t kPatience = 1u << 24;  // polls of about 0.4 us; a wait that has no end stops the kernel

__device__ __forceinline__ uint32_t tag_of(uint32_t turn) {
  return ((turn >> 1) + 1) & 0xff;
}
/// No number stays none: rounded like others, one with all bits of fraction set would become -0.
__device__ __forceinline__ uint32_t word_of(float v, uint32_t tag) {
  const uint32_t rounded = v == v ? __float_as_uint(v) + 0x80u : 0x7fc00000u;
  return (rounded & 0xffffff00u) | tag;
}
__device__ __forceinline__ float value_of(uint32_t word) {
  return __uint_as_float(word & 0xffffff00u);
}
__device__ __forceinline__ bool has_tag(uint4 v, uint32_t tag) {
  return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 0xff) == 0;
}
__device__ __forceinline__ bool has_tag(uint2 v, uint32_t tag) {
  return (((v.x ^ tag) | (v.y ^ tag)) & 0xff) == 0;
}

/// Until the words at[offset[j]..+3] of every wanted j have the tag. `wanted`: a bit for each j, of this thread.
template <int kCount>
__device__ __forceinline__ void wait_words(uint4 (&v)[kCount], const uint32_t* at, const int (&offset)[kCount],
                                           uint32_t wanted, uint32_t tag) {
  uint32_t polls = 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) v[j] = make_uint4(0, 0, 0, 0);
  while (wanted) {
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (wanted >> j & 1) v[j] = load_four_words(at + offset[j]);
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if ((wanted >> j & 1) && has_tag(v[j], tag)) wanted &= ~(1u << j);
    if (++polls == kPatience) __trap();
  }
  __syncwarp();
}
/// Until both words have the tag.
__device__ __forceinline__ uint2 wait_two_words(const uint32_t* at, uint32_t tag) {
  uint2 v = load_two_words(at);
  for (uint32_t polls = 0; !has_tag(v, tag); v = load_two_words(at))
    if (++polls == kPatience) __trap();
  __syncwarp();
  return v;
}

/// Where tests hold warps up (tests/gpu/decode_case.py): nothing here.
__device__ __forceinline__ void between(uint32_t /*turn*/, uint32_t /*point*/) {}

}  // namespace vivace::kernels::decode
