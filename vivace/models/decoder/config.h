// DecoderConfig: the numbers of a decoder-only language model, read from GGUF metadata or config.json.
#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/models/vision/config.h"
#include "vivace/ops/rope_freqs.h"

namespace vivace::models::decoder {

/// What a family's layers have. Weight rules and the pipeline ask for these, never for a family's name.
enum Feature : uint32_t {
  kQkvBias = 1,               // q, k and v projections carry a bias
  kQkNorm = 2,                // RMS norm of each q and k head before rope
  kHubPlusOne = 4,            // hub checkpoints store norm weights less 1 (GGUF stores them whole)
  kPostNorms = 8,             // norms of what attention and MLP give, before it joins the residual stream
  kLocalLayers = 16,          // layers with a sliding window and a rope theta of their own
  kScaledEmbedding = 32,      // embeddings times sqrt(hidden)
  kExperts = 64,              // the MLP is a mixture of experts
  kExpertsW123 = 128,         // ... under Mixtral's hub names
  kLayerNorm = 256,           // layer norms with bias instead of RMS norms
  kLearnedPositions = 512,    // a table of positions is added to the embedding; no rope
  kFusedQkv = 1024,           // one projection gives q, k and v
  kPlainMlp = 2048,           // up, activation, down, with biases; no gate
  kTied = 4096,               // the head is the embedding unless config.json says otherwise
  kVision = 8192,             // prompts have images, which a vision tower makes tokens of; M-RoPE
  kNested = 1 << 14,          // the language model is a part: text_config, names behind "language_model."
  kRecurrent = 1 << 15,       // some layers carry a state along tokens instead of keys and values (gated delta rule)
  kGatedAttention = 1 << 16,  // q_proj gives each head's q and a gate of what it attends to
  kFusedExperts = 1 << 17,    // hub checkpoints hold all experts' gates and ups as one tensor
  kSharedExpert = 1 << 18,    // beside the chosen experts one that every token takes, by a gate of its own
  kKeyGroups = 1 << 19,       // matrices of recurrent layers hold what is a key head's: q, k, v and gate; b and a
};

/// Where config.json keeps what every family has.
struct HubKeys {
  const char *layers, *hidden, *heads, *mlp, *context, *eps, *act;
};
inline constexpr HubKeys kHubKeys = {
    "num_hidden_layers",       "hidden_size",  "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "rms_norm_eps", "hidden_act"};
inline constexpr HubKeys kGemmaKeys = {
    "num_hidden_layers",       "hidden_size",  "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "rms_norm_eps", "hidden_activation"};
inline constexpr HubKeys kGpt2Keys = {
    "n_layer", "n_embd", "n_head", "n_inner", "n_positions", "layer_norm_epsilon", "activation_function"};

/// What sets one family apart from the next. A family is a row of kFamilies, never a copy of the pipeline.
struct Family {
  const char* name;
  const char* gguf_arch;     // with experts or without, as `features` says
  const char* hf_arch;
  const char* gguf_rope;     // GGUF permutes llama's q and k rows so that pairs are interleaved
  uint32_t features = 0;
  const char* act = "silu";      // of the MLP, as ops call it
  const char* hub_act = "silu";  // as config.json calls it
  const HubKeys* keys = &kHubKeys;

  bool has(uint32_t wanted) const { return (features & wanted) == wanted; }
};

/// Qwen3.5 and 3.6: gated DeltaNet layers and gated attention.
inline constexpr uint32_t kHybrid = kQkNorm | kHubPlusOne | kRecurrent | kGatedAttention;
inline constexpr uint32_t kHybridMoe = kHybrid | kExperts | kFusedExperts | kSharedExpert;

inline constexpr Family kFamilies[] = {
    {"llama", "llama", "LlamaForCausalLM", "interleaved"},
    {"mixtral", "llama", "MixtralForCausalLM", "interleaved", kExperts | kExpertsW123},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", "half", kQkvBias},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", "half", kQkNorm},
    {"qwen3_moe", "qwen3moe", "Qwen3MoeForCausalLM", "half", kQkNorm | kExperts},
    {"qwen3_vl", "qwen3vl", "Qwen3VLForConditionalGeneration", "half", kQkNorm | kVision | kNested},
    {"qwen3_5", "qwen35", "Qwen3_5ForCausalLM", "half", kHybrid},
    {"qwen3_5", "qwen35", "Qwen3_5ForConditionalGeneration", "half", kHybrid | kNested},
    {"qwen3_5_moe", "qwen35moe", "Qwen3_5MoeForCausalLM", "half", kHybridMoe},
    {"qwen3_5_moe", "qwen35moe", "Qwen3_5MoeForConditionalGeneration", "half", kHybridMoe | kNested},
    {"qwen3_next", "qwen3next", "Qwen3NextForCausalLM", "half", kHybridMoe | kKeyGroups},
    {"gemma3", "gemma3", "Gemma3ForCausalLM", "half",
     kQkNorm | kHubPlusOne | kPostNorms | kLocalLayers | kScaledEmbedding | kTied, "gelu_tanh", "gelu_pytorch_tanh",
     &kGemmaKeys},
    {"gpt2", "gpt2", "GPT2LMHeadModel", "half", kLayerNorm | kLearnedPositions | kFusedQkv | kPlainMlp | kTied,
     "gelu_tanh", "gelu_new", &kGpt2Keys},
};

/// Layers of kind kRecurrent.
struct RecurrentConfig {
  int64_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0, taps = 0;
  int64_t k_width() const { return k_heads * k_dim; }
  int64_t v_width() const { return v_heads * v_dim; }
  int64_t conv_width() const { return 2 * k_width() + v_width(); }
  /// f32 of a sequence in one layer: the last inputs of the convolution, then the state of each value head; whole
  /// accesses.
  static int64_t padded(int64_t n) { return (n + 31) / 32 * 32; }
  int64_t conv_state() const { return padded((taps - 1) * conv_width()); }
  int64_t state() const { return conv_state() + padded(v_heads * k_dim * v_dim); }
};

struct DecoderConfig {
  const Family* family = nullptr;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp = 0, vocab = 0, context = 0;
  double eps = 1e-6;
  bool norm_plus_one = false;       // norm weights are stored less 1
  std::string rope_style = "half";  // "half" | "interleaved"
  double rope_theta = 10000;
  int64_t rope_dims = 0;            // leading dims of a head that rotate; 0: no rope
  ops::RopeScaling rope_scaling;
  double attn_scale = 0;            // 0: 1 / sqrt(head_dim)
  int64_t window = 0;               // of local layers
  double local_theta = 10000;       // of local layers, which know no scaling
  std::vector<bool> local;          // a layer; empty: none
  std::vector<bool> recurrent;      // a layer; empty: none
  RecurrentConfig linear;           // of these
  int64_t experts = 0, experts_used = 0;
  bool drafts = false;              // the draft layer is loaded: LoadOptions::mtp
  bool drafts_from_normed = true;   // it takes hidden states behind the final norm; else before it
  int64_t shared_mlp = 0;           // of the expert that every token takes
  bool renormalize = true;          // weights of the chosen experts sum to 1
  bool tied = false;                // the head is the embedding
  vision::VisionConfig vision;      // of a family that sees, and so are the next two
  int64_t image_token = -1;         // stands in prompts where an image's tokens go
  std::array<int64_t, 3> sections{24, 20, 20};  // rotated pairs that turn by time, line and column

  bool has(uint32_t wanted) const { return family->has(wanted); }
  bool is_local(size_t layer) const { return layer < local.size() && local[layer]; }
  bool is_recurrent(size_t layer) const { return layer < recurrent.size() && recurrent[layer]; }
  int64_t recurrent_layers() const { return std::count(recurrent.begin(), recurrent.end(), true); }
  /// Floats of a sequence's state in all layers.
  int64_t state_width() const { return recurrent_layers() * linear.state(); }
  /// Layers with keys and values, that of drafts last.
  int64_t caches() const { return layers - recurrent_layers() + drafts; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

/// Notes that the draft layer of multi-token prediction is wanted. Errors: NotFound where the checkpoint has none,
/// Unsupported for other forms of it.
Status read_drafts(const engine::Checkpoint& checkpoint, bool synthetic, DecoderConfig* config);

/// Reads and checks the configuration. Errors name the key, what was wanted and what came.
Result<DecoderConfig> read_config(const engine::Checkpoint& checkpoint);

}  // namespace vivace::models::decoder
