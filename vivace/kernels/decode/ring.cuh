// The ring of a block: weights, and cached keys and values, in the order of the program, by one producing warp.
// Chosen when: decode_layers, decode_layers_cross.
#pragma once
#include "vivace/kernels/decode/decode_layers.h"
#include "vivace/kernels/decode/memory.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"

namespace vivace::kernels::decode {

/// A place in the ring. The producer and each consumer warp have one and advance it by the same program.
template <auto P>
struct Ring {
  static constexpr int kSlots = P.slots();
  uint32_t shared;  // address of the block's shared memory
  int slot = 0;
  uint32_t turn = 0;

  __device__ __forceinline__ int slot_after(int ahead) const {
    return slot + ahead < kSlots ? slot + ahead : slot + ahead - kSlots;
  }
  __device__ __forceinline__ uint32_t turn_after(int ahead) const { return slot + ahead < kSlots ? turn : turn ^ 1; }
  __device__ __forceinline__ uint32_t bytes_at(int ahead) const {
    return shared + P.ring_at() + slot_after(ahead) * P.slot_bytes();
  }
  __device__ __forceinline__ uint32_t full(int ahead) const { return shared + P.full_at() + slot_after(ahead) * 8; }
  __device__ __forceinline__ uint32_t empty(int ahead) const { return shared + P.empty_at() + slot_after(ahead) * 8; }
  __device__ __forceinline__ void advance(int stages) {
    slot += stages;
    if (slot >= kSlots) slot -= kSlots, turn ^= 1;
  }
  /// Consumer: until the stage `ahead` of this place has arrived.
  __device__ __forceinline__ void wait(int ahead) const {
    ptx::mbarrier_wait<false>(full(ahead), static_cast<int>(turn_after(ahead)));
  }
  /// Consumer warp: these stages may be overwritten.
  __device__ __forceinline__ void release(int stages) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
      for (int s = 0; s < stages; ++s) ptx::mbarrier_arrive(empty(s));
    advance(stages);
  }
  /// Producer warp: until the slot is free.
  __device__ __forceinline__ void claim() const {
    ptx::mbarrier_wait<false>(empty(0), static_cast<int>(turn ^ 1));
    __syncwarp();
  }
  /// Producer warp, behind claim(): announces the bytes of the stage.
  __device__ __forceinline__ void expect(uint32_t bytes) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_expect(full(0), bytes);
    __syncwarp();
  }
};

}  // namespace vivace::kernels::decode
