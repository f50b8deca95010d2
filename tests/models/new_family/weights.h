// Where each weight of "nod" comes from, and in which form ops read it.
#pragma once
#include "tests/models/new_family/config.h"
#include "vivace/models/layer/part_loader.h"

namespace vivace::models::nod {

struct NodWeights {
  Tensor words;  // [V, H]
  Linear state;  // [H, state_dim]
  std::vector<Layer> layers;
  Norm norm;
  Linear actions;  // [horizon * action_dim, H]
};

class NodLoader : public PartLoader {
 public:
  using PartLoader::PartLoader;
  Status load(const NodConfig& c, NodWeights* w) {
    VV_TRY(table("words.weight", Shape(c.vocab, c.width), &w->words));
    VV_TRY(linear("state", c.width, c.state_dim, &w->state, true, true));
    w->layers.resize(static_cast<size_t>(c.layers));
    for (size_t i = 0; i < w->layers.size(); ++i) {
      Layer& l = w->layers[i];
      const std::string in = "layers." + std::to_string(i) + ".";
      VV_TRY(norm(in + "norm1", c.width, &l.attn_norm));
      VV_TRY(join({{in + "q", c.q_width()}, {in + "k", c.kv_width()}, {in + "v", c.kv_width()}}, c.width, true,
                  Rows::after, &l.qkv));
      VV_TRY(linear(in + "out", c.width, c.q_width(), &l.o));
      VV_TRY(norm(in + "norm2", c.width, &l.mlp_norm));
      VV_TRY(linear(in + "up", c.mlp, c.width, &l.up));
      VV_TRY(linear(in + "down", c.width, c.mlp, &l.down));
    }
    VV_TRY(norm("norm", c.width, &w->norm));
    return linear("actions", c.horizon * c.action_dim, c.width, &w->actions, true, true);
  }
};

}  // namespace vivace::models::nod
