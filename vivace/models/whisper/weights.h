// Whisper's weights: where each comes from, and in which form products and norms read it.
#pragma once
#include <memory>
#include <vector>

#include "vivace/engine/forms.h"
#include "vivace/engine/weight_uploader.h"
#include "vivace/engine/weights.h"
#include "vivace/models/layer/layer_ops.h"
#include "vivace/models/whisper/config.h"

namespace vivace::models::whisper {

/// What activations and matrices are.
struct PrecisionPlan {
  const char* name;
  DType hidden;     // of activations between ops, and of keys and values
  DType matrix;     // of matrices, but the convolutions' and the embedding where that is a block format or e4m3
  bool stored;      // matrices stay as the checkpoint has them
  const char* act;  // how activations enter a product with block-quantized weights: gemm's `act`
  bool eight = false;  // matrices that windows meet are `matrix` too; rows enter products as e4m3 with a scale each
  bool fixed = false;  // ... or a scale a quantization point, which calibration found
};
/// Errors: InvalidArgument lists the plans.
Result<PrecisionPlan> pick_plan(const std::string& precision, Place place);

struct EncoderLayer {
  Norm attn_norm, mlp_norm;
  Linear qkv, o, up, down;
};
struct DecoderLayer {
  Norm attn_norm, cross_norm, mlp_norm;
  Linear qkv, o, cross_q, cross_k, cross_v, cross_o, up, down;
  /// What decode_layers_cross reads, where it may: norms and biases of the layer once more, joined.
  struct {
    Tensor weight[3], bias[3], added[8], norms, norm_biases, biases;
  } one_launch;
};

struct WhisperWeights {
  Linear conv1, conv2;        // [H, mels * 3], [H, H * 3]
  Tensor sinusoids;           // [source, H] in the dtype of activations
  std::vector<EncoderLayer> encoder;
  Norm encoder_norm;
  Tensor embed, positions;    // [V, H], [positions, H]; embed is absent where the head is looked up in
  std::vector<DecoderLayer> decoder;
  Norm decoder_norm;
  Tensor head, head_scale;    // [V, H]; absent where it is the embedding; f32 [V] of e4m3

  const Tensor& table() const { return embed.present() ? embed : head; }
  const Tensor& projection() const { return head.present() ? head : embed; }
};

/// Finds and checks every tensor and queues it for `uploader`. What had to be made is kept in `own` until that is
/// committed. `one_launch`: of the decoder DecoderLayer::one_launch, too. Errors: NotFound names the missing tensor,
/// InvalidShape both shapes.
Status load_weights(const engine::WeightSource& source, const WhisperConfig& config, const PrecisionPlan& plan,
                    engine::WeightUploader* uploader, std::vector<std::unique_ptr<std::byte[]>>* own, bool one_launch,
                    WhisperWeights* weights);

/// Of which dtypes the products' matrices are, once they are placed.
engine::Forms forms_of(const WhisperWeights& weights);

}  // namespace vivace::models::whisper
