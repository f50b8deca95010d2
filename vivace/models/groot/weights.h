// GR00T's weights: where each comes from, and in which form products and norms read it.
#pragma once
#include <vector>

#include "vivace/engine/forms.h"
#include "vivace/models/groot/config.h"
#include "vivace/models/vision/weights.h"

namespace vivace::models::groot {

struct TextLayer {
  Tensor attn_norm, mlp_norm, q_norm, k_norm;
  Linear qkv, o, gate_up, down;  // gate and up rows alternate
};
/// A block of the DiT. Of one that crosses, `qkv` is the query alone.
struct Block {
  Linear ada;                   // f32, of the time: scale, shift; for tables
  Linear qkv, k, v, o, up, down;
};
/// What an embodiment has of its own.
struct Embodiment {
  Linear state_up, state_down;            // [hidden, S], [D, hidden]
  Linear action_in, action_mid, action_out;  // [D, A], [D, D], [D, D]
  Linear time;                            // f32: the half of action_mid's matrix that reads the time; for tables
  Linear decode_up, decode_down;          // [hidden, out], [A, hidden]
};

/// Its products that the actions' graph reads.
inline constexpr Linear Embodiment::* kOwn[] = {
    &Embodiment::state_up,   &Embodiment::state_down, &Embodiment::action_in,  &Embodiment::action_mid,
    &Embodiment::action_out, &Embodiment::decode_up,  &Embodiment::decode_down};

struct GrootWeights {
  vision::VisionWeights vision;
  std::vector<Layer> adapter;
  Tensor embed;                           // [V, H]
  std::vector<TextLayer> text;
  Tensor text_norm;                       // of N1.6: of what leaves the language model
  Norm adapter_norm;                      // vlln
  std::vector<Block> dit;
  Linear time_up, time_down, out_ada;     // f32, for tables
  Linear out;                             // [dit_out, D]
  Tensor action_positions;                // [horizon, D]
  std::vector<Embodiment> embodiments;    // those that are asked for
};

/// Finds and checks every tensor and queues it for `uploader`, or, where loading alone has use of it, for `tables`.
/// `slots`: which embodiments. What had to be made is kept in `own` until both are committed. Errors: NotFound names
/// the missing tensor, InvalidShape both shapes.
Status load_weights(const engine::WeightSource& source, const GrootConfig& config, const PrecisionPlan& plan,
                    int64_t horizon, const std::vector<int>& slots, engine::WeightUploader* uploader,
                    engine::WeightUploader* tables, OwnedTensors* own, GrootWeights* weights);

/// Of which dtypes the products' matrices are, once they are placed.
engine::Forms forms_of(const GrootWeights& weights);

}  // namespace vivace::models::groot
