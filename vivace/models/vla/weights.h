// A policy's weights: where each comes from, and in which form products and norms read it.
#pragma once
#include <memory>
#include <vector>

#include "vivace/engine/forms.h"
#include "vivace/engine/weight_uploader.h"
#include "vivace/models/layer/layer_ops.h"
#include "vivace/models/layer/precision_plan.h"
#include "vivace/models/vla/config.h"

namespace vivace::models::vla {

/// Rows of the action expert up to which its adaptive norms are taken behind products of 16 bits (rms_gemm).
inline constexpr int64_t kFoldedRows = 64;

struct VisionLayer {
  Norm attn_norm, mlp_norm;
  Linear qkv, o, up, down;
};

struct GemmaLayer {
  Tensor attn_norm, mlp_norm;      // [H] less 1; absent with adaptive norms
  Linear attn_ada, mlp_ada;        // [3 H, H] of the time: scale, shift, gate
  Linear qkv, o, gate_up, down;    // gate and up rows alternate; of the last layer before a flow: k and v alone
  Linear k, v;                     // of a layer that crosses, over the prefix's keys and values; its qkv is q alone
};

struct PolicyWeights {
  Linear patches;                  // [vision H, patch values padded to 8], values in the order of an image's rows
  Tensor positions;                // [batch * views * tokens, vision H], the table once a view
  std::vector<VisionLayer> vision;
  Norm vision_norm;
  Linear projector;
  Tensor embed;                    // [V, H]
  std::vector<GemmaLayer> text, expert;
  Tensor text_norm, expert_norm;   // as attn_norm
  Linear expert_ada;
  Linear action_in, state;   // f32
  Linear action_out;         // as activations are: it reads what the last norm rounded
  Linear head;               // of codes: the embedding, or its e4m3 twin
  Linear time_in, time_out;  // f32; pi0: as activations are, of action and time side by side
};

/// Values of a patch as products take them: a multiple of 16 bytes in any dtype.
inline int64_t padded_patch(const PolicyConfig& c) { return (c.patch_values() + 7) / 8 * 8; }

/// Finds and checks every tensor and queues it for `uploader`, or for `tables` what only loading needs.
/// Memory that had to be rearranged is kept in `own` until both are committed.
/// Errors: NotFound names the missing tensor, InvalidShape both shapes.
Status load_weights(const engine::WeightSource& source, const PolicyConfig& config, const PrecisionPlan& plan,
                    int views, int batch, engine::WeightUploader* uploader, engine::WeightUploader* tables,
                    std::vector<std::unique_ptr<std::byte[]>>* own, PolicyWeights* weights);

/// Of which dtypes the products' matrices are, part by part, once they are placed.
engine::Forms forms_of(const PolicyWeights& weights);

}  // namespace vivace::models::vla
