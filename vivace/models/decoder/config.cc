#include "vivace/models/decoder/config.h"

#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/registry.h"
#include "vivace/models/decoder/quantization_config.h"

namespace vivace::models::decoder {
namespace {

using engine::Checkpoint;
using engine::Json;
using engine::JsonValue;
using engine::Metadata;

constexpr int64_t kMaxLayers = 1024;

/// The family whose `arch` member equals `architecture`, with experts or without where there are both.
Result<const Family*> find_family(const char* Family::*arch, std::string_view architecture, bool experts) {
  const Family* found = nullptr;
  for (const Family& f : kFamilies)
    if (architecture == f.*arch &&
        (found == nullptr || (f.has(kExperts) == experts && found->has(kExperts) != experts)))
      found = &f;
  if (found != nullptr) return found;
  return Status(Code::kUnsupported,
                "architecture '" + std::string(architecture) + "' is no decoder family of this version");
}

Result<ops::RopeKind> rope_kind(std::string_view kind, const char* field) {
  Result<ops::RopeKind> r = ops::rope_kind(std::string(kind));
  if (!r.ok()) return std::move(r).status().with_context(field);
  return r;
}

// ---- GGUF ----

class Gguf {
 public:
  Gguf(const Metadata& meta, std::string_view arch) : meta_(meta), prefix_(std::string(arch) + ".") {}
  bool has(const char* key) const { return meta_.has(prefix_ + key); }
  Status integer(const char* key, int64_t* out) const {
    VV_ASSIGN(*out, meta_.get_i64(prefix_ + key));
    return {};
  }
  Status number(const char* key, double* out) const {
    VV_ASSIGN(*out, meta_.get_f64(prefix_ + key));
    return {};
  }
  /// Leaves `out` alone where the key is absent.
  Status maybe(const char* key, int64_t* out) const { return has(key) ? integer(key, out) : Status(); }
  Status maybe(const char* key, double* out) const { return has(key) ? number(key, out) : Status(); }
  Result<std::string_view> text(const char* key) const { return meta_.get_string(prefix_ + key); }

 private:
  const Metadata& meta_;
  std::string prefix_;
};

/// Gemma 3's files state the window; the pattern and the smaller theta are the architecture's.
Status read_gguf_local(const Gguf& g, DecoderConfig* c) {
  constexpr int64_t kLayersOf27B = 62;
  int64_t global_every = 6;
  VV_TRY(g.maybe("attention.sliding_window_pattern", &global_every));
  if (global_every < 1)
    return Status(Code::kInvalidArgument, strf("attention.sliding_window_pattern: wanted at least 1, got %ld",
                                               static_cast<long>(global_every)));
  VV_TRY(g.integer("attention.sliding_window", &c->window));
  VV_TRY(g.maybe("rope.freq_base_swa", &c->local_theta));
  c->rope_theta = 1e6;
  // Checked here too: the list is as long as the file says.
  if (c->layers < 1 || c->layers > kMaxLayers) return {};
  for (int64_t i = 0; i < c->layers; ++i) c->local.push_back((i + 1) % global_every != 0);
  if (c->layers == kLayersOf27B && c->heads > 0)
    c->attn_scale = 1 / std::sqrt(static_cast<double>(c->hidden) / static_cast<double>(c->heads));
  return {};
}

/// Layers that carry a state, under the names of state space models. Draft layers are counted with the others, and lie
/// behind them.
Status read_gguf_recurrent(const Gguf& g, DecoderConfig* c) {
  RecurrentConfig& r = c->linear;
  int64_t drafts = 0, interval = 4, width = 0;
  VV_TRY(g.maybe("nextn_predict_layers", &drafts));
  if (drafts < 0 || drafts >= c->layers)
    return Status(Code::kInvalidArgument, strf("nextn_predict_layers: wanted 0 to %ld, got %ld",
                                               static_cast<long>(c->layers - 1), static_cast<long>(drafts)));
  c->layers -= drafts;
  VV_TRY(g.integer("ssm.group_count", &r.k_heads));
  VV_TRY(g.integer("ssm.time_step_rank", &r.v_heads));
  VV_TRY(g.integer("ssm.state_size", &r.k_dim));
  VV_TRY(g.integer("ssm.inner_size", &width));
  VV_TRY(g.integer("ssm.conv_kernel", &r.taps));
  VV_TRY(g.integer("rope.dimension_count", &c->rope_dims));
  if (r.v_heads < 1 || width < 1 || width % r.v_heads != 0)
    return Status(Code::kInvalidArgument, strf("ssm.inner_size: wanted a multiple of ssm.time_step_rank %ld, got %ld",
                                               static_cast<long>(r.v_heads), static_cast<long>(width)));
  r.v_dim = width / r.v_heads;
  VV_TRY(g.maybe("full_attention_interval", &interval));
  if (interval < 1)
    return Status(Code::kInvalidArgument,
                  strf("full_attention_interval: wanted at least 1, got %ld", static_cast<long>(interval)));
  // Checked here too: the list is as long as the file says.
  if (c->layers < 1 || c->layers > kMaxLayers) return {};
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent.push_back((i + 1) % interval != 0);
  return {};
}

Status read_gguf(const Checkpoint& checkpoint, DecoderConfig* c) {
  const Metadata& meta = checkpoint.metadata();
  VV_ASSIGN(const std::string_view arch, meta.get_string("general.architecture"));
  const Gguf g(meta, arch);
  VV_TRY(g.maybe("expert_count", &c->experts));
  VV_ASSIGN(c->family, find_family(&Family::gguf_arch, arch, c->experts > 0));
  if (c->has(kVision))
    return Status(Code::kUnsupported,
                  strf("architecture %s: its GGUF files keep the vision tower apart; load the folder with config.json "
                       "and safetensors",
                       c->family->gguf_arch));
  VV_TRY(g.integer("block_count", &c->layers));
  VV_TRY(g.integer("embedding_length", &c->hidden));
  VV_TRY(g.integer("attention.head_count", &c->heads));
  c->kv_heads = c->heads;
  VV_TRY(g.maybe("attention.head_count_kv", &c->kv_heads));
  c->head_dim = c->heads > 0 ? c->hidden / c->heads : 0;
  VV_TRY(g.maybe("attention.key_length", &c->head_dim));
  if (!c->has(kSharedExpert)) VV_TRY(g.integer("feed_forward_length", &c->mlp));
  VV_TRY(g.integer("context_length", &c->context));
  if (c->has(kSharedExpert)) {
    VV_TRY(g.integer("expert_feed_forward_length", &c->mlp));
    VV_TRY(g.integer("expert_shared_feed_forward_length", &c->shared_mlp));
  }
  if (c->has(kExperts)) {
    VV_TRY(g.integer("expert_used_count", &c->experts_used));
    VV_TRY(g.maybe("expert_feed_forward_length", &c->mlp));
  }
  VV_TRY(g.number(c->has(kLayerNorm) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", &c->eps));
  if (c->has(kLocalLayers)) VV_TRY(read_gguf_local(g, c));
  if (c->has(kRecurrent)) VV_TRY(read_gguf_recurrent(g, c));
  VV_TRY(g.maybe("attention.scale", &c->attn_scale));
  c->rope_style = c->family->gguf_rope;
  VV_TRY(g.maybe("rope.freq_base", &c->rope_theta));
  c->rope_dims = c->has(kLearnedPositions) ? 0 : c->head_dim;
  if (c->rope_dims != 0) VV_TRY(g.maybe("rope.dimension_count", &c->rope_dims));
  if (g.has("rope.scaling.type")) {
    VV_ASSIGN(const std::string_view kind, g.text("rope.scaling.type"));
    VV_ASSIGN(c->rope_scaling.kind, rope_kind(kind, "rope.scaling.type"));
    VV_TRY(g.maybe("rope.scaling.factor", &c->rope_scaling.factor));
    c->rope_scaling.original_context = static_cast<double>(c->context);
    VV_TRY(g.maybe("rope.scaling.original_context_length", &c->rope_scaling.original_context));
    VV_TRY(g.maybe("rope.scaling.attn_factor", &c->rope_scaling.attn_factor));
  }
  const engine::TensorEntry* embed = checkpoint.find("token_embd.weight");
  if (embed == nullptr) return Status(Code::kNotFound, "tensor token_embd.weight is missing");
  c->vocab = embed->shape[0];
  c->tied = checkpoint.find("output.weight") == nullptr;
  return {};
}

// ---- hub: config.json beside the safetensors ----

Status read_rope(const JsonValue& root, DecoderConfig* c) {
  if (c->has(kLearnedPositions)) return {};
  // transformers 5 keeps theta and scaling together in rope_parameters; older files spread them.
  std::optional<JsonValue> scaling = root.find("rope_parameters");
  if (!scaling || scaling->is_null()) scaling = root.find("rope_scaling");
  VV_ASSIGN(c->rope_theta, root.get_double("rope_theta", c->has(kLocalLayers) ? 1e6 : 10000));
  VV_ASSIGN(c->local_theta, root.get_double("rope_local_base_freq", c->local_theta));
  c->rope_dims = c->head_dim;
  if (c->has(kRecurrent)) {  // of whose heads a part rotates
    VV_ASSIGN(double part, root.get_double("partial_rotary_factor", 0.25));
    if (scaling && !scaling->is_null()) {
      VV_ASSIGN(part, scaling->get_double("partial_rotary_factor", part));
    }
    if (!(part > 0 && part <= 1))
      return root.error(Code::kInvalidArgument, strf("partial_rotary_factor: wanted a value in (0, 1], got %g", part));
    c->rope_dims = static_cast<int64_t>(static_cast<double>(c->head_dim) * part);
  }
  if (!scaling || scaling->is_null()) return {};
  if (c->has(kLocalLayers)) {  // the newer form has one such object a kind of layer
    if (const auto local = scaling->find("sliding_attention"); local && !local->is_null()) {
      VV_ASSIGN(c->local_theta, local->get_double("rope_theta", c->local_theta));
      VV_ASSIGN(const std::string_view kind, local->get_string("rope_type", "default"));
      if (kind != "default")
        return local->error(Code::kUnsupported, "sliding-window layers with scaled rope are not served");
    }
    if (const auto global = scaling->find("full_attention"); global && !global->is_null()) scaling = global;
  }
  const JsonValue s = *scaling;
  VV_ASSIGN(c->rope_theta, s.get_double("rope_theta", c->rope_theta));
  VV_ASSIGN(const std::string_view old_name, s.get_string("type", "default"));
  VV_ASSIGN(const std::string_view kind, s.get_string("rope_type", old_name));
  VV_ASSIGN(c->rope_scaling.kind, rope_kind(kind, "config.json: rope_scaling.rope_type"));
  if (c->rope_scaling.kind == ops::RopeKind::none) return {};
  VV_ASSIGN(c->rope_scaling.factor, s.get_double("factor"));
  VV_ASSIGN(c->rope_scaling.original_context,
            s.get_double("original_max_position_embeddings", static_cast<double>(c->context)));
  VV_ASSIGN(c->rope_scaling.low_freq, s.get_double("low_freq_factor", c->rope_scaling.low_freq));
  VV_ASSIGN(c->rope_scaling.high_freq, s.get_double("high_freq_factor", c->rope_scaling.high_freq));
  VV_ASSIGN(c->rope_scaling.beta_fast, s.get_double("beta_fast", c->rope_scaling.beta_fast));
  VV_ASSIGN(c->rope_scaling.beta_slow, s.get_double("beta_slow", c->rope_scaling.beta_slow));
  VV_ASSIGN(c->rope_scaling.truncate, s.get_bool("truncate", c->rope_scaling.truncate));
  VV_ASSIGN(c->rope_scaling.attn_factor, s.get_double("attention_factor", 0));
  VV_ASSIGN(c->rope_scaling.mscale, s.get_double("mscale", 0));
  VV_ASSIGN(c->rope_scaling.mscale_all_dim, s.get_double("mscale_all_dim", 0));
  return {};
}

/// Layers with a sliding window: layer_types, or every layer but each sliding_window_pattern-th.
Status read_local(const JsonValue& root, DecoderConfig* c) {
  VV_ASSIGN(c->window, root.get_int("sliding_window"));
  VV_ASSIGN(const double scalar, root.get_double("query_pre_attn_scalar", 256));
  c->attn_scale = scalar > 0 ? 1 / std::sqrt(scalar) : 0;
  if (c->layers < 1 || c->layers > kMaxLayers) return {};  // refused later; the list is as long as the file says
  const auto types = root.find("layer_types");
  if (!types || types->is_null()) {
    VV_ASSIGN(const int64_t pattern, root.get_int("sliding_window_pattern", 6));
    if (pattern < 1)
      return Status(Code::kInvalidArgument, strf("config.json: sliding_window_pattern: wanted at least 1, got %ld",
                                                 static_cast<long>(pattern)));
    for (int64_t i = 0; i < c->layers; ++i) c->local.push_back((i + 1) % pattern != 0);
    return {};
  }
  if (!types->is_array() || static_cast<int64_t>(types->size()) != c->layers)
    return types->error(Code::kInvalidShape, strf("expected a list of %ld layers", static_cast<long>(c->layers)));
  for (const JsonValue type : *types) {
    VV_ASSIGN(const std::string_view t, type.as_string());
    if (t != "sliding_attention" && t != "full_attention")
      return type.error(Code::kUnsupported, "expected sliding_attention or full_attention");
    c->local.push_back(t == "sliding_attention");
  }
  return {};
}

/// Which layers carry a state: layer_types, or all but each full_attention_interval-th.
Status read_recurrent(const JsonValue& root, DecoderConfig* c) {
  RecurrentConfig& r = c->linear;
  VV_ASSIGN(r.k_heads, root.get_int("linear_num_key_heads"));
  VV_ASSIGN(r.v_heads, root.get_int("linear_num_value_heads"));
  VV_ASSIGN(r.k_dim, root.get_int("linear_key_head_dim"));
  VV_ASSIGN(r.v_dim, root.get_int("linear_value_head_dim"));
  VV_ASSIGN(r.taps, root.get_int("linear_conv_kernel_dim", 4));
  VV_ASSIGN(const bool gated, root.get_bool("attn_output_gate", true));
  if (!gated) return root.error(Code::kUnsupported, "attn_output_gate: attention without its gate is not served");
  if (c->layers < 1 || c->layers > kMaxLayers) return {};  // refused later; the list is as long as the file says
  const auto types = root.find("layer_types");
  if (!types || types->is_null()) {
    VV_ASSIGN(const int64_t interval, root.get_int("full_attention_interval", 4));
    if (interval < 1)
      return root.error(Code::kInvalidArgument,
                        strf("full_attention_interval: wanted at least 1, got %ld", static_cast<long>(interval)));
    for (int64_t i = 0; i < c->layers; ++i) c->recurrent.push_back((i + 1) % interval != 0);
    return {};
  }
  if (!types->is_array() || static_cast<int64_t>(types->size()) != c->layers)
    return types->error(Code::kInvalidShape, strf("expected a list of %ld layers", static_cast<long>(c->layers)));
  for (const JsonValue type : *types) {
    VV_ASSIGN(const std::string_view t, type.as_string());
    if (t != "linear_attention" && t != "full_attention")
      return type.error(Code::kUnsupported, "expected linear_attention or full_attention");
    c->recurrent.push_back(t == "linear_attention");
  }
  return {};
}

Status read_experts(const JsonValue& root, DecoderConfig* c) {
  VV_ASSIGN(c->experts_used, root.get_int("num_experts_per_tok"));
  if (c->has(kExpertsW123)) {
    VV_ASSIGN(c->experts, root.get_int("num_local_experts"));
    return {};
  }
  VV_ASSIGN(c->experts, root.get_int("num_experts"));
  VV_ASSIGN(c->mlp, root.get_int("moe_intermediate_size"));
  VV_ASSIGN(c->renormalize, root.get_bool("norm_topk_prob", c->has(kFusedExperts)));
  if (c->has(kSharedExpert)) {
    VV_ASSIGN(c->shared_mlp, root.get_int("shared_expert_intermediate_size"));
  }
  VV_ASSIGN(const int64_t step, root.get_int("decoder_sparse_step", 1));
  const auto dense = root.find("mlp_only_layers");
  if (step != 1 || (dense && dense->is_array() && dense->size() != 0))
    return Status(Code::kUnsupported,
                  "config.json: decoder_sparse_step, mlp_only_layers: layers without experts between layers with them "
                  "are not served");
  return {};
}

/// Features of a config that would change the arithmetic and that the pipeline does not have.
Status refuse_unserved(const JsonValue& root, const Family& family) {
  VV_ASSIGN(const std::string_view act, root.get_string(family.keys->act, family.hub_act));
  if (act != family.hub_act)
    return Status(Code::kUnsupported,
                  strf("config.json: %s: wanted %s, got '", family.keys->act, family.hub_act) + std::string(act) + "'");
  for (const char* flag : {"attention_bias", "mlp_bias", "use_sliding_window", "use_bidirectional_attention",
                           "scale_attn_by_inverse_layer_idx"}) {
    const auto value = root.find(flag);
    if (!value || value->is_null()) continue;
    VV_ASSIGN(const bool on, root.get_bool(flag));
    if (on) return Status(Code::kUnsupported, strf("config.json: %s: true is not served", flag));
  }
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (const auto value = root.find(cap); value && !value->is_null())
      return Status(Code::kUnsupported, strf("config.json: %s is not served", cap));
  if (const auto window = root.find("sliding_window");
      window && !window->is_null() && !family.has(kLocalLayers) && !root.find("use_sliding_window"))
    return Status(Code::kUnsupported, "config.json: sliding_window: a window in every layer is not served");
  VV_ASSIGN(const bool scaled, root.get_bool("scale_attn_weights", true));
  if (!scaled) return Status(Code::kUnsupported, "config.json: scale_attn_weights: false is not served");
  if (const auto q = root.find("quantization_config"); q && !q->is_null()) return check_quantization(*q);
  return {};
}

/// The vision tower, and where images stand in prompts and in positions. `text`: the language model's part.
Status read_images(const JsonValue& root, const JsonValue& text, DecoderConfig* c) {
  VV_ASSIGN(const JsonValue vision, root.at("vision_config"));
  c->vision.out = c->hidden;
  VV_TRY(vision::read_vision(vision, &c->vision));
  if (static_cast<int64_t>(c->vision.deepstack.size()) > c->layers)
    return vision.error(Code::kCorruptData, "deepstack_visual_indexes: more levels than the language model has layers");
  VV_ASSIGN(c->image_token, root.get_int("image_token_id"));
  if (c->image_token < 0 || c->image_token >= c->vocab)
    return root.error(Code::kCorruptData, strf("image_token_id: wanted one of the vocabulary's %ld tokens, got %ld",
                                               static_cast<long>(c->vocab), static_cast<long>(c->image_token)));
  std::optional<JsonValue> rope = text.find("rope_parameters");
  if (!rope || rope->is_null()) rope = text.find("rope_scaling");
  if (!rope || rope->is_null()) return {};
  VV_ASSIGN(const bool interleaved, rope->get_bool("mrope_interleaved", true));
  if (!interleaved) return rope->error(Code::kUnsupported, "only mrope_interleaved true is served");
  const auto sections = rope->find("mrope_section");
  if (!sections) return {};
  if (!sections->is_array() || sections->size() != 3) return sections->error(Code::kCorruptData, "wanted three counts");
  int64_t sum = 0;
  size_t i = 0;
  for (const JsonValue n : *sections) {
    VV_ASSIGN(const int64_t pairs, n.as_int());
    if (pairs < 0 || pairs > c->head_dim) return n.error(Code::kCorruptData, "wanted a count of pairs");
    sum += c->sections[i++] = pairs;
  }
  if (2 * sum != c->head_dim)
    return sections->error(Code::kCorruptData, strf("wanted %ld pairs in all, half of head_dim, got %ld",
                                                    static_cast<long>(c->head_dim / 2), static_cast<long>(sum)));
  return {};
}

Status read_hub(const Checkpoint& checkpoint, DecoderConfig* c) {
  VV_ASSIGN(const Json json, engine::hub_config(checkpoint));
  VV_ASSIGN(const std::string arch, engine::architecture(checkpoint));
  VV_ASSIGN(c->family, find_family(&Family::hf_arch, arch, false));
  const JsonValue whole = json.root();
  VV_ASSIGN(const JsonValue root, c->has(kNested) ? whole.at("text_config") : Result<JsonValue>(whole));
  if (const auto q = whole.find("quantization_config"); c->has(kNested) && q && !q->is_null())
    VV_TRY(check_quantization(*q));
  VV_TRY(refuse_unserved(root, *c->family));
  const HubKeys& key = *c->family->keys;
  VV_ASSIGN(c->layers, root.get_int(key.layers));
  VV_ASSIGN(c->hidden, root.get_int(key.hidden));
  VV_ASSIGN(c->heads, root.get_int(key.heads));
  VV_ASSIGN(c->kv_heads, root.get_int("num_key_value_heads", c->heads));
  VV_ASSIGN(c->head_dim, root.get_int("head_dim", c->heads > 0 ? c->hidden / c->heads : 0));
  const auto mlp = root.find(key.mlp);
  if (c->has(kPlainMlp) && (!mlp || mlp->is_null())) {
    c->mlp = c->hidden <= INT64_MAX / 4 ? 4 * c->hidden : c->hidden;  // what is that large is refused by check()
  } else if (!c->has(kFusedExperts)) {
    VV_ASSIGN(c->mlp, root.get_int(key.mlp));
  }
  VV_ASSIGN(c->vocab, root.get_int("vocab_size"));
  VV_ASSIGN(c->context, root.get_int(key.context));
  VV_ASSIGN(c->eps, root.get_double(key.eps, c->has(kLayerNorm) ? 1e-5 : 1e-6));
  VV_ASSIGN(c->tied, root.get_bool("tie_word_embeddings", c->has(kTied)));
  if (c->has(kNested)) {
    VV_ASSIGN(c->tied, whole.get_bool("tie_word_embeddings", c->tied));
  }
  c->norm_plus_one = c->has(kHubPlusOne);
  if (c->has(kExperts)) VV_TRY(read_experts(root, c));
  if (c->has(kLocalLayers)) VV_TRY(read_local(root, c));
  if (c->has(kRecurrent)) VV_TRY(read_recurrent(root, c));
  if (c->has(kVision)) VV_TRY(read_images(whole, root, c));
  return read_rope(root, c);
}

/// Bounds that keep every product of two of them far inside int64, and rules between them.
Status check(const DecoderConfig& c) {
  const auto in_range = [](const char* what, int64_t v, int64_t most) {
    return v >= 1 && v <= most ? Status()
                               : Status(Code::kInvalidArgument, strf("config: %s: wanted 1 to %ld, got %ld", what,
                                                                     static_cast<long>(most), static_cast<long>(v)));
  };
  VV_TRY(in_range("layers", c.layers, kMaxLayers));
  VV_TRY(in_range("hidden size", c.hidden, 1 << 20));
  VV_TRY(in_range("heads", c.heads, 4096));
  VV_TRY(in_range("kv heads", c.kv_heads, c.heads));
  VV_TRY(in_range("head dim", c.head_dim, 1024));
  VV_TRY(in_range("mlp size", c.mlp, 1 << 22));
  VV_TRY(in_range("vocabulary", c.vocab, 1 << 22));
  VV_TRY(in_range("context", c.context, 1 << 26));
  if (!(c.attn_scale >= 0 && c.attn_scale < 1e6))
    return Status(Code::kInvalidArgument,
                  strf("config: attention scale: wanted a value in [0, 1e6), got %g", c.attn_scale));
  if (!c.has(kLearnedPositions)) VV_TRY(in_range("rope dims", c.rope_dims, c.head_dim));
  if (c.has(kLocalLayers)) VV_TRY(in_range("sliding window", c.window, 1 << 26));
  if (c.has(kRecurrent)) {
    VV_TRY(in_range("linear key heads", c.linear.k_heads, 4096));
    VV_TRY(in_range("linear value heads", c.linear.v_heads, 4096));
    VV_TRY(in_range("linear key head dim", c.linear.k_dim, 512));
    VV_TRY(in_range("linear value head dim", c.linear.v_dim, 512));
    if (c.linear.taps < 2 || c.linear.taps > 8)
      return Status(Code::kInvalidArgument,
                    strf("config: linear_conv_kernel_dim: wanted 2 to 8, got %ld", static_cast<long>(c.linear.taps)));
    if (c.linear.v_heads % c.linear.k_heads != 0)
      return Status(Code::kInvalidArgument,
                    strf("config: %ld linear value heads are no multiple of %ld linear key heads",
                         static_cast<long>(c.linear.v_heads), static_cast<long>(c.linear.k_heads)));
  }
  if (c.has(kRecurrent) && c.recurrent_layers() == c.layers)
    return Status(Code::kUnsupported,
                  "config: layers that are all linear_attention are not served: one at least must "
                  "be full_attention");
  if (c.has(kSharedExpert)) VV_TRY(in_range("shared expert size", c.shared_mlp, 1 << 22));
  if (c.has(kExperts)) {
    VV_TRY(in_range("experts", c.experts, 4096));
    VV_TRY(in_range("experts of a token", c.experts_used, c.experts));
  }
  if (c.has(kFusedQkv) && (c.kv_heads != c.heads || c.q_width() != c.hidden))
    return Status(
        Code::kInvalidArgument,
        "config: a fused qkv projection wants as many kv heads as heads, and heads that fill the hidden size");
  if (c.heads % c.kv_heads != 0)
    return Status(Code::kInvalidArgument, strf("config: %ld heads are no multiple of %ld kv heads",
                                               static_cast<long>(c.heads), static_cast<long>(c.kv_heads)));
  if (c.rope_dims % 2 != 0)
    return Status(Code::kInvalidArgument,
                  strf("config: rope dims must be even, got %ld", static_cast<long>(c.rope_dims)));
  if (!(c.eps > 0 && c.eps < 1))
    return Status(Code::kInvalidArgument, strf("config: norm epsilon: wanted a value in (0, 1), got %g", c.eps));
  return {};
}

}  // namespace

/// A file's draft layer is the block behind the others, and goes on from rows behind the final norm.
Status read_gguf_drafts(const Checkpoint& checkpoint, bool synthetic, DecoderConfig* c) {
  const Metadata& meta = checkpoint.metadata();
  VV_ASSIGN(const std::string_view arch, meta.get_string("general.architecture"));
  int64_t layers = 0;
  VV_TRY(Gguf(meta, arch).maybe("nextn_predict_layers", &layers));
  const std::string block = strf("blk.%ld.nextn.", static_cast<long>(c->layers));
  if (layers == 0 || (!synthetic && checkpoint.find(block + "eh_proj.weight") == nullptr))
    return Status(Code::kNotFound,
                  "mtp: the file has no draft layer (" + block + "eh_proj.weight); leave it out, or convert with it");
  if (layers != 1)
    return Status(Code::kUnsupported,
                  strf("nextn_predict_layers: one draft layer is served, got %ld", static_cast<long>(layers)));
  for (const char* own : {"embed_tokens.weight", "shared_head_head.weight"})
    if (checkpoint.find(block + own) != nullptr)
      return Status(Code::kUnsupported,
                    "mtp: " + block + own + ": a draft layer with a table of its own is not served; leave mtp out");
  c->drafts_from_normed = true;
  c->drafts = true;
  return {};
}

Status read_drafts(const Checkpoint& checkpoint, bool synthetic, DecoderConfig* c) {
  if (!c->has(kRecurrent))
    return Status(Code::kUnsupported, strf("mtp: draft layers of %s are not served; leave it out, or give draft= to "
                                           "generate",
                                           c->family->name));
  if (checkpoint.format() == engine::Format::gguf) return read_gguf_drafts(checkpoint, synthetic, c);
  VV_ASSIGN(const Json json, engine::hub_config(checkpoint));
  const JsonValue whole = json.root();
  VV_ASSIGN(const JsonValue root, c->has(kNested) ? whole.at("text_config") : Result<JsonValue>(whole));
  const char* const count =
      root.find("num_nextn_predict_layers") ? "num_nextn_predict_layers" : "mtp_num_hidden_layers";
  VV_ASSIGN(const int64_t layers, root.get_int(count, 1));
  if (layers == 0 || (!synthetic && checkpoint.find("mtp.fc.weight") == nullptr))
    return Status(Code::kNotFound, "mtp: the checkpoint has no draft layer (mtp.fc.weight); leave it out");
  if (layers != 1)
    return root.error(Code::kUnsupported,
                      strf("%s: one draft layer is served, got %ld", count, static_cast<long>(layers)));
  VV_ASSIGN(const bool own_table, root.get_bool("mtp_use_dedicated_embeddings", false));
  if (own_table) return root.error(Code::kUnsupported, "mtp_use_dedicated_embeddings: true is not served");
  VV_ASSIGN(const std::string_view from, root.get_string("mtp_hidden_state", "after_norm"));
  if (from != "after_norm" && from != "before_norm")
    return root.error(Code::kUnsupported, "mtp_hidden_state: wanted after_norm or before_norm");
  c->drafts_from_normed = from == "after_norm";
  c->drafts = true;
  return {};
}

Result<DecoderConfig> read_config(const Checkpoint& checkpoint) {
  DecoderConfig c;
  VV_TRY(checkpoint.format() == engine::Format::gguf ? read_gguf(checkpoint, &c) : read_hub(checkpoint, &c));
  VV_TRY(check(c));
  return c;
}

}  // namespace vivace::models::decoder
