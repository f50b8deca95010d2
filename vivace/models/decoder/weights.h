// The decoder's weights and where each comes from: one declaration for GGUF and hub names alike.
#pragma once
#include <vector>

#include "vivace/engine/weights.h"
#include "vivace/models/decoder/config.h"

namespace vivace::models::decoder {

struct LayerWeights {
  Tensor attn_norm;                 // [H]
  Tensor q, k, v;                   // [Hq*D, H], [Hkv*D, H] x 2
  Tensor q_bias, k_bias, v_bias;    // families with qkv_bias
  Tensor q_norm, k_norm;            // [D], families with qk_norm
  Tensor o;                         // [H, Hq*D]
  Tensor mlp_norm;                  // [H]
  Tensor gate, up, down;            // [M, H] x 2, [H, M]
};

struct DecoderWeights {
  Tensor embed;         // [V, H]
  Tensor final_norm;    // [H]
  Tensor head;          // [V, H]; the embedding where the model is tied
  Tensor rope_factors;  // [D/2] f32 divisors of the rope frequencies, GGUF's form of llama3 scaling; or absent
  std::vector<LayerWeights> layers;
};

/// Finds and checks every tensor. Errors: NotFound names the missing tensor, InvalidShape both shapes.
Status load_weights(const engine::WeightSource& source, const DecoderConfig& config, DecoderWeights* weights);

}  // namespace vivace::models::decoder
