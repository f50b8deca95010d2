#include "vivace/models/decoder/config.h"

#include "vivace/base/check.h"
#include "vivace/engine/registry.h"

namespace vivace::models::decoder {
namespace {

using engine::Checkpoint;
using engine::Json;
using engine::JsonValue;
using engine::Metadata;

/// The family whose `arch` member equals `architecture`.
Result<const Family*> find_family(const char* Family::*arch, std::string_view architecture) {
  for (const Family& f : kFamilies)
    if (architecture == f.*arch) return &f;
  return Status(Code::kUnsupported, "architecture '" + std::string(architecture) + "' is no decoder family of this version");
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

Status read_gguf(const Checkpoint& checkpoint, DecoderConfig* c) {
  const Metadata& meta = checkpoint.metadata();
  VV_ASSIGN(const std::string_view arch, meta.get_string("general.architecture"));
  VV_ASSIGN(c->family, find_family(&Family::gguf_arch, arch));
  const Gguf g(meta, arch);
  VV_TRY(g.integer("block_count", &c->layers));
  VV_TRY(g.integer("embedding_length", &c->hidden));
  VV_TRY(g.integer("attention.head_count", &c->heads));
  c->kv_heads = c->heads;
  VV_TRY(g.maybe("attention.head_count_kv", &c->kv_heads));
  c->head_dim = c->heads > 0 ? c->hidden / c->heads : 0;
  VV_TRY(g.maybe("attention.key_length", &c->head_dim));
  VV_TRY(g.integer("feed_forward_length", &c->mlp));
  VV_TRY(g.integer("context_length", &c->context));
  VV_TRY(g.number("attention.layer_norm_rms_epsilon", &c->eps));
  c->rope_style = c->family->gguf_rope;
  VV_TRY(g.maybe("rope.freq_base", &c->rope_theta));
  c->rope_dims = c->head_dim;
  VV_TRY(g.maybe("rope.dimension_count", &c->rope_dims));
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
  // transformers 5 keeps theta and scaling together in rope_parameters; older files spread them.
  std::optional<JsonValue> scaling = root.find("rope_parameters");
  if (!scaling || scaling->is_null()) scaling = root.find("rope_scaling");
  VV_ASSIGN(c->rope_theta, root.get_double("rope_theta", 10000));
  c->rope_dims = c->head_dim;
  if (!scaling || scaling->is_null()) return {};
  const JsonValue s = *scaling;
  VV_ASSIGN(c->rope_theta, s.get_double("rope_theta", c->rope_theta));
  VV_ASSIGN(const std::string_view old_name, s.get_string("type", "default"));
  VV_ASSIGN(const std::string_view kind, s.get_string("rope_type", old_name));
  VV_ASSIGN(c->rope_scaling.kind, rope_kind(kind, "config.json: rope_scaling.rope_type"));
  if (c->rope_scaling.kind == ops::RopeKind::none) return {};
  VV_ASSIGN(c->rope_scaling.factor, s.get_double("factor"));
  VV_ASSIGN(c->rope_scaling.original_context, s.get_double("original_max_position_embeddings", static_cast<double>(c->context)));
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

/// Features of a config that would change the arithmetic and that the pipeline does not have.
Status refuse_unserved(const JsonValue& root) {
  VV_ASSIGN(const std::string_view act, root.get_string("hidden_act", "silu"));
  if (act != "silu") return Status(Code::kUnsupported, "config.json: hidden_act: wanted silu, got '" + std::string(act) + "'");
  for (const char* flag : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    VV_ASSIGN(const bool on, root.get_bool(flag, false));
    if (on) return Status(Code::kUnsupported, strf("config.json: %s: true is not served", flag));
  }
  if (const auto q = root.find("quantization_config"); q && !q->is_null())
    return Status(Code::kUnsupported, "config.json: quantization_config: quantised hub checkpoints are not served; use a GGUF file");
  return {};
}

Status read_hub(const Checkpoint& checkpoint, DecoderConfig* c) {
  VV_ASSIGN(const Json json, engine::hub_config(checkpoint));
  const JsonValue root = json.root();
  VV_ASSIGN(const std::string arch, engine::architecture(checkpoint));
  VV_ASSIGN(c->family, find_family(&Family::hf_arch, arch));
  VV_TRY(refuse_unserved(root));
  VV_ASSIGN(c->layers, root.get_int("num_hidden_layers"));
  VV_ASSIGN(c->hidden, root.get_int("hidden_size"));
  VV_ASSIGN(c->heads, root.get_int("num_attention_heads"));
  VV_ASSIGN(c->kv_heads, root.get_int("num_key_value_heads", c->heads));
  VV_ASSIGN(c->head_dim, root.get_int("head_dim", c->heads > 0 ? c->hidden / c->heads : 0));
  VV_ASSIGN(c->mlp, root.get_int("intermediate_size"));
  VV_ASSIGN(c->vocab, root.get_int("vocab_size"));
  VV_ASSIGN(c->context, root.get_int("max_position_embeddings"));
  VV_ASSIGN(c->eps, root.get_double("rms_norm_eps", 1e-6));
  VV_ASSIGN(c->tied, root.get_bool("tie_word_embeddings", false));
  return read_rope(root, c);
}

/// Bounds that keep every product of two of them far inside int64, and rules between them.
Status check(const DecoderConfig& c) {
  const auto in_range = [](const char* what, int64_t v, int64_t most) {
    return v >= 1 && v <= most ? Status() : Status(Code::kInvalidArgument, strf("config: %s: wanted 1 to %ld, got %ld", what, static_cast<long>(most), static_cast<long>(v)));
  };
  VV_TRY(in_range("layers", c.layers, 1024));
  VV_TRY(in_range("hidden size", c.hidden, 1 << 20));
  VV_TRY(in_range("heads", c.heads, 4096));
  VV_TRY(in_range("kv heads", c.kv_heads, c.heads));
  VV_TRY(in_range("head dim", c.head_dim, 1024));
  VV_TRY(in_range("mlp size", c.mlp, 1 << 22));
  VV_TRY(in_range("vocabulary", c.vocab, 1 << 22));
  VV_TRY(in_range("context", c.context, 1 << 26));
  VV_TRY(in_range("rope dims", c.rope_dims, c.head_dim));
  if (c.heads % c.kv_heads != 0) return Status(Code::kInvalidArgument, strf("config: %ld heads are no multiple of %ld kv heads", static_cast<long>(c.heads), static_cast<long>(c.kv_heads)));
  if (c.rope_dims % 2 != 0) return Status(Code::kInvalidArgument, strf("config: rope dims must be even, got %ld", static_cast<long>(c.rope_dims)));
  if (!(c.eps > 0 && c.eps < 1)) return Status(Code::kInvalidArgument, strf("config: norm epsilon: wanted a value in (0, 1), got %g", c.eps));
  return {};
}

}  // namespace

Result<DecoderConfig> read_config(const Checkpoint& checkpoint) {
  DecoderConfig c;
  VV_TRY(checkpoint.format() == engine::Format::gguf ? read_gguf(checkpoint, &c) : read_hub(checkpoint, &c));
  VV_TRY(check(c));
  return c;
}

}  // namespace vivace::models::decoder
