// The decoder's weights and where each comes from: one declaration for GGUF and hub names alike.
#pragma once
#include <vector>

#include "vivace/engine/weight_uploader.h"
#include "vivace/engine/weights.h"
#include "vivace/models/decoder/config.h"
#include "vivace/models/decoder/plan.h"

namespace vivace::models::decoder {

/// What a family does not have (see Feature) stays empty.
struct LayerWeights {
  Tensor attn_norm, attn_norm_bias;  // [H]
  Tensor q, k, v;                    // [Hq*D, H], [Hkv*D, H] x 2
  Tensor q_bias, k_bias, v_bias;
  Tensor qkv, qkv_bias;              // [(Hq+2Hkv)*D, H], instead of the six above
  Tensor qk, qk_bias;                // [(Hq+Hkv)*D, H], instead of q's and k's, where v's dtype is another
  Tensor q_norm, k_norm;             // [D]
  Tensor attn_gate;                  // [Hq*D, H] of what attention gives; joined it is behind v in qkv
  // Of a recurrent layer, instead of all these: inputs of its convolution, the gate behind it, those of delta_gates.
  Tensor conv_in, delta_gate, delta_b, delta_a;  // [C, H], [Hv*Dv, H], [Hv, H] x 2
  Tensor delta_in, delta_ba;  // [C + Hv*Dv, H], [2*Hv, H] instead of the four, where a product serves two; or all
  engine::Scales delta_in_scale;
  Tensor conv;                       // [C, taps]
  Tensor delta_rate, delta_bias;     // [Hv]
  Tensor delta_norm;                 // [Dv]
  Tensor o, o_bias;                  // [H, Hq*D]; of a recurrent layer [H, Hv*Dv]
  float k_scale = 1, v_scale = 1;    // of an e4m3 cache: what a code of 1 stands for
  bool scales_cache() const { return k_scale != 1 || v_scale != 1; }
  Tensor attn_post_norm;             // [H] of what attention gives
  Tensor mlp_norm, mlp_norm_bias;    // [H]
  Tensor router;                     // [E, H]; then gate, up and down have E of what follows
  Tensor gate, up, down;             // [M, H] x 2, [H, M]
  Tensor gate_up;                    // [2M, H] instead of the two, where one product serves both: rows in turn
  engine::Scales qkv_scale, o_scale, gate_up_scale, up_scale, down_scale;  // of quantized matrices
  Tensor up_bias, down_bias;
  Tensor shared_open;                          // [1, H]: how far the shared expert's gate is open
  Tensor shared_gate, shared_up, shared_down;  // [Ms, H] x 2, [H, Ms]
  // None of the four where it is the last of router, gate, up and down: DecoderWeights::shared_is_expert.
  Tensor mlp_post_norm;              // [H] of what the MLP gives
};

/// The draft layer of multi-token prediction: attention and MLP as any other, behind one product.
struct DraftWeights {
  Tensor embed_norm, hidden_norm;  // [H]
  Tensor fc;                       // [H, 2H]: of a token's embedding, then of what the model made of the one before
  engine::Scales fc_scale;
  LayerWeights layer;
  Tensor norm;                     // [H]
};

struct DecoderWeights {
  Tensor embed;         // [V, H]
  Tensor positions;     // [context, H], families with learned positions
  Tensor final_norm, final_norm_bias;  // [H]
  Tensor head;          // [V, H]; the embedding where the model is tied
  engine::Scales head_scale;  // of a quantized head
  Tensor rope_factors;  // [D/2] f32 divisors of the rope frequencies, GGUF's form of llama3 scaling; or absent
  std::vector<LayerWeights> layers;
  DraftWeights draft;   // where DecoderConfig::drafts says so
  bool shared_is_expert = false;  // the expert that every token takes is the last of the others' matrices
};

/// Finds and checks every tensor. Errors: NotFound names the missing tensor, InvalidShape both shapes.
Status load_weights(engine::WeightSource& source, const DecoderConfig& config, DecoderWeights* weights);

/// Copies the weights to where `machine`'s ops read them, in the dtypes of the plan, with matrices that
/// take the same input joined into one product, once `uploader` is committed; it owns the memory. Where
/// the host's ops can read the checkpoint as it is mapped, nothing happens.
/// Layers from number `resident` on go to `streamed` instead, one of it each. Errors: Unsupported names the weight and
/// the plan.
Status upload_weights(const DecoderConfig& config, const PrecisionPlan& plan, const engine::Runtime& runtime,
                      const engine::WeightSource& source, DecoderWeights* weights, engine::WeightUploader* uploader,
                      int64_t resident, std::vector<engine::WeightUploader>* streamed);

/// What a weight of a family is called, for tools that rename: "{}" is the layer, "{e}" in a hub name an expert.
struct WeightName {
  const char *gguf, *hf;
  bool hf_transposed;
};
std::vector<WeightName> weight_names(const Family& family);

}  // namespace vivace::models::decoder
