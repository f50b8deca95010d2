// A ring of stages in shared memory between producers and consumers, by mbarriers (Hopper on).
//
//   producer: producer_acquire, then one of: producer_expect and TMA loads; stores and producer_commit; cp.async and
//             producer_commit_copied
//   consumer: consumer_wait, reads, consumer_release
//
// The ring is its barriers: what lies in a stage, and where, is the kernel's. Who arrives for a warp is too (one lane,
// behind __syncwarp() where all lanes have read), and is counted in init().
#pragma once
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"

namespace vivace::kernels {

/// Where a walk through a ring of kStages stages is: the stage, and the parity of the phase to wait for there. A
/// producer waits for the phase before, and so finds every stage of its first round free.
template <int kStages>
struct ProducerState {
  int phase = 1, stage = 0;  // in this order: ptxas gives kernels other code when phi nodes change places

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};
template <int kStages>
struct ConsumerState {
  int stage = 0, phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

/// `barriers`: the shared address of the first. Full barriers come first, [kStages][kParts]: a stage's parts are waited
/// for one by one. Empty ones, [kStages], lie kEmptyAt barriers from the first on: behind the full ones, or behind
/// those of rings that share the room. Waits are told where a walk is, or how many stages i it has passed.
template <int kStages, int kParts = 1, int kEmptyAt = kStages * kParts>
struct Pipeline {
  uint32_t barriers;

  __device__ __forceinline__ uint32_t full(int stage, int part = 0) const {
    return barriers + static_cast<uint32_t>(stage * kParts + part) * 8;
  }
  __device__ __forceinline__ uint32_t empty(int stage) const {
    return barriers + static_cast<uint32_t>(kEmptyAt + stage) * 8;
  }

  /// Arrivals that make a part full (TMA's bytes come on top) and a stage empty. By one thread; then mbarrier_fence()
  /// and a barrier of the block, or of the cluster.
  __device__ __forceinline__ void init_full(int stage, int producers) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) ptx::mbarrier_init(full(stage, part), producers);
  }
  __device__ __forceinline__ void init_empty(int stage, int consumers) const {
    ptx::mbarrier_init(empty(stage), consumers);
  }
  __device__ __forceinline__ void init(int producers, int consumers) const {
    for (int stage = 0; stage < kStages; ++stage) init_full(stage, producers), init_empty(stage, consumers);
  }

  /// Until every consumer has released the stage.
  __device__ __forceinline__ void producer_acquire(const ProducerState<kStages>& at) const {
    ptx::mbarrier_wait<false>(empty(at.stage), at.phase);
  }
  __device__ __forceinline__ void producer_acquire(int i) const {
    ptx::mbarrier_wait<false>(empty(i % kStages), (i / kStages & 1) ^ 1);
  }
  /// Arrives, and announces the bytes that TMA loads with full() as their barrier.
  __device__ __forceinline__ void producer_expect(int stage, uint32_t bytes, int part = 0) const {
    ptx::mbarrier_expect(full(stage, part), bytes);
  }
  /// Arrives for what was stored; for the tensor core or TMA behind tensor_fence().
  __device__ __forceinline__ void producer_commit(int stage, int part = 0) const {
    ptx::mbarrier_arrive(full(stage, part));
  }
  /// Arrives when this thread's cp.async so far have landed.
  __device__ __forceinline__ void producer_commit_copied(int stage) const {
    ptx::mbarrier_arrive_copied(full(stage));
  }

  /// Until the part of the stage has come.
  __device__ __forceinline__ void consumer_wait(const ConsumerState<kStages>& at, int part = 0) const {
    ptx::mbarrier_wait<false>(full(at.stage, part), at.phase);
  }
  __device__ __forceinline__ void consumer_wait(int i, int part = 0) const {
    ptx::mbarrier_wait<false>(full(i % kStages, part), i / kStages & 1);
  }
  /// The stage has been read. `rank`: of the cluster's block whose producer waits for it.
  __device__ __forceinline__ void consumer_release(int stage) const {
    ptx::mbarrier_arrive(empty(stage));
  }
  __device__ __forceinline__ void consumer_release(int stage, int rank) const {
    ptx::mbarrier_arrive(empty(stage), rank);
  }
};

}  // namespace vivace::kernels
