// The one pipeline of vision-language-action policies: images and prompt tokens to a prefix of keys and values, and
// noise to actions over it. A walk over ops; it knows no backend.
#pragma once
#include "vivace/engine/gate_plan.h"
#include "vivace/models/layer/quantized_rows.h"
#include "vivace/models/layer/show.h"
#include "vivace/models/vla/weights.h"
#include "vivace/ops/registry.h"

namespace vivace::models::vla {

/// What the host says of the context: images, then one block of memory. B observations of V views, n tokens a view, P
/// words at most; T = B (V n + P). Rows of views that are on come first, then words: where a row stands does not
/// matter, since it reads and writes its place (slot, pos) of the cache.
struct ContextInputs {
  Tensor pixels;       // [B V, side, side, 3] u8, or act in [-1, 1]: images of views that are on
  Tensor ids;          // [T] i32: the word of each row; of an image's row any
  Tensor pos, slot;    // [T] i32: place of each row in its prefix, whose prefix
  Tensor view_rows;    // [1] i32: rows of images
  Tensor rows;         // [1] i32: rows of images and prompt tokens
  Tensor length;       // [B] i32: of each prefix
  // With kSmolVlm, whose view_rows count tokens, and with kStateLast, whose states are the first B rows:
  Tensor patch_rows;   // [1] i32
  Tensor state;        // [B, S] f32
  Tensor state_place;  // [B] i32: of each prefix
};

/// ... and of the actions. A rows an observation: its horizon, after a state token where the family has one.
struct ActionInputs {
  Tensor x;            // [B horizon, D] f32: noise, then actions
  Tensor state;        // [B, S] f32, or absent
  Tensor step_size;    // [B horizon, D] f32: of each action; 0 keeps it
  Tensor time_row;     // [steps, B A] i32: row of the time tables for each token of each step, with adaptive norms
  Tensor pos, slot;    // [B A] i32
  Tensor own_pos;      // [B A] i32: of each among its actions, with kCrosses
  Tensor prefix;       // [B] i32: length of the prefix
  Tensor length;       // [B] i32: prefix and actions
};

/// What a step of codes reads and moves on: a row an observation.
struct ActionTokenInputs {
  Tensor last;         // [B] i32: row of the context whose next token is the first
  Tensor pos, slot;    // [B] i32: where the token that is fed stands
  Tensor token;        // [B] i32: fed
  Tensor turn;         // [1] i32: row of the ring
  Tensor ring;         // [N, B] i32: tokens of the last N steps, where the host reaches them
};

/// Rows of one stack and what lies between its ops. act unless it says otherwise. `normed` may also be rows times their
/// norm's factors, see folded(); `quantized` is [T, max(Hq D, M)].
struct TowerBuffers : CodeBuffers {
  Tensor hidden;                         // [T, H]
  Tensor gates;                          // [T, H] each row's gate, where actions are at several times
  Tensor qkv, attended, mlp;             // [T, (Hq+2Hkv) D], [T, Hq, D], [T, M]
  Tensor q;                              // [T, Hq, D] where keys and values go to a cache
  Tensor squares,
      row_scale;  // [T, H / 8] and [T] f32, of rows whose norm is taken behind the product; absent where none is
};

struct PolicyBuffers {
  TowerBuffers vision, text, expert;
  std::vector<Tensor> k_cache, v_cache;  // a layer: [B, L, Hkv, D]
  Tensor patches;                        // [B V n, padded patch] act
  Tensor pixel_scale, pixel_offset;      // [3] f32, of u8 images
  Tensor inv_freq;                       // [D / 2] f32
  Tensor unturned, angles;  // [B A, 1, D], D / 2 ones and as many zeros, and [B A, 2, D / 2] f32: what rope makes of
                            // them at actions' positions; absent where norms come before products
  Tensor act_scales;                     // [places] f32, of a plan with fixed scales
  Tensor view_slot;                      // [B V n] i32: t / n
  Tensor shuffle, in_order;              // [B V n] i32: patches as tokens take them; [B V tokens] i32: 0, 1, ...
  Tensor connected;                      // [B V tokens, text H] act
  std::vector<Tensor> cross_k, cross_v;  // of a layer that crosses: [B, L, Hkv, D] act
  Tensor logits, next;                   // [B, V] f32, [B] i32: of codes, whose rows are expert's
  Tensor mixed, embedded;                // [horizon, H] act: pi0's actions on their way in
  Tensor out;  // [B A, H] act: what leaves the expert; of codes [T, H], the prefix, where somebody looks
  // Time tables, a row a step and one for time 0: scale, shift and gate side by side.
  std::vector<Tensor> attn_ada, mlp_ada; // a layer: [steps + 1, 3 H] act
  Tensor final_ada;                      // [steps + 1, 3 H] act
  std::vector<Tensor> attn_shift, mlp_shift;  // a layer: [steps + 1, N] f32, the shifts times the weights behind; empty
                                              // where norms come before products
  Tensor time_bias;                      // [steps, H] f32: what the time adds to an action, without adaptive norms
};

/// QuantizationSites where activations enter products: a calibrated scale each. Four a layer: the products before
/// attention, after it, before the activation, after it. Those of the action expert come last, and count where its
/// products may be in 8 bits: its norms are deferred, so the first and the third are of rows before their norm, times
/// its factors.
struct QuantizationSites {
  QuantizationSites(const PolicyConfig& c, bool expert)
      : vision_(c.vision.layers), text_(c.text.layers), expert_(expert ? c.expert.layers : 0) {}
  static constexpr int64_t none = QuantizedRows::none, patches = 0;
  int64_t vision(size_t layer, int64_t k) const { return 1 + 4 * static_cast<int64_t>(layer) + k; }
  int64_t projector() const { return 1 + 4 * vision_; }
  int64_t text(size_t layer, int64_t k) const { return 2 + 4 * vision_ + 4 * static_cast<int64_t>(layer) + k; }
  int64_t head() const { return 2 + 4 * (vision_ + text_); }
  int64_t expert(size_t layer, int64_t k) const { return head() + 1 + 4 * static_cast<int64_t>(layer) + k; }
  int64_t count() const { return head() + 1 + 4 * expert_; }

 private:
  int64_t vision_, text_, expert_;
};

struct PolicyContext {
  const PolicyConfig& config;
  const PrecisionPlan& plan;
  const PolicyWeights& weights;
  const PolicyBuffers& buffers;
  int64_t batch, views, steps;
  Show show;
  Enters enters;
  bool even = false;                     // all actions of a step are at one time: ActionInputs::time_row is not read
  bool full = false;                     // all cameras are on: ContextInputs::view_rows is not read
  engine::GateMarks* gates = nullptr;    // where it stands back; null: nowhere
};

/// ImagePreprocessor and words to the keys and values of every layer.
Status record_context(ops::Recorder& rec, const PolicyContext& context, const ContextInputs& in);
/// The first token after a context: `in.pos` is that of the last word until then.
Status record_first_action_token(ops::Recorder& rec, const PolicyContext& context, const ActionTokenInputs& in);
/// One more token, from the one before.
Status record_action_token(ops::Recorder& rec, const PolicyContext& context, const ActionTokenInputs& in);
/// All steps of the flow.
Status record_actions(ops::Recorder& rec, const PolicyContext& context, const ActionInputs& in);
/// Time tables from [sin, cos] rows [steps + 1, H] f32, once at load. `scratch`: two tensors [steps + 1, H] f32 and
/// one [steps + 1, 3 H] f32.
Status record_tables(ops::Recorder& rec, const PolicyContext& context, const Tensor& time, const Tensor (&scratch)[3]);

}  // namespace vivace::models::vla
