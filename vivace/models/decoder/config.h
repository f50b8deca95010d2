// DecoderConfig: the numbers of a decoder-only language model, read from GGUF metadata or config.json.
#pragma once
#include <string>

#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/ops/rope_freqs.h"

namespace vivace::models::decoder {

/// What sets one family apart from the next. A family is a row of kFamilies, never a copy of the pipeline.
struct Family {
  const char* name;
  const char* gguf_arch;
  const char* hf_arch;
  bool qkv_bias;             // q, k and v projections carry a bias
  bool qk_norm;              // RMS norm of each q and k head before rope
  const char* gguf_rope;     // GGUF permutes llama's q and k rows so that pairs are interleaved
};

inline constexpr Family kFamilies[] = {
    {"llama", "llama", "LlamaForCausalLM", false, false, "interleaved"},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", true, false, "half"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false, true, "half"},
};

struct DecoderConfig {
  const Family* family = nullptr;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp = 0, vocab = 0, context = 0;
  double eps = 1e-6;
  std::string rope_style = "half";  // "half" | "interleaved"
  double rope_theta = 10000;
  int64_t rope_dims = 0;            // leading dims of a head that rotate
  ops::RopeScaling rope_scaling;
  bool tied = false;                // the head is the embedding

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

/// Reads and checks the configuration. Errors name the key, what was wanted and what came.
Result<DecoderConfig> read_config(const engine::Checkpoint& checkpoint);

}  // namespace vivace::models::decoder
