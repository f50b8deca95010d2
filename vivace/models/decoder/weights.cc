#include "vivace/models/decoder/weights.h"

#include <utility>

#include "vivace/models/decoder/gguf_layout.h"

namespace vivace::models::decoder {
namespace {

using engine::WeightRule;

/// Applies to families with all features of `needs` and none of `lacks`.
template <class Owner>
struct Rule {
  Tensor Owner::*sink;
  const char* gguf;
  const char* hf;
  int64_t (*rows)(const DecoderConfig&);
  int64_t (*cols)(const DecoderConfig&);  // nullptr: a vector
  uint32_t needs = 0, lacks = 0;
  bool hf_transposed = false;
  engine::RowPieces (*pieces)(const DecoderConfig&) = nullptr;  // of a matrix that holds other weights too
};

int64_t hidden(const DecoderConfig& c) { return c.hidden; }
int64_t both_hidden(const DecoderConfig& c) {
  return 2 * c.hidden;
}
int64_t q_width(const DecoderConfig& c) { return c.q_width(); }
int64_t kv_width(const DecoderConfig& c) { return c.kv_width(); }
int64_t head_dim(const DecoderConfig& c) { return c.head_dim; }
int64_t mlp(const DecoderConfig& c) { return c.mlp; }
int64_t vocab(const DecoderConfig& c) { return c.vocab; }
int64_t qkv_width(const DecoderConfig& c) { return c.q_width() + 2 * c.kv_width(); }
int64_t context(const DecoderConfig& c) { return c.context; }
int64_t experts(const DecoderConfig& c) { return c.experts; }
int64_t both_mlp(const DecoderConfig& c) {
  return 2 * c.mlp;
}
int64_t shared_mlp(const DecoderConfig& c) {
  return c.shared_mlp;
}
int64_t one(const DecoderConfig&) {
  return 1;
}
int64_t conv_width(const DecoderConfig& c) {
  return c.linear.conv_width();
}
int64_t taps(const DecoderConfig& c) {
  return c.linear.taps;
}
int64_t delta_heads(const DecoderConfig& c) {
  return c.linear.v_heads;
}
int64_t delta_width(const DecoderConfig& c) {
  return c.linear.v_width();
}
int64_t delta_dim(const DecoderConfig& c) {
  return c.linear.v_dim;
}

using engine::RowPieces;
RowPieces head_q(const DecoderConfig& c) {
  return {2 * c.head_dim, {{{0, c.head_dim}}}};
}
RowPieces head_gate(const DecoderConfig& c) {
  return {2 * c.head_dim, {{{c.head_dim, c.head_dim}}}};
}
/// Of each key head its query, its key, then values and gates of its value heads.
int64_t values_of_key(const RecurrentConfig& r) {
  return r.v_heads / r.k_heads * r.v_dim;
}
int64_t key_group(const RecurrentConfig& r) {
  return 2 * (r.k_dim + values_of_key(r));
}
RowPieces key_qkv(const DecoderConfig& c) {
  const RecurrentConfig& r = c.linear;
  return {key_group(r), {{{0, r.k_dim}, {r.k_dim, r.k_dim}, {2 * r.k_dim, values_of_key(r)}}}};
}
RowPieces key_gate(const DecoderConfig& c) {
  const RecurrentConfig& r = c.linear;
  return {key_group(r), {{{2 * r.k_dim + values_of_key(r), values_of_key(r)}}}};
}
RowPieces key_b(const DecoderConfig& c) {
  const int64_t each = c.linear.v_heads / c.linear.k_heads;
  return {2 * each, {{{0, each}}}};
}
RowPieces key_a(const DecoderConfig& c) {
  const int64_t each = c.linear.v_heads / c.linear.k_heads;
  return {2 * each, {{{each, each}}}};
}

using L = LayerWeights;
constexpr uint32_t kGpt2 = kFusedQkv;  // whose hub names are its own
// "{}" stands for the layer's number, "{e}" for an expert's.
constexpr Rule<L> kLayer[] = {
    {&L::attn_norm, "blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", hidden, nullptr, 0, kGpt2},
    {&L::q, "blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", q_width, hidden, 0,
     kFusedQkv | kGatedAttention},
    {&L::q, "blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", q_width, hidden, kGatedAttention, 0,
     false, head_q},
    {&L::attn_gate, "blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", q_width, hidden,
     kGatedAttention, 0, false, head_gate},
    {&L::k, "blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", kv_width, hidden, 0, kFusedQkv},
    {&L::v, "blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", kv_width, hidden, 0, kFusedQkv},
    {&L::q_bias, "blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", q_width, nullptr, kQkvBias},
    {&L::k_bias, "blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", kv_width, nullptr, kQkvBias},
    {&L::v_bias, "blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", kv_width, nullptr, kQkvBias},
    {&L::q_norm, "blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", head_dim, nullptr, kQkNorm},
    {&L::k_norm, "blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", head_dim, nullptr, kQkNorm},
    {&L::o, "blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", hidden, q_width, 0, kGpt2},
    {&L::attn_post_norm, "blk.{}.post_attention_norm.weight", "model.layers.{}.post_attention_layernorm.weight", hidden,
     nullptr, kPostNorms},
    {&L::mlp_norm, "blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", hidden, nullptr, 0,
     kPostNorms | kGpt2 | kRecurrent},
    {&L::mlp_norm, "blk.{}.post_attention_norm.weight", "model.layers.{}.post_attention_layernorm.weight", hidden,
     nullptr, kRecurrent},
    {&L::mlp_norm, "blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight", hidden, nullptr,
     kPostNorms},
    {&L::mlp_post_norm, "blk.{}.post_ffw_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight", hidden,
     nullptr, kPostNorms},
    {&L::gate, "blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", mlp, hidden, 0, kExperts | kPlainMlp},
    {&L::up, "blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", mlp, hidden, 0, kExperts | kPlainMlp},
    {&L::down, "blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", hidden, mlp, 0, kExperts | kPlainMlp},
    {&L::router, "blk.{}.ffn_gate_inp.weight", "model.layers.{}.mlp.gate.weight", experts, hidden, kExperts,
     kExpertsW123},
    {&L::gate, "blk.{}.ffn_gate_exps.weight", "model.layers.{}.mlp.experts.{e}.gate_proj.weight", mlp, hidden, kExperts,
     kExpertsW123},
    {&L::up, "blk.{}.ffn_up_exps.weight", "model.layers.{}.mlp.experts.{e}.up_proj.weight", mlp, hidden, kExperts,
     kExpertsW123},
    {&L::down, "blk.{}.ffn_down_exps.weight", "model.layers.{}.mlp.experts.{e}.down_proj.weight", hidden, mlp, kExperts,
     kExpertsW123},
    {&L::gate_up, "blk.{}.ffn_gate_up_exps.weight", "model.layers.{}.mlp.experts.gate_up_proj", both_mlp, hidden,
     kFusedExperts},
    {&L::down, "blk.{}.ffn_down_exps.weight", "model.layers.{}.mlp.experts.down_proj", hidden, mlp, kFusedExperts},
    {&L::shared_open, "blk.{}.ffn_gate_inp_shexp.weight", "model.layers.{}.mlp.shared_expert_gate.weight", one, hidden,
     kSharedExpert},
    {&L::shared_gate, "blk.{}.ffn_gate_shexp.weight", "model.layers.{}.mlp.shared_expert.gate_proj.weight", shared_mlp,
     hidden, kSharedExpert},
    {&L::shared_up, "blk.{}.ffn_up_shexp.weight", "model.layers.{}.mlp.shared_expert.up_proj.weight", shared_mlp,
     hidden, kSharedExpert},
    {&L::shared_down, "blk.{}.ffn_down_shexp.weight", "model.layers.{}.mlp.shared_expert.down_proj.weight", hidden,
     shared_mlp, kSharedExpert},
    {&L::conv_in, "blk.{}.attn_qkv.weight", "model.layers.{}.linear_attn.in_proj_qkv.weight", conv_width, hidden,
     kRecurrent},
    {&L::delta_gate, "blk.{}.attn_gate.weight", "model.layers.{}.linear_attn.in_proj_z.weight", delta_width, hidden,
     kRecurrent},
    {&L::delta_b, "blk.{}.ssm_beta.weight", "model.layers.{}.linear_attn.in_proj_b.weight", delta_heads, hidden,
     kRecurrent, kKeyGroups},
    {&L::delta_a, "blk.{}.ssm_alpha.weight", "model.layers.{}.linear_attn.in_proj_a.weight", delta_heads, hidden,
     kRecurrent, kKeyGroups},
    {&L::conv_in, "blk.{}.ssm_in.weight", "model.layers.{}.linear_attn.in_proj_qkvz.weight", conv_width, hidden,
     kKeyGroups, 0, false, key_qkv},
    {&L::delta_gate, "blk.{}.ssm_in.weight", "model.layers.{}.linear_attn.in_proj_qkvz.weight", delta_width, hidden,
     kKeyGroups, 0, false, key_gate},
    {&L::delta_b, "blk.{}.ssm_ba.weight", "model.layers.{}.linear_attn.in_proj_ba.weight", delta_heads, hidden,
     kKeyGroups, 0, false, key_b},
    {&L::delta_a, "blk.{}.ssm_ba.weight", "model.layers.{}.linear_attn.in_proj_ba.weight", delta_heads, hidden,
     kKeyGroups, 0, false, key_a},
    {&L::conv, "blk.{}.ssm_conv1d.weight", "model.layers.{}.linear_attn.conv1d.weight", conv_width, taps, kRecurrent},
    {&L::delta_rate, "blk.{}.ssm_a", "model.layers.{}.linear_attn.A_log", delta_heads, nullptr, kRecurrent},
    {&L::delta_bias, "blk.{}.ssm_dt.bias", "model.layers.{}.linear_attn.dt_bias", delta_heads, nullptr, kRecurrent},
    {&L::delta_norm, "blk.{}.ssm_norm.weight", "model.layers.{}.linear_attn.norm.weight", delta_dim, nullptr,
     kRecurrent},
    {&L::o, "blk.{}.ssm_out.weight", "model.layers.{}.linear_attn.out_proj.weight", hidden, delta_width, kRecurrent},
    {&L::router, "blk.{}.ffn_gate_inp.weight", "model.layers.{}.block_sparse_moe.gate.weight", experts, hidden,
     kExpertsW123},
    {&L::gate, "blk.{}.ffn_gate_exps.weight", "model.layers.{}.block_sparse_moe.experts.{e}.w1.weight", mlp, hidden,
     kExpertsW123},
    {&L::up, "blk.{}.ffn_up_exps.weight", "model.layers.{}.block_sparse_moe.experts.{e}.w3.weight", mlp, hidden,
     kExpertsW123},
    {&L::down, "blk.{}.ffn_down_exps.weight", "model.layers.{}.block_sparse_moe.experts.{e}.w2.weight", hidden, mlp,
     kExpertsW123},
    {&L::attn_norm, "blk.{}.attn_norm.weight", "h.{}.ln_1.weight", hidden, nullptr, kGpt2},
    {&L::attn_norm_bias, "blk.{}.attn_norm.bias", "h.{}.ln_1.bias", hidden, nullptr, kGpt2},
    {&L::qkv, "blk.{}.attn_qkv.weight", "h.{}.attn.c_attn.weight", qkv_width, hidden, kGpt2, 0, true},
    {&L::qkv_bias, "blk.{}.attn_qkv.bias", "h.{}.attn.c_attn.bias", qkv_width, nullptr, kGpt2},
    {&L::o, "blk.{}.attn_output.weight", "h.{}.attn.c_proj.weight", hidden, q_width, kGpt2, 0, true},
    {&L::o_bias, "blk.{}.attn_output.bias", "h.{}.attn.c_proj.bias", hidden, nullptr, kGpt2},
    {&L::mlp_norm, "blk.{}.ffn_norm.weight", "h.{}.ln_2.weight", hidden, nullptr, kGpt2},
    {&L::mlp_norm_bias, "blk.{}.ffn_norm.bias", "h.{}.ln_2.bias", hidden, nullptr, kGpt2},
    {&L::up, "blk.{}.ffn_up.weight", "h.{}.mlp.c_fc.weight", mlp, hidden, kGpt2, 0, true},
    {&L::up_bias, "blk.{}.ffn_up.bias", "h.{}.mlp.c_fc.bias", mlp, nullptr, kGpt2},
    {&L::down, "blk.{}.ffn_down.weight", "h.{}.mlp.c_proj.weight", hidden, mlp, kGpt2, 0, true},
    {&L::down_bias, "blk.{}.ffn_down.bias", "h.{}.mlp.c_proj.bias", hidden, nullptr, kGpt2},
};

using W = DecoderWeights;
constexpr Rule<W> kModel[] = {
    {&W::embed, "token_embd.weight", "model.embed_tokens.weight", vocab, hidden, 0, kGpt2},
    {&W::final_norm, "output_norm.weight", "model.norm.weight", hidden, nullptr, 0, kGpt2},
    {&W::embed, "token_embd.weight", "wte.weight", vocab, hidden, kGpt2},
    {&W::positions, "position_embd.weight", "wpe.weight", context, hidden, kGpt2},
    {&W::final_norm, "output_norm.weight", "ln_f.weight", hidden, nullptr, kGpt2},
    {&W::final_norm_bias, "output_norm.bias", "ln_f.bias", hidden, nullptr, kGpt2},
};
constexpr Rule<W> kHead = {&W::head, "output.weight", "lm_head.weight", vocab, hidden};

using D = DraftWeights;
constexpr Rule<D> kDraft[] = {
    {&D::embed_norm, "blk.{}.nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight", hidden, nullptr},
    {&D::hidden_norm, "blk.{}.nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight", hidden, nullptr},
    {&D::fc, "blk.{}.nextn.eh_proj.weight", "mtp.fc.weight", hidden, both_hidden},
    {&D::norm, "blk.{}.nextn.shared_head_norm.weight", "mtp.norm.weight", hidden, nullptr},
};
constexpr std::string_view kLayerPrefix = "model.layers.{}.", kDraftPrefix = "mtp.layers.0.";

/// Weights that have one matrix an expert.
template <class Owner>
bool of_experts(const Rule<Owner>& r) {
  return std::string_view(r.gguf).find("_exps.") != std::string_view::npos;
}

/// What a checkpoint holds as one tensor, of what its family's may hold so or apart.
struct Joined {
  bool experts = false;  // gates and ups of all experts
  bool inputs = false;   // q, k, v and gate of a recurrent layer
};

Joined joined(const engine::WeightSource& source, const DecoderConfig& c, const std::string& gguf_layer,
              const std::string& hub_layer) {
  const engine::Checkpoint& file = source.checkpoint();
  const bool gguf = file.format() == engine::Format::gguf;
  const auto there = [&](const char* in_gguf, const char* in_hub) {
    return !source.synthetic() && file.find(gguf ? gguf_layer + in_gguf : hub_layer + in_hub) != nullptr;
  };
  return {c.has(kFusedExperts) && there("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
          c.has(kKeyGroups) && (!gguf || file.find("blk.0.ssm_in.weight") != nullptr)};
}

/// Whether the checkpoint holds it the other way.
template <class Owner>
bool stored_otherwise(const Rule<Owner>& r, const DecoderConfig& c, const Joined& together) {
  const std::string_view name = r.hf;
  const auto within = [&](const char* part) { return name.find(part) != std::string_view::npos; };
  if (c.has(kFusedExperts) && within(".mlp.experts.")) return within("{e}") == together.experts;
  return c.has(kKeyGroups) && (within("in_proj_qkv") || within("in_proj_z")) && within("_qkvz") != together.inputs;
}

/// Weights that only layers of one kind have, by their names.
template <class Owner>
bool of_layer(const Rule<Owner>& r, const DecoderConfig& c, int layer) {
  const auto within = [&](const char* part) { return std::string_view(r.hf).find(part) != std::string_view::npos; };
  return !(within(".linear_attn.") && !c.is_recurrent(static_cast<size_t>(layer))) &&
         !(within(".self_attn.") && c.is_recurrent(static_cast<size_t>(layer)));
}

bool applies(const Family& f, uint32_t needs, uint32_t lacks) { return f.has(needs) && (f.features & lacks) == 0; }

template <class Owner>
Status load(const engine::WeightSource& source, const DecoderConfig& c, const Rule<Owner>& r, int layer, Owner* owner,
            const Joined& together = {}) {
  if (!applies(*c.family, r.needs, r.lacks) || !of_layer(r, c, layer) || stored_otherwise(r, c, together)) return {};
  // Hub files store a convolution along tokens with an axis for the channels that each of its own sees.
  const bool conv = source.checkpoint().format() == engine::Format::safetensors &&
                    std::string_view(r.hf).find(".conv1d.") != std::string_view::npos;
  const Shape shape = conv            ? Shape(r.rows(c), 1, r.cols(c))
                      : of_experts(r) ? Shape(c.experts, r.rows(c), r.cols(c))
                      : r.cols        ? Shape(r.rows(c), r.cols(c))
                                      : Shape(r.rows(c));
  std::string name = r.hf;
  if (layer == c.layers && name.starts_with(kLayerPrefix)) name.replace(0, kLayerPrefix.size(), kDraftPrefix);
  // Of a model that sees, the language model is a part.
  if (c.has(kNested) && name.starts_with("model.")) name.insert(6, "language_model.");
  Tensor& t = owner->*r.sink;
  VV_ASSIGN(t,
            source.get({r.gguf, name.c_str(), shape, r.hf_transposed, r.pieces ? r.pieces(c) : RowPieces{}}, layer));
  if (conv) t = tensor(t.data, t.dtype, Shape(r.rows(c), r.cols(c)));
  return {};
}

/// Gates and ups of all experts, one tensor, as two views.
void split_experts(const DecoderConfig& c, LayerWeights& w) {
  const Tensor both = std::exchange(w.gate_up, {});
  const auto half = [&](int64_t first) {
    Tensor t = tensor(both.data, both.dtype, Shape(c.experts, c.mlp, c.hidden));
    t.data = static_cast<char*>(both.data) + first * row_bytes(both.dtype, c.hidden);
    t.stride[0] = both.stride[0];
    return t;
  };
  w.gate = half(0);
  w.up = half(c.mlp);
}

/// Kept matrices become 16 bits where no product takes them as they are: routers, shared experts, what a recurrent
/// layer decays and corrects by, and parts of one product of which not all are kept, or FP4 does not share a scale.
void upcast(const engine::WeightSource& source, LayerWeights& w) {
  const auto alike = [&](const Tensor& a, const Tensor& b) {
    const engine::Scales *const of_a = source.scales_of(a), *const of_b = source.scales_of(b);
    if (of_a == nullptr || of_b == nullptr || a.dtype != b.dtype) return of_a == of_b;
    return a.dtype == DType::e4m3 ||
           *static_cast<const float*>(of_a->whole.data) == *static_cast<const float*>(of_b->whole.data);
  };
  const auto all = [&](std::initializer_list<Tensor*> parts) {
    for (Tensor* t : parts)
      if (source.scales_of(*t) != nullptr) *t = source.widened(*t);
  };
  if (!alike(w.q, w.k) || !alike(w.q, w.v) || (w.attn_gate.present() && !alike(w.q, w.attn_gate)))
    all({&w.q, &w.k, &w.v, &w.attn_gate});
  if (!alike(w.conv_in, w.delta_gate)) all({&w.conv_in, &w.delta_gate});
  if (w.gate.present() && !alike(w.gate, w.up)) all({&w.gate, &w.up});
  all({&w.router, &w.delta_b, &w.delta_a, &w.shared_open, &w.shared_gate, &w.shared_up, &w.shared_down});
}

/// A draft layer's products take 16-bit rows under every plan, so e4m3 is none of its.
void upcast_draft(const engine::WeightSource& source, DraftWeights& d) {
  LayerWeights& w = d.layer;
  for (Tensor* t : {&d.fc, &w.q, &w.k, &w.v, &w.attn_gate, &w.o, &w.gate, &w.up, &w.down})
    if (t->dtype == DType::e4m3 && source.scales_of(*t) != nullptr) *t = source.widened(*t);
  upcast(source, w);
}

/// Its layer is number config.layers, which no list of kinds of layers has: one that attends.
Status load_draft(const engine::WeightSource& source, const DecoderConfig& config, DraftWeights* weights) {
  const auto number = static_cast<int>(config.layers);
  const Joined together = joined(source, config, strf("blk.%d.", number), "mtp.layers.0.");
  for (const auto& rule : kDraft) VV_TRY(load(source, config, rule, number, weights));
  for (const auto& rule : kLayer) VV_TRY(load(source, config, rule, number, &weights->layer, together));
  if (together.experts) split_experts(config, weights->layer);
  upcast_draft(source, *weights);
  return {};
}

}  // namespace

Status load_weights(engine::WeightSource& source, const DecoderConfig& config, DecoderWeights* weights) {
  // GPT-2 was published without the prefix that saving it again adds.
  if (config.has(kGpt2) && source.checkpoint().find("transformer.wte.weight") != nullptr)
    source.set_hub_prefix("transformer.");
  for (const auto& rule : kModel) VV_TRY(load(source, config, rule, -1, weights));
  if (config.tied) weights->head = weights->embed;
  else VV_TRY(load(source, config, kHead, -1, weights));
  const WeightRule factors{"rope_freqs.weight", "", Shape(config.rope_dims / 2)};
  if (source.has(factors)) {
    VV_ASSIGN(weights->rope_factors, source.get(factors, -1));
    VV_CHECK_EQ(kInvalidDType, std::string("f32"), std::string(name(weights->rope_factors.dtype)));
  }
  const bool gguf = source.checkpoint().format() == engine::Format::gguf;
  const Joined together =
      joined(source, config, "blk.0.", config.has(kNested) ? "model.language_model.layers.0." : "model.layers.0.");
  weights->layers.resize(static_cast<size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i) {
    LayerWeights& w = weights->layers[static_cast<size_t>(i)];
    for (const auto& rule : kLayer) VV_TRY(load(source, config, rule, i, &w, together));
    if (together.experts) split_experts(config, w);
    if (gguf && config.is_recurrent(static_cast<size_t>(i))) VV_TRY(undo_gguf_layout(source, config, &w));
    upcast(source, w);
  }
  return config.drafts ? load_draft(source, config, &weights->draft) : Status();
}

std::vector<WeightName> weight_names(const Family& family) {
  std::vector<WeightName> names;
  const auto add = [&](const auto& r) {
    if (applies(family, r.needs, r.lacks)) names.push_back({r.gguf, r.hf, r.hf_transposed});
  };
  for (const auto& r : kModel) add(r);
  add(kHead);
  for (const auto& r : kLayer) add(r);
  return names;
}

}  // namespace vivace::models::decoder
