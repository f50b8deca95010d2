#include "vivace/models/vla/config.h"

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/engine/registry.h"
#include "vivace/models/layer/config_values.h"

namespace vivace::models::vla {
namespace {

using engine::Json;
using engine::JsonValue;

struct Variant {
  const char* name;
  Tower tower;
};
constexpr Variant kVariants[] = {
    {"gemma_2b", {2048, 18, 16384, 8, 1, 256}},
    {"gemma_2b_lora", {2048, 18, 16384, 8, 1, 256}},
    {"gemma_300m", {1024, 18, 4096, 8, 1, 256}},
    {"gemma_300m_lora", {1024, 18, 4096, 8, 1, 256}},
    {"dummy", {64, 4, 128, 8, 1, 16}},
};
constexpr Tower kSiglip = {1152, 27, 4304, 16, 16, 72};

/// A tower by its own numbers under `key`, or by the name of a variant.
Status read_tower(const JsonValue& root, const char* key, const char* variant_key, Tower* tower) {
  if (const auto own = root.find(key); own.has_value() && own->is_object()) {
    VV_TRY(read_count(*own, "width", &tower->width));
    VV_TRY(read_count(*own, "depth", &tower->layers));
    VV_TRY(read_count(*own, "mlp_dim", &tower->mlp));
    VV_TRY(read_count(*own, "num_heads", &tower->heads));
    if (variant_key == nullptr) {
      if (tower->width % tower->heads != 0) return own->error(Code::kCorruptData, "num_heads does not divide width");
      tower->kv_heads = tower->heads;
      tower->head_dim = tower->width / tower->heads;
      return {};
    }
    VV_TRY(read_count(*own, "num_kv_heads", &tower->kv_heads));
    VV_TRY(read_count(*own, "head_dim", &tower->head_dim));
    if (tower->heads % tower->kv_heads != 0)
      return own->error(Code::kCorruptData, "num_kv_heads does not divide num_heads");
    return {};
  }
  if (variant_key == nullptr || !root.find(variant_key).has_value()) return {};
  VV_ASSIGN(const std::string_view name, root.get_string(variant_key));
  std::string known;
  for (const Variant& v : kVariants) {
    if (name == v.name) return *tower = v.tower, Status();
    known += std::string(known.empty() ? "" : ", ") + v.name;
  }
  return root.error(Code::kUnsupported, std::string(variant_key) + ": '" + std::string(name) + "' is none of " + known);
}

/// The family whose checkpoint this is, by the tensors it has.
const Family* holds(const engine::Checkpoint& checkpoint, const std::string& top) {
  const auto there = [&](const char* name) {  // compressed-tensors' name of FP4 included
    return checkpoint.find(top + name) != nullptr || checkpoint.find(top + name + "_packed") != nullptr;
  };
  for (auto f = std::rbegin(kFamilies); f != std::rend(kFamilies); ++f)  // the last has pi0's too
    if (f->proof != nullptr && there(f->proof)) return &*f;
  for (const Family& f : kFamilies)
    if (f.proof == nullptr && !there("action_in_proj.weight")) return &f;
  return nullptr;
}

/// Camera names: a list of one's own, or lerobot's features of images in their order.
Status read_cameras(const JsonValue& root, std::vector<std::string>* cameras) {
  if (const auto own = root.find("cameras"); own.has_value() && own->is_array()) {
    for (const JsonValue& name : *own) {
      VV_ASSIGN(const std::string_view text, name.as_string());
      cameras->emplace_back(text);
    }
    return {};
  }
  constexpr std::string_view kBefore = "observation.images.";
  if (const auto features = root.find("input_features"); features.has_value() && features->is_object())
    for (const JsonValue& f : *features)
      if (const std::string_view key = f.key(); key.starts_with(kBefore))
        cameras->emplace_back(key.substr(kBefore.size()));
  return {};
}

/// What lerobot's SmolVLA derives: the expert from the language model, of which the first layers are kept.
Status read_smolvla(const JsonValue& root, PolicyConfig* c) {
  if (const auto vision = root.find("vision"); vision.has_value() && vision->is_object())
    VV_TRY(read_count(*vision, "scale_factor", &c->shuffle));
  if (const auto size = root.find("resize_imgs_with_padding"); size.has_value()) {
    int64_t sides[2], n = 0;
    if (size->is_array())
      for (const JsonValue side : *size) {
        VV_ASSIGN(const int64_t v, side.as_int());
        if (n < 2) sides[n] = v;
        ++n;
      }
    if (n != 2 || sides[0] != sides[1] || sides[0] < 1 || sides[0] > kMostSide)
      return root.error(Code::kUnsupported, "resize_imgs_with_padding: only squares are served");
    c->image = sides[0];
  }
  if (c->image % (c->patch * c->shuffle) != 0)
    return root.error(Code::kCorruptData,
                      strf("image_size: wanted a multiple of patch_size times scale_factor, got %ld of %ld",
                           static_cast<long>(c->image), static_cast<long>(c->patch * c->shuffle)));
  for (const auto& [key, usual] : {std::pair{"add_image_special_tokens", false}, {"adapt_to_pi_aloha", false}}) {
    VV_ASSIGN(const bool on, root.get_bool(key, usual));
    if (on) return root.error(Code::kUnsupported, std::string(key) + ": only false is served");
  }
  VV_ASSIGN(const std::string_view mode, root.get_string("attention_mode", "cross_attn"));
  if (mode != "cross_attn")
    return root.error(Code::kUnsupported, "attention_mode: only cross_attn is served, got '" + std::string(mode) + "'");
  VV_ASSIGN(const int64_t own_layers, root.get_int("num_expert_layers", 0));
  VV_TRY(read_count(root, "num_vlm_layers", &c->text.layers));
  if (own_layers > 0 && own_layers != c->text.layers)
    return root.error(Code::kUnsupported, "num_expert_layers: only as many as num_vlm_layers are served");
  VV_ASSIGN(const int64_t every, root.get_int("self_attn_every_n_layers", 2));
  c->self_every = std::max<int64_t>(every, 0);
  VV_ASSIGN(const double share, root.get_double("expert_width_multiplier", 0.75));
  const double wide = static_cast<double>(c->text.width) * share;
  if (!(wide >= 1 && wide <= static_cast<double>(kMostWidth)))
    return root.error(Code::kCorruptData,
                      strf("expert_width_multiplier: %g of %ld", share, static_cast<long>(c->text.width)));
  c->expert = c->text;
  c->expert.width = static_cast<int64_t>(wide);
  c->expert.mlp = (4 * (2 * c->expert.width / 3) + 255) / 256 * 256;
  VV_TRY(read_tower(root, "expert", "action_expert_variant", &c->expert));
  return read_count(root, "num_steps", &c->steps);
}

Status read_json(const JsonValue& root, PolicyConfig* c) {
  VV_TRY(read_cameras(root, &c->cameras));
  VV_ASSIGN(c->state_words, root.get_bool("discrete_state_input", true));
  VV_TRY(read_tower(root, "text", "paligemma_variant", &c->text));
  VV_TRY(read_tower(root, "expert", "action_expert_variant", &c->expert));
  VV_TRY(read_tower(root, "vision", nullptr, &c->vision));
  if (const auto vision = root.find("vision"); vision.has_value() && vision->is_object()) {
    VV_TRY(read_count(*vision, "image_size", &c->image));
    VV_TRY(read_count(*vision, "patch_size", &c->patch));
    if (c->image > kMostSide || c->image % c->patch != 0)
      return vision->error(
          Code::kCorruptData,
          strf("image_size: wanted a multiple of patch_size, up to %ld, got %ld and %ld", static_cast<long>(kMostSide),
               static_cast<long>(c->image), static_cast<long>(c->patch)));
  }
  if (c->has(kSmolVlm)) VV_TRY(read_smolvla(root, c));
  // lerobot pads to what it calls the largest; openpi calls the padded width itself so.
  for (const char* key : {"max_action_dim", "action_dim"}) VV_TRY(read_count(root, key, &c->action_dim));
  for (const char* key : {"max_state_dim", "state_dim"}) VV_TRY(read_count(root, key, &c->state_dim));
  for (const char* key : {"chunk_size", "action_horizon"}) VV_TRY(read_count(root, key, &c->horizon));
  VV_TRY(read_count(root, "num_inference_steps", &c->steps));
  if (const auto time = root.find("time_embedding"); time.has_value() && time->is_object()) {
    VV_ASSIGN(c->min_period, time->get_double("min_period", c->min_period));
    VV_ASSIGN(c->max_period, time->get_double("max_period", c->max_period));
  }
  for (const auto& [key, to] : {std::pair{"min_period", &c->min_period}, {"max_period", &c->max_period}}) {
    VV_ASSIGN(*to, root.get_double(key, *to));
  }
  if (!(c->min_period > 0 && c->max_period > c->min_period))
    return root.error(Code::kCorruptData, "time_embedding: wanted 0 < min_period < max_period");
  c->lerobot = c->has(kSmolVlm) || root.find("chunk_size").has_value();
  return {};
}

}  // namespace

const Family* family_of(const engine::Checkpoint& checkpoint) {
  if (const Result<Json> json = engine::hub_config(checkpoint); json.ok()) {
    const auto type = json->root().get_string("type", "");
    if (type.ok()) {
      std::string name(*type);
      std::erase(name, '_');  // lerobot's pi0_fast
      if (const Family* const named = find_family(name)) return named;
    }
  }
  const Names names = names_of(checkpoint);
  return checkpoint.find(names.embed) != nullptr && names.embed.find("_with_expert.") != std::string::npos
             ? holds(checkpoint, names.top)
             : nullptr;
}

Names names_of(const engine::Checkpoint& checkpoint) {
  const auto any = [&](const std::string& prefix) {
    const auto& all = checkpoint.tensors();
    return std::any_of(all.begin(), all.end(),
                       [&](const engine::TensorEntry& t) { return t.name.rfind(prefix, 0) == 0; });
  };
  Names n;
  n.top = any("model.paligemma_with_expert.") ? "model." : "";
  for (const char* top : {"model.", ""})
    if (const std::string smol = std::string(top) + "vlm_with_expert."; any(smol)) {
      n.top = top;
      n.text = smol + "vlm.model.text_model.";
      n.expert = smol + "lm_expert.";
      n.vision = smol + "vlm.model.vision_model.";
      n.projector = smol + "vlm.model.connector.modality_projection.";
      n.embed = n.text + "embed_tokens.weight";
      if (checkpoint.find(n.embed) == nullptr) n.embed = smol + "vlm.lm_head.weight";
      return n;
    }
  const std::string joint = n.top + "paligemma_with_expert.", gemma = joint + "paligemma.model.";
  n.text = gemma + "language_model.";
  n.expert = joint + "gemma_expert.model.";
  n.vision = gemma + "vision_tower.";
  if (any(n.vision + "vision_model.")) n.vision += "vision_model.";
  n.projector = gemma + "multi_modal_projector.";
  n.embed = n.text + "embed_tokens.weight";
  // Saving drops one of two tensors that share memory.
  if (checkpoint.find(n.embed) == nullptr) n.embed = joint + "paligemma.lm_head.weight";
  return n;
}

Result<PolicyConfig> read_config(const engine::Checkpoint& checkpoint, const engine::PolicyOptions& options) {
  PolicyConfig c;
  c.family = options.config.empty() || options.config == "auto" ? family_of(checkpoint) : find_family(options.config);
  if (c.family == nullptr)
    return Status(Code::kInvalidArgument, "config: '" + options.config + "' names no family that this loader has");
  c.text = kVariants[0].tower;
  c.expert = kVariants[2].tower;
  c.vision = kSiglip;
  if (c.has(kSmolVlm)) {  // SmolVLM2-500M, of which lerobot keeps half
    c.vision = {768, 12, 3072, 12, 12, 64};
    c.text = {960, 16, 2560, 15, 5, 64};
    c.expert = {720, 16, 2048, 15, 5, 64};
    c.image = 512, c.patch = 16, c.shuffle = 4, c.self_every = 2, c.eps = 1e-5, c.lerobot = true;
  }
  Result<Json> json = engine::hub_config(checkpoint);
  if (json.ok()) VV_TRY(read_json(json->root(), &c));
  else if (json.status().code() != Code::kNotFound) return std::move(json).status();
  c.vocab = c.has(kSmolVlm) ? 49280 : 257152;
  if (options.random_weights) return c;
  const Names names = names_of(checkpoint);
  const Family* const held = holds(checkpoint, names.top);
  if (held != c.family) {
    if (checkpoint.find(names.embed) == nullptr)
      return Status(Code::kInvalidArgument,
                    strf("config %s: tensor %s is missing; this checkpoint is of no policy", c.family->name,
                         names.embed.c_str()));
    return Status(Code::kInvalidArgument,
                  strf("config %s: the checkpoint's tensors are those of %s; load it with that config", c.family->name,
                       held ? held->name : "another model"));
  }
  const engine::TensorEntry* const embed = checkpoint.find(names.embed);
  if (embed == nullptr)
    return Status(Code::kNotFound,
                  "tensor " + names.embed + " is missing; the checkpoint is incomplete or of another family");
  c.vocab = embed->shape.rank == 2 ? embed->shape[0] : 0;
  return c;
}

}  // namespace vivace::models::vla
