#include "vivace/models/vision/config.h"

#include <cmath>

#include "vivace/base/check.h"
#include "vivace/models/layer/config_values.h"

namespace vivace::models::vision {

using engine::JsonValue;

namespace {

Status read_heads(const JsonValue& v, const char* key, VisionConfig* c) {
  VV_TRY(read_count(v, key, &c->heads));
  VV_TRY(check_divides(v, key, c->heads, "hidden_size", c->width));
  c->kv_heads = c->heads;
  c->head_dim = c->width / c->heads;
  return {};
}

/// The side of the table of `key` learned positions.
Status read_grid(const JsonValue& v, const char* key, VisionConfig* c) {
  int64_t places = c->grid * c->grid;
  VV_TRY(read_count(v, key, &places));
  c->grid = std::llround(std::sqrt(static_cast<double>(places)));
  return c->grid * c->grid == places
             ? Status()
             : v.error(Code::kCorruptData, strf("%s: wanted a square, got %ld", key, static_cast<long>(places)));
}

Status read_act(const JsonValue& v) {
  VV_ASSIGN(const std::string_view act, v.get_string("hidden_act", "gelu_pytorch_tanh"));
  return act == "gelu_pytorch_tanh"
             ? Status()
             : v.error(Code::kUnsupported,
                       "hidden_act: only gelu_pytorch_tanh is served, got '" + std::string(act) + "'");
}

Status read_siglip2(const JsonValue& v, VisionConfig* c) {
  VV_TRY(read_count(v, "num_hidden_layers", &c->layers, kMostLayers));
  VV_TRY(read_count(v, "hidden_size", &c->width));
  VV_TRY(read_count(v, "intermediate_size", &c->mlp));
  VV_TRY(read_heads(v, "num_attention_heads", c));
  VV_TRY(read_count(v, "patch_size", &c->patch, kMostSide));
  VV_TRY(read_grid(v, "num_patches", c));
  for (const char* key : {"use_rope", "use_windows_attn"}) {
    VV_ASSIGN(const bool on, v.get_bool(key, false));
    if (on) return v.error(Code::kUnsupported, std::string(key) + ": only false is served");
  }
  VV_ASSIGN(const double eps, v.get_double("layer_norm_eps", 1e-6));
  if (eps != 1e-6) return v.error(Code::kUnsupported, strf("layer_norm_eps: only 1e-6 is served, got %g", eps));
  return read_act(v);
}

}  // namespace

VisionConfig siglip2_so400m() {
  VisionConfig c;
  static_cast<Stack&>(c) = {1152, 27, 4304, 16, 16, 72};
  c.patch = 14, c.frames = 1, c.grid = 16, c.siglip2 = true;
  c.deepstack.clear();
  return c;
}

Status read_vision(const JsonValue& v, VisionConfig* c) {
  if (c->siglip2) return read_siglip2(v, c);
  VV_TRY(read_count(v, "depth", &c->layers, kMostLayers));
  VV_TRY(read_count(v, "hidden_size", &c->width));
  VV_TRY(read_count(v, "intermediate_size", &c->mlp));
  VV_TRY(read_heads(v, "num_heads", c));
  VV_TRY(check_divides(v, "4", 4, "the width of a head,", c->head_dim));
  VV_TRY(read_count(v, "patch_size", &c->patch, kMostSide));
  VV_TRY(read_count(v, "spatial_merge_size", &c->merge, 16));
  VV_TRY(read_count(v, "temporal_patch_size", &c->frames, 16));
  VV_TRY(read_grid(v, "num_position_embeddings", c));
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
  VV_TRY(read_act(v));
  int64_t out = c->out;
  VV_TRY(read_count(v, "out_hidden_size", &out));
  return out == c->out ? Status()
                       : v.error(Code::kCorruptData, "out_hidden_size is not the language model's hidden_size");
}

}  // namespace vivace::models::vision
