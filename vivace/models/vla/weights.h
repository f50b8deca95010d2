// A policy's weights: where each comes from, and in which form products and norms read it.
#pragma once
#include <memory>
#include <vector>

#include "vivace/engine/forms.h"
#include "vivace/engine/weight_uploader.h"
#include "vivace/models/vla/config.h"

namespace vivace::models::vla {

/// What activations and weights are.
struct PrecisionPlan {
  const char* name;
  DType act;        // of activations between ops
  bool stored;      // matrices keep the checkpoint's dtype; else bf16
  bool eight;  // matrices of vision and language model e4m3 with a scale a row, activations e4m3 with a scale a token
               // where they enter products of these; the action expert stays in 16 bits, whatever its rows
  bool fixed;       // ... with a scale a place, which calibration found
};
/// Errors: InvalidArgument lists the plans.
Result<PrecisionPlan> pick_plan(const std::string& precision, Place place);

/// Rows of the action expert up to which its adaptive norms are taken behind products of 16 bits (rms_gemm).
inline constexpr int64_t kFoldedRows = 64;

/// A product's matrix, of up to three joined parts.
struct Matrix {
  Tensor w, bias, scale;           // [N, K]; [N] or absent; f32 [N] of e4m3
  Tensor parts[3], part_bias[3];   // what they were made of
};
struct NormWeights {
  Tensor weight, bias;
};

struct VisionLayer {
  NormWeights attn_norm, mlp_norm;
  Matrix qkv, o, up, down;
};

struct GemmaLayer {
  Tensor attn_norm, mlp_norm;      // [H] less 1; absent with adaptive norms
  Matrix attn_ada, mlp_ada;        // [3 H, H] of the time: scale, shift, gate
  Matrix qkv, o, gate_up, down;    // gate and up rows alternate; of the last layer before a flow: k and v alone
};

struct PolicyWeights {
  Matrix patches;                  // [vision H, patch values padded to 8], values in the order of an image's rows
  Tensor positions;                // [batch * views * tokens, vision H], the table once a view
  std::vector<VisionLayer> vision;
  NormWeights vision_norm;
  Matrix projector;
  Tensor embed;                    // [V, H]
  std::vector<GemmaLayer> text, expert;
  Tensor text_norm, expert_norm;   // as attn_norm
  Matrix expert_ada;
  Matrix action_in, state;         // f32
  Matrix action_out;               // as activations are: it reads what the last norm rounded
  Matrix head;                     // of codes: the embedding, or its e4m3 twin
  Matrix time_in, time_out;        // f32; pi0: as activations are, of action and time side by side
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
