// The numbers of a "nod" checkpoint: a robot's policy of one transformer, made up for "Add a model" in CONTRIBUTING.md.
#pragma once
#include <tuple>

#include "vivace/base/check.h"
#include "vivace/engine/registry.h"
#include "vivace/models/layer/config_values.h"
#include "vivace/models/layer/parts.h"

namespace vivace::models::nod {

inline constexpr const char* kNames[] = {"nod"};

struct NodConfig : Stack {
  int64_t vocab = 0, state_dim = 0, action_dim = 0, horizon = 0;
};

/// Whether a checkpoint is of this family, by its config.json; the registry asks every family.
inline const char* family_of(const engine::Checkpoint& checkpoint) {
  const Result<engine::Json> json = engine::hub_config(checkpoint);
  if (!json.ok()) return nullptr;
  const auto type = json->root().get_string("type", "");
  return type.ok() && *type == kNames[0] ? kNames[0] : nullptr;
}

/// Errors: CorruptData names the field.
inline Result<NodConfig> read_config(const engine::Checkpoint& checkpoint) {
  NodConfig c;
  VV_ASSIGN(const engine::Json json, engine::hub_config(checkpoint));
  const engine::JsonValue root = json.root();
  for (const auto& [key, to, most] : {std::tuple{"hidden_size", &c.width, kMostWidth},
                                      {"num_hidden_layers", &c.layers, kMostLayers},
                                      {"intermediate_size", &c.mlp, kMostWidth},
                                      {"num_attention_heads", &c.heads, kMostWidth},
                                      {"num_key_value_heads", &c.kv_heads, kMostWidth},
                                      {"head_dim", &c.head_dim, kMostWidth},
                                      {"vocab_size", &c.vocab, kMostWidth},
                                      {"state_dim", &c.state_dim, kMostWidth},
                                      {"action_dim", &c.action_dim, kMostWidth},
                                      {"chunk_size", &c.horizon, kMostWidth}})
    VV_TRY(read_count(root, key, to, most));
  VV_TRY(check_divides(root, "num_key_value_heads", c.kv_heads, "num_attention_heads", c.heads));
  return c;
}

}  // namespace vivace::models::nod
