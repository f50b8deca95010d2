#include "vivace/models/vla/weights.h"

#include <cstring>

#include "vivace/base/check.h"
#include "vivace/models/layer/part_loader.h"

namespace vivace::models::vla {
namespace {

using engine::WeightUploader;
using engine::WeightRule;
using engine::WeightSource;

class Loader : public PartLoader {
 public:
  Loader(const WeightSource& source, const PrecisionPlan& plan, WeightUploader* uploader, WeightUploader* tables,
         OwnedTensors* own)
      : PartLoader(source, plan.act, plan.stored, uploader, own, plan.eight), plan_(plan), tables_(tables) {}

  using PartLoader::get, PartLoader::norm, PartLoader::synthetic, PartLoader::vector;

  struct Part {
    const char* name;
    int64_t rows;
  };
  /// `parts` of `prefix` as one matrix in the plan's form, or, with `wide`, as it would be without 8 bits.
  Status matrix(const std::string& prefix, std::initializer_list<Part> parts, int64_t K, bool bias, Linear* m,
                WeightUploader::Rows order = WeightUploader::Rows::after, bool wide = false) {
    int n = 0;
    for (const Part& p : parts) {
      VV_ASSIGN(m->parts[n], get(prefix + p.name + ".weight", Shape(p.rows, K)));
      if (bias) {
        VV_ASSIGN(m->part_bias[n], get(prefix + p.name + ".bias", Shape(p.rows)));
      }
      ++n;
    }
    if (wide) join(n, m->parts, &m->w, plan_.stored ? m->parts[0].dtype : DType::bf16, order, false, uploader_);
    else place(n, m, order, uploader_);
    if (bias)
      join(n, m->part_bias, &m->bias, plan_.stored ? m->part_bias[0].dtype : DType::bf16, WeightUploader::Rows::after,
           true, uploader_);
    return {};
  }
  /// One matrix and its bias in f32, of which loading alone has use, or which every plan reads so.
  Status full(const std::string& name, int64_t N, int64_t K, Linear* m, bool for_tables) {
    VV_ASSIGN(m->w, get(name + ".weight", Shape(N, K)));
    VV_ASSIGN(m->bias, get(name + ".bias", Shape(N)));
    WeightUploader* const to = for_tables ? tables_ : uploader_;
    to->add(&m->w, DType::f32);
    to->add(&m->bias, DType::f32, true);
    return {};
  }
  /// ... in the dtype of activations.
  Status plain(const std::string& name, int64_t N, int64_t K, Linear* m) {
    VV_ASSIGN(m->w, get(name + ".weight", Shape(N, K)));
    VV_ASSIGN(m->bias, get(name + ".bias", Shape(N)));
    uploader_->add(&m->w, plan_.act);
    uploader_->add(&m->bias, DType::f32, true);
    return {};
  }
  Status table(Tensor t, DType dtype, Tensor* to) {
    *to = t;
    uploader_->add(to, dtype);
    return {};
  }
  /// Matrix parts that are there already, in the plan's form.
  void place(int n, Linear* m, WeightUploader::Rows order, WeightUploader* to) {
    Tensor* const p = m->parts;
    if (plan_.eight) {
      if (n == 1)
        to->quantize({p}, &m->w, &m->scale.row, order);
      else if (n == 2)
        to->quantize({p, p + 1}, &m->w, &m->scale.row, order);
      else
        to->quantize({p, p + 1, p + 2}, &m->w, &m->scale.row, order);
      return;
    }
    join(n, p, &m->w, plan_.stored ? p[0].dtype : DType::bf16, order, false, to);
  }
  static void join(int n, Tensor* p, Tensor* whole, DType dtype, WeightUploader::Rows order, bool bias,
                   WeightUploader* to) {
    if (n == 1) to->join({p}, whole, dtype, order, bias);
    else if (n == 2) to->join({p, p + 1}, whole, dtype, order, bias);
    else to->join({p, p + 1, p + 2}, whole, dtype, order, bias);
  }

 private:
  const PrecisionPlan& plan_;
  WeightUploader* tables_;
};

Status load_vision(Loader& load, const PolicyConfig& c, const Names& names, std::vector<VisionLayer>* layers) {
  const Tower& t = c.vision;
  layers->resize(static_cast<size_t>(t.layers));
  for (size_t i = 0; i < layers->size(); ++i) {
    VisionLayer& w = (*layers)[i];
    const std::string at = names.vision + "encoder.layers." + std::to_string(i) + ".";
    VV_TRY(load.norm(at + "layer_norm1", t.width, &w.attn_norm));
    VV_TRY(load.matrix(at + "self_attn.", {{"q_proj", t.width}, {"k_proj", t.width}, {"v_proj", t.width}}, t.width,
                       true, &w.qkv));
    VV_TRY(load.matrix(at + "self_attn.", {{"out_proj", t.width}}, t.width, true, &w.o, WeightUploader::Rows::after,
                       true));  // as wide_o of load_gemma
    VV_TRY(load.norm(at + "layer_norm2", t.width, &w.mlp_norm));
    VV_TRY(load.matrix(at + "mlp.", {{"fc1", t.mlp}}, t.width, true, &w.up));
    VV_TRY(load.matrix(at + "mlp.", {{"fc2", t.width}}, t.mlp, true, &w.down));
  }
  return {};
}

/// `keys_last`: of the last layer only keys and values are read. `wide`: no product reads 8 bits. `wide_o`: attention's
/// output product does not; few rows gain less by 8 than the launch costs that makes codes of what attention wrote.
Status load_gemma(Loader& load, const PolicyConfig& c, const Tower& t, const std::string& prefix, bool adaptive,
                  bool keys_last, bool wide, bool wide_o, std::vector<GemmaLayer>* layers) {
  layers->resize(static_cast<size_t>(t.layers));
  for (size_t i = 0; i < layers->size(); ++i) {
    GemmaLayer& w = (*layers)[i];
    const std::string at = prefix + "layers." + std::to_string(i) + ".";
    if (adaptive) {
      VV_TRY(load.full(at + "input_layernorm.dense", 3 * t.width, t.width, &w.attn_ada, true));
      VV_TRY(load.full(at + "post_attention_layernorm.dense", 3 * t.width, t.width, &w.mlp_ada, true));
    } else {
      VV_TRY(load.vector(at + "input_layernorm.weight", t.width, &w.attn_norm));
    }
    if (keys_last && i + 1 == layers->size())
      return load.matrix(at + "self_attn.", {{"k_proj", t.kv_width()}, {"v_proj", t.kv_width()}}, t.width, false,
                         &w.qkv);
    if (!adaptive) VV_TRY(load.vector(at + "post_attention_layernorm.weight", t.width, &w.mlp_norm));
    if (&t == &c.expert && c.crosses(i)) {
      VV_TRY(load.matrix(at + "self_attn.", {{"q_proj", t.q_width()}}, t.width, false, &w.qkv,
                         WeightUploader::Rows::after, wide));
      for (const auto& [name, m] : {std::pair{"k_proj", &w.k}, {"v_proj", &w.v}})
        VV_TRY(load.matrix(at + "self_attn.", {{name, t.kv_width()}}, c.text.kv_width(), false, m,
                           WeightUploader::Rows::after, wide));
    } else {
      VV_TRY(load.matrix(at + "self_attn.",
                         {{"q_proj", t.q_width()}, {"k_proj", t.kv_width()}, {"v_proj", t.kv_width()}}, t.width, false,
                         &w.qkv, WeightUploader::Rows::after, wide));
    }
    VV_TRY(load.matrix(at + "self_attn.", {{"o_proj", t.width}}, t.q_width(), false, &w.o, WeightUploader::Rows::after,
                       wide_o));
    VV_TRY(load.matrix(at + "mlp.", {{"gate_proj", t.mlp}, {"up_proj", t.mlp}}, t.width, false, &w.gate_up,
                       WeightUploader::Rows::alternate, wide));
    VV_TRY(
        load.matrix(at + "mlp.", {{"down_proj", t.width}}, t.mlp, false, &w.down, WeightUploader::Rows::after, wide));
  }
  return {};
}

/// Patch weights [H, 3, P, P] as rows of P*P*3 values in the order of images, zeros up to `padded`; the table of
/// positions once a view.
Status load_patches(Loader& load, const PolicyConfig& c, const PrecisionPlan& plan, const Names& names, int views,
                    WeightUploader* uploader, std::vector<std::unique_ptr<std::byte[]>>* own, PolicyWeights* w) {
  const int64_t H = c.vision.width, P = c.patch, n = c.view_patches(), K = padded_patch(c);
  const std::string at = names.vision + "embeddings.";
  VV_ASSIGN(const Tensor table, load.get(at + "position_embedding.weight", Shape(n, H)));
  VV_ASSIGN(w->patches.part_bias[0], load.get(at + "patch_embedding.bias", Shape(H)));
  VV_ASSIGN(const Tensor kernel, load.get(at + "patch_embedding.weight", Shape(H, 3, P, P)));
  w->patches.parts[0] = tensor(nullptr, kernel.dtype, Shape(H, K));
  w->positions = tensor(nullptr, table.dtype, Shape(views * n, H));
  if (!load.synthetic()) {
    const auto fresh = [&](Tensor* t) {
      own->push_back(std::make_unique<std::byte[]>(static_cast<size_t>(t->span_bytes())));
      t->data = own->back().get();
    };
    fresh(&w->patches.parts[0]);
    fresh(&w->positions);
    const auto size = static_cast<size_t>(info(kernel.dtype).bytes);
    const char* from = static_cast<const char*>(kernel.data);
    char* const to = static_cast<char*>(w->patches.parts[0].data);
    for (int64_t h = 0; h < H; ++h)
      for (int64_t channel = 0; channel < 3; ++channel)
        for (int64_t p = 0; p < P * P; ++p, from += size)
          std::memcpy(to + static_cast<size_t>(h * K + p * 3 + channel) * size, from, size);
    const auto bytes = static_cast<size_t>(table.span_bytes());
    for (int v = 0; v < views; ++v)
      std::memcpy(static_cast<char*>(w->positions.data) + static_cast<size_t>(v) * bytes, table.data, bytes);
  }
  // 16 bits in every plan: pixels would be rounded to 8 before anything has looked at them.
  Loader::join(1, w->patches.parts, &w->patches.w, plan.stored ? kernel.dtype : DType::bf16,
               WeightUploader::Rows::after, false, uploader);
  Loader::join(1, w->patches.part_bias, &w->patches.bias, plan.stored ? w->patches.part_bias[0].dtype : DType::bf16,
               WeightUploader::Rows::after, true, uploader);
  return load.table(w->positions, plan.act, &w->positions);
}

Status load_flow(Loader& load, const PolicyConfig& c, const Names& names, PolicyWeights* w) {
  const int64_t H = c.expert.width;
  VV_TRY(load.full(names.top + "action_in_proj", H, c.action_dim, &w->action_in, false));
  VV_TRY(load.plain(names.top + "action_out_proj", c.action_dim, H, &w->action_out));
  if (c.has(kAdaNorm)) {
    VV_TRY(load.full(names.top + "time_mlp_in", H, H, &w->time_in, true));
    VV_TRY(load.full(names.top + "time_mlp_out", H, H, &w->time_out, true));
    return load.full(names.expert + "norm.dense", 3 * H, H, &w->expert_ada, true);
  }
  VV_TRY(load.full(names.top + "state_proj", c.has(kStateLast) ? c.text.width : H, c.state_dim, &w->state, false));
  VV_TRY(load.plain(names.top + "action_time_mlp_in", H, 2 * H, &w->time_in));
  VV_TRY(load.plain(names.top + "action_time_mlp_out", H, H, &w->time_out));
  return load.vector(names.expert + "norm.weight", H, &w->expert_norm);
}

}  // namespace

Status load_weights(const WeightSource& source, const PolicyConfig& c, const PrecisionPlan& plan, int views, int batch,
                    WeightUploader* uploader, WeightUploader* tables, std::vector<std::unique_ptr<std::byte[]>>* own,
                    PolicyWeights* w) {
  const Names names = names_of(source.checkpoint());
  const Tower &v = c.vision, &t = c.text;
  Loader load(source, plan, uploader, tables, own);
  VV_TRY(load_patches(load, c, plan, names, views * batch, uploader, own, w));
  VV_TRY(load_vision(load, c, names, &w->vision));
  VV_TRY(load.norm(names.vision + "post_layernorm", v.width, &w->vision_norm));
  VV_TRY(c.has(kSmolVlm)
             ? load.matrix(names.projector, {{"proj", t.width}}, v.width * c.shuffle * c.shuffle, false, &w->projector)
             : load.matrix(names.projector, {{"linear", t.width}}, v.width, true, &w->projector));
  VV_ASSIGN(const Tensor embed, load.get(names.embed, Shape(c.vocab, t.width)));
  VV_TRY(load.table(embed, plan.stored ? embed.dtype : DType::bf16, &w->embed));
  VV_TRY(load_gemma(load, c, t, names.text, false, c.has(kFlow), false, c.has(kCodes), &w->text));
  if (c.has(kCodes)) {
    w->head.parts[0] = embed;
    if (plan.eight) load.place(1, &w->head, WeightUploader::Rows::after, uploader);
    return load.vector(names.text + "norm.weight", t.width, &w->text_norm);
  }
  VV_TRY(load_gemma(load, c, c.expert, names.expert, c.has(kAdaNorm), false, !plan.expert, !plan.expert, &w->expert));
  return load_flow(load, c, names, w);
}

engine::Forms forms_of(const PolicyWeights& w) {
  engine::Forms forms;
  forms.add("patches", w.patches.w);
  for (const VisionLayer& l : w.vision)
    for (const auto& [product, m] : {std::pair{"qkv", &l.qkv}, {"o", &l.o}, {"up", &l.up}, {"down", &l.down}})
      forms.add("vision", product, m->w);
  forms.add("projector", w.projector.w);
  forms.add("embedding", w.embed);
  for (const auto& [part, layers] : {std::pair{"text", &w.text}, {"expert", &w.expert}})
    for (const GemmaLayer& l : *layers)
      for (const auto& [product, m] :
           {std::pair{"qkv", &l.qkv}, {"o", &l.o}, {"gate_up", &l.gate_up}, {"down", &l.down}})
        forms.add(part, product, m->w);
  if (!w.text_norm.data) {  // a flow
    for (const auto& [part, m] : {std::pair{"action_in", &w.action_in},
                                  {"action_out", &w.action_out},
                                  {"state", &w.state},
                                  {"time_in", &w.time_in},
                                  {"time_out", &w.time_out}})
      forms.add(part, m->w);
  } else {
    forms.add("head", w.head.w.present() ? w.head.w : w.embed);
  }
  return forms;
}

}  // namespace vivace::models::vla
