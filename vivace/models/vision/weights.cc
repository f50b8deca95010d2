#include "vivace/models/vision/weights.h"

namespace vivace::models::vision {

Status VisionLoader::load(const std::string& at, const VisionConfig& c, VisionWeights* w) {
  VV_TRY(patches(at + "patch_embed.proj", c, &w->patches));
  VV_TRY(positions(at + "pos_embed.weight", c, &w->positions));
  w->layers.resize(static_cast<size_t>(c.layers));
  for (size_t i = 0; i < w->layers.size(); ++i) {
    Layer& l = w->layers[i];
    const std::string in = at + "blocks." + std::to_string(i) + ".";
    VV_TRY(norm(in + "norm1", c.width, &l.attn_norm));
    VV_TRY(linear(in + "attn.qkv", 3 * c.width, c.width, &l.qkv));
    VV_TRY(linear(in + "attn.proj", c.width, c.width, &l.o, true, true));  // few rows: codes cost more
    VV_TRY(norm(in + "norm2", c.width, &l.mlp_norm));
    VV_TRY(linear(in + "mlp.linear_fc1", c.mlp, c.width, &l.up));
    VV_TRY(linear(in + "mlp.linear_fc2", c.width, c.mlp, &l.down));
  }
  VV_TRY(merger(at + "merger", c, c.width, &w->merger));
  w->deepstack.resize(c.deepstack.size());
  for (size_t i = 0; i < w->deepstack.size(); ++i)
    VV_TRY(merger(at + "deepstack_merger_list." + std::to_string(i), c, c.token_patches() * c.width, &w->deepstack[i]));
  return {};
}

Status VisionLoader::merger(const std::string& name, const VisionConfig& c, int64_t normed, Merger* to) {
  const int64_t wide = c.token_patches() * c.width;
  VV_TRY(norm(name + ".norm", normed, &to->norm));
  VV_TRY(linear(name + ".linear_fc1", wide, wide, &to->up));
  return linear(name + ".linear_fc2", c.out, wide, &to->down);
}

/// A patch's frames are the same image: their weights are added up.
Status VisionLoader::patches(const std::string& name, const VisionConfig& c, Linear* to) {
  const int64_t H = c.width, area = c.patch * c.patch, F = c.frames;
  Tensor kernel;
  VV_ASSIGN(kernel, get(name + ".weight", Shape(H, 3, F, c.patch, c.patch)));
  to->w = make(DType::f32, Shape(H, c.patch_values()));
  if (!synthetic()) {
    float* const sum = static_cast<float*>(to->w.data);
    for (int64_t h = 0; h < H * 3; ++h)
      for (int64_t i = 0; i < area; ++i) {
        float all = 0;
        for (int64_t f = 0; f < F; ++f) all += value(kernel, (h * F + f) * area + i);
        sum[h * area + i] = all;
      }
  }
  uploader_->add(&to->w, act_);
  VV_ASSIGN(to->bias, get(name + ".bias", Shape(H)));
  uploader_->add(&to->bias, dtype_of(to->bias), true);
  return {};
}

Status VisionLoader::positions(const std::string& name, const VisionConfig& c, std::vector<float>* to) {
  VV_ASSIGN(const Tensor t, get(name, Shape(c.grid * c.grid, c.width)));
  if (synthetic()) return {};
  to->resize(static_cast<size_t>(t.shape.elements()));
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] = value(t, static_cast<int64_t>(i));
  return {};
}

void add_forms(const VisionWeights& w, engine::Forms* forms) {
  forms->add("patches", w.patches.w);
  for (const Layer& l : w.layers)
    for (const auto& [product, m] : {std::pair{"qkv", &l.qkv}, {"o", &l.o}, {"up", &l.up}, {"down", &l.down}})
      forms->add("vision", product, m->w);
}

}  // namespace vivace::models::vision
