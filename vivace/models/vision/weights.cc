#include "vivace/models/vision/weights.h"

namespace vivace::models::vision {

Status VisionLoader::load(const std::string& at, const VisionConfig& c, VisionWeights* w) {
  if (c.siglip2) return siglip2(at, c, w);
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

Status VisionLoader::siglip2(const std::string& at, const VisionConfig& c, VisionWeights* w) {
  const std::string tower = at + "vision_model.vision_model.";
  VV_TRY(pixels(tower + "embeddings.patch_embedding", c, &w->patches));
  VV_TRY(positions(tower + "embeddings.position_embedding.weight", c, &w->positions));
  w->layers.resize(static_cast<size_t>(c.layers));
  for (size_t i = 0; i < w->layers.size(); ++i) {
    Layer& l = w->layers[i];
    const std::string in = tower + "encoder.layers." + std::to_string(i) + ".", attn = in + "self_attn.";
    VV_TRY(norm(in + "layer_norm1", c.width, &l.attn_norm));
    VV_TRY(join({{attn + "q_proj", c.width}, {attn + "k_proj", c.width}, {attn + "v_proj", c.width}}, c.width, true,
                Rows::after, &l.qkv));
    VV_TRY(linear(attn + "out_proj", c.width, c.width, &l.o, true, true));  // as attn.proj above
    VV_TRY(norm(in + "layer_norm2", c.width, &l.mlp_norm));
    VV_TRY(linear(in + "mlp.fc1", c.mlp, c.width, &l.up));
    VV_TRY(linear(in + "mlp.fc2", c.width, c.mlp, &l.down));
  }
  VV_TRY(norm(tower + "post_layernorm", c.width, &w->norm));
  return connector(at + "mlp1.", c, &w->merger);
}

Tensor VisionLoader::by_patch(const Tensor& t, int64_t rows, const VisionConfig& c) {
  const int64_t n = c.token_patches(), C = c.width;
  const Tensor to = make(t.dtype, t.shape);
  if (synthetic()) return to;
  const auto size = static_cast<size_t>(info(t.dtype).bytes);
  const char* from = static_cast<const char*>(t.data);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t channel = 0; channel < C; ++channel)
      for (int64_t k = 0; k < n; ++k, from += size)
        std::memcpy(static_cast<char*>(to.data) + static_cast<size_t>((r * n + k) * C + channel) * size, from, size);
  return to;
}

Status VisionLoader::connector(const std::string& name, const VisionConfig& c, Merger* to) {
  const int64_t wide = c.token_patches() * c.width;
  for (const auto& [part, t] : {std::pair{"0.weight", &to->norm.weight}, {"0.bias", &to->norm.bias}}) {
    VV_ASSIGN(*t, get(name + part, Shape(wide)));
    *t = by_patch(*t, 1, c);
  }
  uploader_->add(&to->norm.weight, to->norm.weight.dtype);
  uploader_->add(&to->norm.bias, to->norm.weight.dtype, true);
  VV_ASSIGN(to->up.parts[0], get(name + "1.weight", Shape(c.out, wide)));
  to->up.parts[0] = by_patch(to->up.parts[0], c.out, c);
  place(&to->up);
  VV_ASSIGN(to->up.bias, get(name + "1.bias", Shape(c.out)));
  uploader_->add(&to->up.bias, dtype_of(to->up.bias), true);
  return linear(name + "3", c.out, c.out, &to->down);
}

Status VisionLoader::pixels(const std::string& name, const VisionConfig& c, Linear* to) {
  const int64_t H = c.width, K = c.patch_values(), columns = c.patch_columns();
  VV_ASSIGN(const Tensor matrix, get(name + ".weight", Shape(H, K)));
  to->w = make(DType::f32, Shape(H, columns));
  if (!synthetic())
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < K; ++i) static_cast<float*>(to->w.data)[h * columns + i] = value(matrix, h * K + i);
  uploader_->add(&to->w, act_);
  VV_ASSIGN(to->bias, get(name + ".bias", Shape(H)));
  uploader_->add(&to->bias, dtype_of(to->bias), true);
  return {};
}

/// A patch's frames are the same image: their weights are added up.
Status VisionLoader::patches(const std::string& name, const VisionConfig& c, Linear* to) {
  const int64_t H = c.width, area = c.patch * c.patch, F = c.frames, columns = c.patch_columns();
  Tensor kernel;
  VV_ASSIGN(kernel, get(name + ".weight", Shape(H, 3, F, c.patch, c.patch)));
  to->w = make(DType::f32, Shape(H, columns));
  if (!synthetic()) {
    float* const sum = static_cast<float*>(to->w.data);
    for (int64_t h = 0; h < H * 3; ++h)
      for (int64_t i = 0; i < area; ++i) {
        float all = 0;
        for (int64_t f = 0; f < F; ++f) all += value(kernel, (h * F + f) * area + i);
        sum[h / 3 * columns + h % 3 * area + i] = all;
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
