// The one decoder pipeline: token rows to next tokens, as a walk over ops. It knows no backend.
#pragma once
#include "vivace/models/decoder/weights.h"
#include "vivace/ops/registry.h"

namespace vivace::models::decoder {

/// How the model computes, decided once at load.
struct PrecisionPlan {
  const char* name;  // "q8", "f32"
  const char* act;   // how activations enter a product with block-quantised weights: gemm's `act`
};

/// What a step reads and writes besides weights. T is the bucket's row bound, R its bound of sampled
/// rows, S the slots, L the positions of a slot. Filled by the arena.
struct StepBuffers {
  // Inputs, written by the host before each step.
  Tensor tokens, pos, slot;        // [T] i32
  Tensor rows;                     // [1] i32: valid rows
  Tensor sample_rows;              // [R] i32: which rows are sampled
  Tensor samples;                  // [1] i32: how many
  Tensor sample_slot, sample_step; // [R] i32
  Tensor temperature, top_p, min_p, repetition, presence, frequency;  // [R] f32
  Tensor top_k;                    // [R] i32
  Tensor seed;                     // [R] i64
  // State.
  std::vector<Tensor> k_cache, v_cache;  // a layer: [S, L, Hkv, D]
  Tensor counts;                   // [S, V] i32: how often each token stands in the slot's context
  Tensor inv_freq, local_inv_freq; // [D/2] f32; absent without rope, without local layers
  // Scratch, f32.
  Tensor hidden;                   // [T, H] the residual stream
  Tensor normed;                   // [T, H]
  Tensor branch;                   // [T, H] what will join the residual stream; families that need it
  Tensor qkv, q, attended;         // [T, (Hq+2Hkv)*D], [T, Hq, D] x 2
  Tensor gate_up, mlp;             // [T, 2M], [T, M]; with experts k times as many rows
  Tensor route_logits, route_weights, place;  // [T, E], [T, k] f32, [T, k] i32
  Tensor token, offsets;           // [T*k] i32, [E+1] i32
  Tensor gathered, expert_out;     // [T*k, H] x 2
  Tensor last, last_branch;        // [R, H] the sampled rows' hidden state and branch
  // Outputs.
  Tensor logits;                   // [R, V] f32
  Tensor next;                     // [R] i32
  Tensor logprob;                  // [R] f32
};

/// Whether what a layer gives waits in `branch` until the next norm adds it to the residual stream.
inline bool uses_branch(const DecoderConfig& c) { return c.has(kPostNorms) || c.has(kLearnedPositions); }

/// Records one step over at most T rows (T <= the buffers' bound), sampling included.
Status record_step(ops::Recorder& rec, const DecoderConfig& config, const PrecisionPlan& plan,
                   const DecoderWeights& weights, const StepBuffers& buffers, int64_t T, double attn_factor);

}  // namespace vivace::models::decoder
