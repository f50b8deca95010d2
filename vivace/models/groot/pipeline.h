// GR00T as walks over ops: patches and words to what actions attend to, and noise to actions. No backend is known here.
#pragma once
#include "vivace/engine/gate_plan.h"
#include "vivace/models/groot/weights.h"
#include "vivace/models/vision/pipeline.h"

namespace vivace::models::groot {

/// What the host says of an observation's pictures and words, one block of memory written before each run. Of all
/// observations at once: P patches, M tokens of images, T tokens in all, V views, B observations.
struct ContextInputs {
  vision::VisionInputs images;            // of all views
  Tensor words;                           // [T] i32: token ids, of an image's place any
  Tensor source, level;  // [T] i32: row of `mixed`; row of a deepstack level, M where there is no image
  Tensor turn[3];                         // [T] i32: M-RoPE's time, line and column
  Tensor place, slot;                     // [T] i32: place in its sequence; whose sequence
  Tensor offsets;                         // [B + 1] i32: rows of each sequence
  Tensor text_rows, image_rows;           // [T], [M] i32: rows that are no image's, and those that are
  Tensor text_offsets, image_offsets;     // [B + 1] i32 into them
  Tensor rows, texts;                     // [1] i32: how many are valid: tokens, tokens that are no image's
};

/// ... and of the arm.
struct ActionInputs {
  Tensor x;          // [B horizon, A] f32: noise, and then actions
  Tensor step_size;  // as x: how far a step goes
  Tensor state;      // [B, S] f32
};

/// Where activations enter products of what runs once an observation: vision's, four a layer of language model and
/// adapter, then the features of text and of images. The DiT, which no plan has in 8 bits, has none.
struct QuantizationSites {
  explicit QuantizationSites(const GrootConfig& c)
      : vision_(vision::sites(c.vision)), text_(c.text.layers), adapter_(c.adapter.layers) {}
  int64_t text(size_t layer, int64_t k) const { return vision_ + 4 * static_cast<int64_t>(layer) + k; }
  int64_t adapter(size_t layer, int64_t k) const { return vision_ + 4 * (text_ + static_cast<int64_t>(layer)) + k; }
  int64_t features(bool text) const { return vision_ + 4 * (text_ + adapter_) + (text ? 0 : 1); }
  int64_t count() const { return features(false) + 1; }

 private:
  int64_t vision_, text_, adapter_;
};

struct GrootBuffers {
  vision::VisionBuffers vision;
  StackBuffers text, adapter, dit;        // "act" is the plan's dtype
  Tensor turn_freq[3];                    // [D / 2] f32
  Tensor mixed;                           // [M + T, H] act: images' tokens, then words
  std::vector<Tensor> deepstack;          // [M + 1, H] act: the last row is 0
  Tensor branch;                          // [T, H] act: of a deepstack level; of N1.6 what the last norm gives
  Tensor text_features, image_features;   // [T, H], [M, H] act
  CodeBuffers text_codes, image_codes;    // of them
  Tensor act_scales;                      // [sites] f32, of a plan with fixed scales
  std::vector<Tensor> cross_k, cross_v;   // a block of the DiT that crosses: [1, T or M, heads, D] act
  Tensor action_slot;                     // [B (1 + horizon)] i32
  std::vector<Tensor> scale, shift;       // a block: [steps, D] act
  Tensor out_scale, out_shift;
  std::vector<Tensor> time_bias;          // a loaded embodiment: [steps, D] f32
  Tensor state_inner, state_features;     // [B, hidden], [B, D] act
  Tensor action_in, action_mid;           // [B horizon, D] act
  Tensor out;                             // [B (1 + horizon), dit_out] act
  Tensor decoded;                         // [B horizon, hidden] act
  Tensor shown;                           // [B horizon, max(D, A)] f32: what only observe() asks for
};

/// What an observation's embodiment reads: its own copy, written when another embodiment takes its place.
struct ActiveEmbodiment {
  Embodiment weights;
  Tensor time_bias;                       // [steps, D] f32
};

struct GrootContext {
  const GrootConfig& config;
  const GrootWeights& weights;
  const GrootBuffers& buffers;
  std::span<const ActiveEmbodiment> active;  // an observation each
  int64_t batch, horizon, steps;
  Show show;
  engine::GateMarks* gates = nullptr;  // where it stands back; null: nowhere
  Enters enters = {};
};

/// Images and words to keys and values of every block that crosses.
Status record_context(ops::Recorder& rec, const GrootContext& context, const ContextInputs& in);
/// `in.x` from noise to actions.
Status record_actions(ops::Recorder& rec, const GrootContext& context, const ContextInputs& seen,
                      const ActionInputs& in);
/// Setup: everything that the time decides. `sines`: [steps, 256] f32 of the DiT's time; `tau`: [steps, D] f32 of the
/// action encoder's; `scratch`: [steps, 2 D] f32, three times.
Status record_tables(ops::Recorder& rec, const GrootContext& context, const Tensor& sines, const Tensor& tau,
                     const Tensor (&scratch)[3]);

}  // namespace vivace::models::groot
