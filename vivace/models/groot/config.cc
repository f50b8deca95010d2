#include "vivace/models/groot/config.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/registry.h"
#include "vivace/models/groot/frames.h"
#include "vivace/models/groot/model.h"
#include "vivace/models/layer/config_values.h"

namespace vivace::models::groot {
namespace {

using engine::Json;
using engine::JsonValue;

/// What a released N1.6 has where its config.json says nothing: Eagle-Block2A-2B's towers, no adapter.
GrootConfig n16_config() {
  GrootConfig c;
  c.n16 = true;
  c.vision = vision::siglip2_so400m();
  c.vocab = 151680, c.image_token = 151669;
  c.rope_theta = 1e6, c.sections = {64, 0, 0};
  c.adapter.layers = 0;
  c.state_dim = c.action_dim = 128, c.horizon = 50;
  c.image_height = c.image_width = 252;
  return c;
}

Status read_text(const JsonValue& v, GrootConfig* c) {
  Stack& s = c->text;
  VV_TRY(read_count(v, "hidden_size", &s.width));
  VV_TRY(read_count(v, "intermediate_size", &s.mlp));
  VV_TRY(read_count(v, "num_attention_heads", &s.heads));
  VV_TRY(read_count(v, "num_key_value_heads", &s.kv_heads));
  VV_TRY(read_count(v, "head_dim", &s.head_dim));
  VV_TRY(check_divides(v, "num_key_value_heads", s.kv_heads, "num_attention_heads", s.heads));
  VV_TRY(check_divides(v, "2", 2, "head_dim", s.head_dim));
  VV_TRY(read_count(v, "vocab_size", &c->vocab));
  VV_ASSIGN(c->eps, v.get_double("rms_norm_eps", c->eps));
  VV_ASSIGN(c->rope_theta, v.get_double("rope_theta", c->rope_theta));
  if (!(c->eps > 0 && c->rope_theta > 1))
    return v.error(Code::kCorruptData, "wanted rms_norm_eps > 0 and rope_theta > 1");
  VV_ASSIGN(const bool interleaved, v.get_bool("mrope_interleaved", true));
  VV_ASSIGN(const bool norm, v.get_bool("qk_norm", true));
  if (!interleaved || !norm) return v.error(Code::kUnsupported, "only mrope_interleaved and qk_norm are served");
  if (c->n16) {
    c->sections = {s.head_dim / 2, 0, 0};
    return {};
  }
  if (const auto sections = v.find("mrope_section"); sections.has_value()) {
    if (!sections->is_array() || sections->size() != 3)
      return sections->error(Code::kCorruptData, "wanted three counts");
    size_t i = 0;
    for (const JsonValue n : *sections) {
      VV_ASSIGN(c->sections[i], n.as_int());
      if (c->sections[i] < 0 || c->sections[i++] > kMostWidth)
        return n.error(Code::kCorruptData, "wanted a count of pairs");
    }
  }
  if (c->sections[0] + c->sections[1] + c->sections[2] != s.head_dim / 2)
    return v.error(Code::kCorruptData,
                   strf("mrope_section: wanted %ld pairs in all, half of head_dim", static_cast<long>(s.head_dim / 2)));
  return {};
}

/// heads and head_dim of diffusers' configurations.
Status read_stack(const JsonValue& root, const char* key, Stack* s) {
  if (const auto own = root.find(key); own.has_value() && !own->is_null()) {
    VV_ASSIGN(const JsonValue v, own->as_object());
    VV_ASSIGN(s->layers, v.get_int("num_layers", s->layers));
    if (s->layers < 0 || s->layers > kMostLayers)
      return v.error(Code::kCorruptData, strf("num_layers: wanted 0 to %ld, got %ld", static_cast<long>(kMostLayers),
                                              static_cast<long>(s->layers)));
    VV_TRY(read_count(v, "num_attention_heads", &s->heads));
    VV_TRY(read_count(v, "attention_head_dim", &s->head_dim));
    if (const auto positions = v.find("positional_embeddings"); positions.has_value() && !positions->is_null())
      return positions->error(Code::kUnsupported, "only null is served");
  }
  s->kv_heads = s->heads;
  s->width = s->q_width();
  if (s->width > kMostWidth)
    return root.error(Code::kCorruptData, strf("%s: %ld heads of %ld are too wide", key, static_cast<long>(s->heads),
                                               static_cast<long>(s->head_dim)));
  s->mlp = 4 * s->width;
  return {};
}

Status read_image_size(const JsonValue& root, GrootConfig* c) {
  const auto size = root.find("image_target_size");
  if (!size.has_value() || size->is_null()) {
    const auto least = root.find("shortest_image_edge");
    if (!c->n16 || !least.has_value() || least->is_null()) return {};
    // Images keep their shape: as wide as cameras of 16 : 9 are.
    int64_t edge = c->image_height;
    VV_TRY(read_count(root, "shortest_image_edge", &edge, kMostSide));
    c->image_height = nearest_multiple(edge, c->vision.token_side());
    c->image_width = nearest_multiple(edge * 16 / 9, c->vision.token_side());
    return {};
  }
  if (!size->is_array() || size->size() != 2) return size->error(Code::kCorruptData, "wanted [height, width]");
  int64_t side[2], *to = side;
  for (const JsonValue v : *size) {
    VV_ASSIGN(*to, v.as_int());
    if (c->n16 && *to > 0 && *to <= kMostSide) *to = nearest_multiple(*to, c->vision.token_side());
    if (*to < c->vision.token_side() || *to > kMostSide || *to % c->vision.token_side() != 0)
      return v.error(Code::kCorruptData,
                     strf("wanted a multiple of %ld up to %ld, got %ld", static_cast<long>(c->vision.token_side()),
                          static_cast<long>(kMostSide), static_cast<long>(*to)));
    ++to;
  }
  c->image_height = side[0], c->image_width = side[1];
  return {};
}

Status read_json(const JsonValue& root, GrootConfig* c) {
  if (const auto backbone = root.find("backbone"); backbone.has_value() && backbone->is_object()) {
    VV_ASSIGN(const JsonValue text, backbone->at("text"));
    VV_ASSIGN(const JsonValue sight, backbone->at("vision"));
    VV_TRY(read_text(text, c));
    c->vision.out = c->text.width;
    VV_TRY(vision::read_vision(sight, &c->vision));
    VV_TRY(read_count(*backbone, "image_token_id", &c->image_token));
  }
  VV_TRY(read_count(root, "select_layer", &c->text.layers, kMostLayers));
  int64_t width = c->text.width;
  VV_TRY(read_count(root, "backbone_embedding_dim", &width));
  if (width != c->text.width)
    return root.error(Code::kCorruptData, strf("backbone_embedding_dim is %ld, the language model's width %ld",
                                               static_cast<long>(width), static_cast<long>(c->text.width)));
  VV_TRY(read_stack(root, "diffusion_model_cfg", &c->dit));
  if (c->dit.layers < 1) return root.error(Code::kCorruptData, "diffusion_model_cfg.num_layers: wanted 1 or more");
  VV_TRY(read_stack(root, "vl_self_attention_cfg", &c->adapter));
  if (const auto none = root.find("vl_self_attention_cfg"); none.has_value() && none->is_null()) c->adapter.layers = 0;
  if (c->adapter.layers > 0 && c->adapter.width != c->text.width)
    return root.error(Code::kCorruptData, "vl_self_attention_cfg: its heads are not as wide as the language model");
  int64_t embedding = c->dit.width;
  VV_TRY(read_count(root, "input_embedding_dim", &embedding));
  if (embedding != c->dit.width || c->dit.width % 2 != 0)
    return root.error(Code::kCorruptData,
                      strf("input_embedding_dim is %ld, wanted the width of the DiT's heads %ld, an even number",
                           static_cast<long>(embedding), static_cast<long>(c->dit.width)));
  VV_TRY(read_count(root, "hidden_size", &c->hidden));
  c->dit_out = c->hidden;
  if (const auto dit = root.find("diffusion_model_cfg"); dit.has_value() && dit->is_object()) {
    VV_TRY(read_count(*dit, "output_dim", &c->dit_out));
    VV_ASSIGN(const bool interleaved, dit->get_bool("interleave_self_attention", true));
    VV_ASSIGN(const std::string_view norm, dit->get_string("norm_type", "ada_norm"));
    if (!interleaved || norm != "ada_norm")
      return dit->error(Code::kUnsupported, "only interleave_self_attention and norm_type ada_norm are served");
  }
  for (const auto& [key, to] : {std::pair{"max_state_dim", &c->state_dim},
                                {"max_action_dim", &c->action_dim},
                                {"action_horizon", &c->horizon},
                                {"max_seq_len", &c->positions},
                                {"max_num_embodiments", &c->embodiments},
                                {"num_inference_timesteps", &c->steps},
                                {"num_timestep_buckets", &c->buckets},
                                {"attend_text_every_n_blocks", &c->text_every}})
    VV_TRY(read_count(root, key, to));
  for (const char* key : {"use_vlln", "add_pos_embed", "use_alternate_vl_dit"}) {
    VV_ASSIGN(const bool on, root.get_bool(key, true));
    if (!on) return root.error(Code::kUnsupported, std::string(key) + ": only true is served");
  }
  VV_ASSIGN(const int64_t history, root.get_int("state_history_length", 1));
  if (history != 1) return root.error(Code::kUnsupported, "state_history_length: only one state at a time is served");
  if (c->horizon > c->positions) return root.error(Code::kCorruptData, "action_horizon is beyond max_seq_len");
  if (const auto own = root.find("cameras"); own.has_value() && own->is_array())
    for (const JsonValue name : *own) {
      VV_ASSIGN(const std::string_view text, name.as_string());
      c->cameras.emplace_back(text);
    }
  return read_image_size(root, c);
}

bool holds(const engine::Checkpoint& checkpoint, const std::string& prefix) {
  const auto& all = checkpoint.tensors();
  return std::any_of(all.begin(), all.end(), [&](const engine::TensorEntry& t) { return t.name.starts_with(prefix); });
}

std::string top_of(const engine::Checkpoint& checkpoint) {
  for (const char* top : {"_groot_model.", "model."})  // as lerobot saves it
    if (holds(checkpoint, std::string(top) + "action_head.")) return top;
  return "";
}

}  // namespace

const char* family_of(const engine::Checkpoint& checkpoint) {
  const Result<Json> json = engine::hub_config(checkpoint);
  if (!json.ok()) return nullptr;
  const auto model = json->root().get_string("model_type", ""), type = json->root().get_string("type", "");
  if (model.ok() && *model == "Gr00tN1d6") return kN16;
  if (model.ok() && *model == "Gr00tN1d7") return kN17;
  if (!type.ok() || *type != "groot") return nullptr;
  return holds(checkpoint, top_of(checkpoint) + "backbone.model.mlp1.") ? kN16 : kN17;
}

Result<GrootConfig> read_config(const engine::Checkpoint& checkpoint, const std::string& family, bool random_weights) {
  const char* const known = family_of(checkpoint);
  const bool find = family.empty() || family == "auto";
  const std::string own = known != nullptr ? known : find ? kN17 : family;
  if (!find && own != family)
    return Status(Code::kInvalidArgument,
                  "config " + family + ": this checkpoint is of " + own + "; load it with that config");
  GrootConfig c = own == kN16 ? n16_config() : GrootConfig();
  VV_ASSIGN(const Json json, engine::hub_config(checkpoint));
  VV_TRY(read_json(json.root(), &c));
  c.top = top_of(checkpoint);
  const std::string joint = c.top + "backbone.model.";
  if (c.n16) {
    c.visual = joint;
    c.language = joint + "language_model.model.";
  } else {
    const std::string model = random_weights || holds(checkpoint, joint + "model.") ? joint + "model." : joint;
    c.visual = model + "visual.";
    c.language = model + "language_model.";
  }
  c.embedding = c.language + "embed_tokens.weight";
  // Saving drops one of two tensors that share memory.
  if (const std::string head = joint + "language_model.lm_head.weight";
      checkpoint.find(c.embedding) == nullptr && checkpoint.find(head) != nullptr)
    c.embedding = head;
  if (random_weights) return c;
  if (const engine::TensorEntry* const embed = checkpoint.find(c.embedding); embed != nullptr && embed->shape.rank == 2)
    c.vocab = embed->shape[0];
  return c;
}

}  // namespace vivace::models::groot
