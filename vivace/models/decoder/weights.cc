#include "vivace/models/decoder/weights.h"

namespace vivace::models::decoder {
namespace {

using engine::WeightRule;

/// When a rule applies.
enum class When { always, qkv_bias, qk_norm };

template <class Owner>
struct Rule {
  Tensor Owner::*sink;
  const char* gguf;
  const char* hf;
  int64_t (*rows)(const DecoderConfig&);
  int64_t (*cols)(const DecoderConfig&);  // nullptr: a vector
  When when = When::always;
};

int64_t hidden(const DecoderConfig& c) { return c.hidden; }
int64_t q_width(const DecoderConfig& c) { return c.q_width(); }
int64_t kv_width(const DecoderConfig& c) { return c.kv_width(); }
int64_t head_dim(const DecoderConfig& c) { return c.head_dim; }
int64_t mlp(const DecoderConfig& c) { return c.mlp; }
int64_t vocab(const DecoderConfig& c) { return c.vocab; }

using L = LayerWeights;
// "{}" stands for the layer's number.
constexpr Rule<L> kLayer[] = {
    {&L::attn_norm, "blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", hidden, nullptr},
    {&L::q, "blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", q_width, hidden},
    {&L::k, "blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", kv_width, hidden},
    {&L::v, "blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", kv_width, hidden},
    {&L::q_bias, "blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", q_width, nullptr, When::qkv_bias},
    {&L::k_bias, "blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", kv_width, nullptr, When::qkv_bias},
    {&L::v_bias, "blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", kv_width, nullptr, When::qkv_bias},
    {&L::q_norm, "blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", head_dim, nullptr, When::qk_norm},
    {&L::k_norm, "blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", head_dim, nullptr, When::qk_norm},
    {&L::o, "blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", hidden, q_width},
    {&L::mlp_norm, "blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", hidden, nullptr},
    {&L::gate, "blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", mlp, hidden},
    {&L::up, "blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", mlp, hidden},
    {&L::down, "blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", hidden, mlp},
};

using W = DecoderWeights;
constexpr Rule<W> kModel[] = {
    {&W::embed, "token_embd.weight", "model.embed_tokens.weight", vocab, hidden},
    {&W::final_norm, "output_norm.weight", "model.norm.weight", hidden, nullptr},
};
constexpr Rule<W> kHead = {&W::head, "output.weight", "lm_head.weight", vocab, hidden};

bool applies(When when, const Family& f) {
  switch (when) {
    case When::always: return true;
    case When::qkv_bias: return f.qkv_bias;
    case When::qk_norm: return f.qk_norm;
  }
  return false;
}

template <class Owner>
Status load(const engine::WeightSource& source, const DecoderConfig& c, const Rule<Owner>& r, int layer, Owner* owner) {
  if (!applies(r.when, *c.family)) return {};
  const Shape shape = r.cols ? Shape(r.rows(c), r.cols(c)) : Shape(r.rows(c));
  VV_ASSIGN(owner->*r.sink, source.get(WeightRule{r.gguf, r.hf, shape}, layer));
  return {};
}

}  // namespace

Status load_weights(const engine::WeightSource& source, const DecoderConfig& config, DecoderWeights* weights) {
  for (const auto& rule : kModel) VV_TRY(load(source, config, rule, -1, weights));
  if (config.tied) weights->head = weights->embed;
  else VV_TRY(load(source, config, kHead, -1, weights));
  const WeightRule factors{"rope_freqs.weight", "", Shape(config.rope_dims / 2)};
  if (source.has(factors)) {
    VV_ASSIGN(weights->rope_factors, source.get(factors, -1));
    VV_CHECK_EQ(kInvalidDType, std::string("f32"), std::string(name(weights->rope_factors.dtype)));
  }
  weights->layers.resize(static_cast<size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i)
    for (const auto& rule : kLayer) VV_TRY(load(source, config, rule, i, &weights->layers[static_cast<size_t>(i)]));
  return {};
}

}  // namespace vivace::models::decoder
