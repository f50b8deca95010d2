// The ring of a thread block: immutable bytes (weights, cached keys and values) in program order, by one producer warp.
#pragma once
#include "exchange.cuh"

namespace lab {

__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity, Stuck* stuck, uint32_t where,
                                             uint32_t layer) {
  uint32_t polls = 0;
  while (!barrier_try(at, parity))
    if (++polls == kPatience * 8) give_up(stuck, where, layer, parity, at);
}
/// A place in the ring. The producer and each consumer warp have one and advance it by the same program.
template <int kSlots, int kSlotBytes>
struct Ring {
  uint32_t data, full, empty;  // shared addresses; barriers are 8 bytes each
  Stuck* stuck;
  int slot = 0;
  uint32_t turn = 0;

  __device__ __forceinline__ int slot_after(int ahead) const {
    return slot + ahead < kSlots ? slot + ahead : slot + ahead - kSlots;
  }
  __device__ __forceinline__ uint32_t turn_after(int ahead) const { return slot + ahead < kSlots ? turn : turn ^ 1; }
  __device__ __forceinline__ uint32_t bytes_at(int ahead) const { return data + slot_after(ahead) * kSlotBytes; }
  __device__ __forceinline__ void advance(int stages) {
    slot += stages;
    if (slot >= kSlots) slot -= kSlots, turn ^= 1;
  }
  /// Consumer: until the stage `ahead` of this place has arrived.
  __device__ __forceinline__ void wait(int ahead, uint32_t layer) const {
    barrier_wait(full + slot_after(ahead) * 8, turn_after(ahead), stuck, 100, layer);
  }
  /// Consumer warp: these stages may be overwritten.
  __device__ __forceinline__ void release(int stages) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
      for (int s = 0; s < stages; ++s) barrier_arrive(empty + slot_after(s) * 8);
    advance(stages);
  }
  /// Producer warp: until the slot is free; then announces the bytes of its next stage.
  __device__ __forceinline__ void claim(uint32_t bytes, uint32_t layer) const {
    if (threadIdx.x % 32 == 0) {
      barrier_wait(empty + slot * 8, turn ^ 1, stuck, 101, layer);
      barrier_expect(full + slot * 8, bytes);
    }
    __syncwarp();
  }
};

}  // namespace lab
