// The one decoder pipeline: token rows to next tokens, as a walk over ops. It knows no backend.
#pragma once
#include "vivace/base/arch.h"
#include "vivace/models/decoder/plan.h"
#include "vivace/engine/gate_plan.h"
#include "vivace/engine/layer_stream.h"
#include "vivace/models/decoder/weights.h"
#include "vivace/ops/registry.h"

namespace vivace::models::decoder {

/// What the host says of a step: one block of memory, written before it. T is the class's row bound, R
/// its bound of sampled rows. In the decode class every row samples: sample_rows is absent, samples is
/// rows, sample_slot is slot, and the step itself moves tokens, pos and sample_step on.
struct StepInputs {
  Tensor tokens, pos, slot;        // [T] i32
  Tensor rows;                     // [1] i32: valid rows
  Tensor sample_rows;              // [R] i32: which rows are sampled, or absent
  Tensor samples;                  // [1] i32: how many
  Tensor sample_slot, sample_step; // [R] i32
  Tensor mask_slot;                // [R] i32: row of masks, -1 for none
  Tensor temperature, top_p, min_p, repetition, presence, frequency;  // [R] f32
  Tensor top_k;                    // [R] i32
  Tensor seed;                     // [R] i64
  // Of models with recurrent layers, where rows of a slot follow each other: N runs, those behind the last empty.
  // Absent in the decode class, where each row is a run.
  Tensor run_offsets, run_slot,
      run_fresh;  // [N + 1], [N], [N] i32: first row of each; whose; whether it begins at zero
  // Of steps that check guesses: rows of guesses lie behind all others, and those before them are runs too. A state
  // goes over the former alone.
  Tensor guess_offsets, guess_slot;  // [N + 1], [N] i32
  // Of the draft layer's steps: which row of `heard` stands before each token; absent: the one that it wrote last.
  Tensor source;        // [T] i32
  // Of models that see.
  Tensor shift;         // [A, T] i32: what angles add to pos; A is 3 where there are images, else 1
  Tensor image, level;  // [T] i32: row of `mixed` and of `levels`; absent where no row is an image's
};

/// What a step reads and writes besides weights and inputs. T is the largest row bound, R that of
/// sampled rows, S the slots, L the positions of a slot. Filled by the arena. "act" is the plan's dtype.
struct StepBuffers {
  std::vector<Tensor> k_cache, v_cache;  // a layer that attends: [S, L, Hkv, D]
  Tensor state;                          // [S, state_width()] f32: what recurrent layers carry along; or absent
  Tensor kept_state;                     // the same of beginnings that are kept; no op reads it
  Tensor each_row;                       // [rows + 1] i32: 0, 1, 2, ...
  // Of models with a draft layer.
  Tensor heard;       // [R + T + R, H] hidden states that it goes on from: of the last step of answers, of the last
                      // step of prompts, of its own last step
  Tensor draft_in;    // [T, 2H]
  Tensor kv_scale;                 // [caches, 2] f32 of e4m3 caches with scales: of keys, of values; or absent
  Tensor kv_wide, kv_codes;        // [T, 2*Hkv*D], act and e4m3: rows on their way into such a cache
  Tensor page_table;               // [S, P] i32 where the caches are pages: [pages, places, Hkv, D]; or absent
  Tensor counts;                   // [S, V] i32: how often each token stands in the slot's context
  Tensor no_counts;                // [V] i32: zeros, what a slot starts with
  Tensor bias, row_bias;           // [S, V], [R, V] f32: added to a slot's logits, gathered by row; or absent
  Tensor masks;  // [S, (V+31)/32] i32: bits of the tokens that a slot may draw, read where mask_slot says so
  Tensor inv_freq, local_inv_freq; // [D/2] f32; absent without rope, without local layers
  // Scratch, act unless it says otherwise.
  Tensor hidden;                   // [T, H] the residual stream
  Tensor normed;                   // [T, H]; e4m3 where activations enter products so
  Tensor normed_wide;              // [T, H] where normed is e4m3 and some products take 16 bits: of experts, of a
                                   // recurrent layer's decay and correction, of the draft layer
  Tensor branch;                   // [T, H] what will join the residual stream; families that need it
  Tensor qkv, q, attended;         // [T, (Hq+2Hkv)*D and what gates need], [T, Hq, D] x 2
  Tensor conv, delta;              // [T, C], [T, Hv*Dv] of recurrent layers
  Tensor shared, shared_inner, shared_open;  // [T, 2Ms], [T, Ms], [T, 1] of the expert that every token takes
  Tensor gate_up, mlp;             // [T, 2M], [T, M]; with experts k times as many rows
  Tensor route_logits, route_weights, place;  // [T, E], [T, k] f32, [T, k] i32
  Tensor token, offsets;           // [T*k] i32, [E+1] i32
  Tensor gathered, expert_out;     // [T*k, H] x 2
  Tensor last, last_branch;        // [R, H] the sampled rows' hidden state and branch
  Tensor quantized,
      last_quantized;  // [T, max(Hq*D, M)], [R, H] e4m3: rows that enter a product, where they do so quantized
  Tensor normed_scale, quantized_scale, last_scale;  // f32 a row of normed, codes, last_quantized: ActQuant::per_token;
                                                     // the first also where norms are taken behind
  Tensor squares;  // [rows whose norms may be taken behind, H / 8] f32: sums of squares of hidden's rows, see rms_rows
  Tensor decode_words;             // i32: what decode_layers keeps between steps; or absent
  Tensor attention_words;          // i32: in which clusters of attention's blocks meet; or absent
  Tensor site_scale;               // f32 a site: ActQuant::per_tensor
  // Of models that see: M rows of images' tokens.
  Tensor mixed;                // [M + T, H] images' tokens, then the step's words
  std::vector<Tensor> levels;  // [M + 1, H] each: what joins the residual stream behind the first layers; then zeros
  Tensor axis;                 // [D/2] i32: by which row of shift each pair turns
  // Outputs.
  Tensor logits;                   // [R, V] f32
  Tensor next;                     // [R] i32
  Tensor logprob;                  // [R] f32
  Tensor turn;                   // [1] i32: row of the rings that the next step writes
  Tensor ring, ring_logprob;       // [N, R] i32, f32: next and logprob of the last N steps, where the host reaches them
};

/// QuantizationSites where activations enter products, in the order of the step: kSites a layer, then the head.
enum Site : int64_t { kAttentionIn, kAttended, kMlpIn, kInner, kSites };
inline int64_t site_count(const DecoderConfig& c) { return c.layers * kSites + 1; }

/// Columns of StepBuffers::qkv: q, k, v and the gate of attention; of a recurrent layer what enters its convolution,
/// the gate behind it, and two values a head.
inline int64_t qkv_columns(const DecoderConfig& c) {
  const int64_t attention = (c.has(kGatedAttention) ? 2 : 1) * c.q_width() + 2 * c.kv_width();
  const int64_t recurrent = c.linear.conv_width() + c.linear.v_width() + 2 * c.linear.v_heads;
  return std::max(attention, recurrent);
}

/// Whether what a layer gives, or a level of an image, waits in `branch` until the next norm adds it to the residual
/// stream.
inline bool uses_branch(const DecoderConfig& c) {
  return c.has(kPostNorms) || c.has(kLearnedPositions) || c.has(kVision);
}

/// Rows of a step up to which norms may be taken behind their products: one class of few tokens for both.
inline constexpr int64_t kDeferredNormRows = 64;
/// Whether a model's steps of so few rows take their layers' RMS norms behind the products that read them: each product
/// that writes the residual stream leaves it times the next norm's weight, with sums of squares, and the next product
/// scales its sums (gemm_rms_rows, rms_gemm). Where one kernel does each, and every layer is RMS norms without norms of
/// what joins the residual stream, and plain 16-bit products without a factor.
bool deferred_norms(const DecoderConfig& config, const PrecisionPlan& plan, const DecoderWeights& weights, Arch arch);

/// What decode_layers takes of all layers at once: see layer_stacks.h.
struct LayerStacks {
  Tensor attn_norm, qkv, qkv_bias, q_norm, k_norm, o, mlp_norm, gate_up, down;  // [layers, ...] of LayerWeights
  Tensor qkv_scale, o_scale, gate_up_scale, down_scale;                         // of e4m3 matrices: a scale a row
  Tensor k_cache, v_cache;
};

/// Everything that record_step() walks over.
struct StepContext {
  const DecoderConfig& config;
  const PrecisionPlan& plan;
  const DecoderWeights& weights;
  const StepBuffers& buffers;
  double attn_factor = 1;
  const engine::LayerStream* stream = nullptr;  // of the last layers, where their weights take turns
  bool deferred_norms = false;          // of a step of few rows
  bool guesses = false;                 // a decode step of runs, with guesses behind them
  const StepInputs* moved =
      nullptr;  // what a decode step moves on in place of its own inputs: a step that is repeated as it is
  const engine::GateWalk* gates = nullptr;  // where it stands back; null: nowhere
  int head_parts = 1;                 // products that the lm_head is, with points between
  const LayerStacks* stacks = nullptr;  // of a decode step of one row that goes through all layers as one op
  bool captured = false;              // as one graph: what came before the step has ended when it begins
};

/// Records one step over at most T rows (T <= the inputs' bound), sampling included.
Status record_step(ops::Recorder& rec, const StepContext& context, const StepInputs& inputs, int64_t T);

/// Records a step of the draft layer: what may follow the token behind each position. What its sampled rows drew goes
/// to `moved`, the inputs of the step for one position further on; with `inputs` the same it reads what it wrote last.
Status record_draft(ops::Recorder& rec, const StepContext& context, const StepInputs& inputs, int64_t T);

}  // namespace vivace::models::decoder
