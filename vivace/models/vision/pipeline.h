// The vision tower as a walk over ops: patches to the tokens that a language model takes. No backend is known here.
#pragma once
#include "vivace/models/layer/stack_recorder.h"
#include "vivace/models/vision/weights.h"

namespace vivace::models::vision {

/// What the host says of images. P patches, M tokens, V images.
struct VisionInputs {
  Tensor pixels;               // [P, patch, patch, 3] u8, patches of a token side by side
  Tensor line, column, image;  // [P] i32: of each patch
  Tensor image_offsets;        // [V + 1] i32: patches of each
  Tensor patches, tokens;      // [1] i32: how many are valid
};

/// "act" is the dtype of activations.
struct VisionBuffers {
  StackBuffers stack;
  Tensor pixel_scale, pixel_offset;  // [3] f32
  Tensor patches;                    // [P, patch columns] act
  Tensor positions;                  // [P, H] act: of the grids at hand
  Tensor line_freq, column_freq;     // [D / 2] f32: of pairs that do not turn so 0
  Tensor merged;                     // [P / token_patches, out] act: between the products of SigLIP2's merger
  CodeBuffers merged_codes;          // of what enters them
};
/// Declares them for P patches, in 16 bits or, with `plan`, as its products take them.
void declare_buffers(engine::Arena& arena, const VisionConfig& config, int64_t P, DType act, VisionBuffers* b,
                     const PrecisionPlan* plan = nullptr);
/// Where activations enter products: four a layer (before attention, after it, before the activation, after it), then
/// two a merger, the last one's being that of tokens.
inline int64_t sites(const VisionConfig& c) {
  return 4 * c.layers + 2 * (static_cast<int64_t>(c.deepstack.size()) + 1);
}
/// Fills what never changes. After the arena's commit.
Status fill_constants(engine::Runtime& runtime, const VisionConfig& config, const VisionBuffers& b);

struct VisionContext {
  const VisionConfig& config;
  const VisionWeights& weights;
  const VisionBuffers& buffers;
  const Show& show;
  engine::GateMarks* gates = nullptr;  // where it stands back; null: nowhere
  Tensor act_scales = {};              // [at least sites()] f32, of a plan with fixed scales
  Enters enters = {};
};

/// `tokens` [>= M, out] gets the images' tokens, each of `levels` what deepstack adds to them.
Status record_vision(ops::Recorder& rec, const VisionContext& context, const VisionInputs& in, const Tensor& tokens,
                     std::span<const Tensor> levels);

}  // namespace vivace::models::vision
