#include "vivace/models/vision/config.h"

#include <cmath>

#include "vivace/base/check.h"
#include "vivace/models/layer/config_values.h"

namespace vivace::models::vision {

using engine::JsonValue;

Status read_vision(const JsonValue& v, VisionConfig* c) {
  VV_TRY(read_count(v, "depth", &c->layers, kMostLayers));
  VV_TRY(read_count(v, "hidden_size", &c->width));
  VV_TRY(read_count(v, "intermediate_size", &c->mlp));
  VV_TRY(read_count(v, "num_heads", &c->heads));
  VV_TRY(check_divides(v, "num_heads", c->heads, "hidden_size", c->width));
  c->kv_heads = c->heads;
  c->head_dim = c->width / c->heads;
  VV_TRY(check_divides(v, "4", 4, "the width of a head,", c->head_dim));
  VV_TRY(read_count(v, "patch_size", &c->patch, kMostSide));
  VV_TRY(read_count(v, "spatial_merge_size", &c->merge, 16));
  VV_TRY(read_count(v, "temporal_patch_size", &c->frames, 16));
  int64_t places = c->grid * c->grid;
  VV_TRY(read_count(v, "num_position_embeddings", &places));
  c->grid = std::llround(std::sqrt(static_cast<double>(places)));
  if (c->grid * c->grid != places)
    return v.error(Code::kCorruptData,
                   strf("num_position_embeddings: wanted a square, got %ld", static_cast<long>(places)));
  if (const auto levels = v.find("deepstack_visual_indexes"); levels.has_value()) {
    VV_ASSIGN(const JsonValue list, levels->as_array());
    c->deepstack.clear();
    for (const JsonValue i : list) {
      VV_ASSIGN(const int64_t layer, i.as_int());
      if (layer < 0 || layer >= c->layers || (!c->deepstack.empty() && layer <= c->deepstack.back()))
        return i.error(Code::kCorruptData, strf("wanted layers of the %ld there are, ascending, got %ld",
                                                static_cast<long>(c->layers), static_cast<long>(layer)));
      c->deepstack.push_back(layer);
    }
  }
  VV_ASSIGN(const std::string_view act, v.get_string("hidden_act", "gelu_pytorch_tanh"));
  if (act != "gelu_pytorch_tanh")
    return v.error(Code::kUnsupported, "hidden_act: only gelu_pytorch_tanh is served, got '" + std::string(act) + "'");
  int64_t out = c->out;
  VV_TRY(read_count(v, "out_hidden_size", &out));
  return out == c->out ? Status()
                       : v.error(Code::kCorruptData, "out_hidden_size is not the language model's hidden_size");
}

}  // namespace vivace::models::vision
