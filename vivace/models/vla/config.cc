#include "vivace/models/vla/config.h"

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/engine/registry.h"

namespace vivace::models::vla {
namespace {

using engine::Json;
using engine::JsonValue;

constexpr int64_t kMost = 1 << 20;  // of any width or count: products of two stay in range
constexpr int64_t kMostSide = 4096;  // of an image

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

Status whole(const JsonValue& object, const char* key, int64_t* out) {
  VV_ASSIGN(const int64_t v, object.get_int(key, *out));
  if (v < 1 || v > kMost)
    return object.error(Code::kCorruptData,
                        strf("%s: wanted 1 to %ld, got %ld", key, static_cast<long>(kMost), static_cast<long>(v)));
  *out = v;
  return {};
}

/// A tower by its own numbers under `key`, or by the name of a variant.
Status read_tower(const JsonValue& root, const char* key, const char* variant_key, Tower* tower) {
  if (const auto own = root.find(key); own.has_value() && own->is_object()) {
    VV_TRY(whole(*own, "width", &tower->width));
    VV_TRY(whole(*own, "depth", &tower->layers));
    VV_TRY(whole(*own, "mlp_dim", &tower->mlp));
    VV_TRY(whole(*own, "num_heads", &tower->heads));
    if (variant_key == nullptr) {
      if (tower->width % tower->heads != 0) return own->error(Code::kCorruptData, "num_heads does not divide width");
      tower->kv_heads = tower->heads;
      tower->head_dim = tower->width / tower->heads;
      return {};
    }
    VV_TRY(whole(*own, "num_kv_heads", &tower->kv_heads));
    VV_TRY(whole(*own, "head_dim", &tower->head_dim));
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
  for (const Family& f : kFamilies)
    if (f.proof != nullptr && checkpoint.find(top + f.proof) != nullptr) return &f;
  for (const Family& f : kFamilies)
    if (f.proof == nullptr && checkpoint.find(top + "action_in_proj.weight") == nullptr) return &f;
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

Status read_json(const JsonValue& root, PolicyConfig* c) {
  VV_TRY(read_cameras(root, &c->cameras));
  VV_ASSIGN(c->state_words, root.get_bool("discrete_state_input", true));
  VV_TRY(read_tower(root, "text", "paligemma_variant", &c->text));
  VV_TRY(read_tower(root, "expert", "action_expert_variant", &c->expert));
  VV_TRY(read_tower(root, "vision", nullptr, &c->vision));
  if (const auto vision = root.find("vision"); vision.has_value() && vision->is_object()) {
    VV_TRY(whole(*vision, "image_size", &c->image));
    VV_TRY(whole(*vision, "patch_size", &c->patch));
    if (c->image > kMostSide || c->image % c->patch != 0)
      return vision->error(
          Code::kCorruptData,
          strf("image_size: wanted a multiple of patch_size, up to %ld, got %ld and %ld", static_cast<long>(kMostSide),
               static_cast<long>(c->image), static_cast<long>(c->patch)));
  }
  // lerobot pads to what it calls the largest; openpi calls the padded width itself so.
  for (const char* key : {"max_action_dim", "action_dim"}) VV_TRY(whole(root, key, &c->action_dim));
  for (const char* key : {"max_state_dim", "state_dim"}) VV_TRY(whole(root, key, &c->state_dim));
  for (const char* key : {"chunk_size", "action_horizon"}) VV_TRY(whole(root, key, &c->horizon));
  VV_TRY(whole(root, "num_inference_steps", &c->steps));
  if (const auto time = root.find("time_embedding"); time.has_value() && time->is_object()) {
    VV_ASSIGN(c->min_period, time->get_double("min_period", c->min_period));
    VV_ASSIGN(c->max_period, time->get_double("max_period", c->max_period));
  }
  if (!(c->min_period > 0 && c->max_period > c->min_period))
    return root.error(Code::kCorruptData, "time_embedding: wanted 0 < min_period < max_period");
  c->lerobot = root.find("chunk_size").has_value();
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
  return checkpoint.find(names.embed) != nullptr && names.embed.find("paligemma_with_expert.") != std::string::npos
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
  const std::string joint = n.top + "paligemma_with_expert.", gemma = joint + "paligemma.model.";
  n.text = gemma + "language_model.";
  n.expert = joint + "gemma_expert.model.";
  n.vision = gemma + "vision_tower.";
  if (any(n.vision + "vision_model.")) n.vision += "vision_model.";
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
  Result<Json> json = engine::hub_config(checkpoint);
  if (json.ok()) VV_TRY(read_json(json->root(), &c));
  else if (json.status().code() != Code::kNotFound) return std::move(json).status();
  c.vocab = 257152;
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
