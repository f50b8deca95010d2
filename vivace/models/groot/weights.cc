#include "vivace/models/groot/weights.h"

#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"
#include "vivace/models/layer/views.h"

namespace vivace::models::groot {
namespace {

using engine::WeightRule;
using engine::WeightSource;
using engine::WeightUploader;
using Rows = WeightUploader::Rows;

class Loader : public PartLoader {
 public:
  Loader(const WeightSource& source, const GrootConfig& config, const PrecisionPlan& plan, WeightUploader* uploader,
         WeightUploader* tables, OwnedTensors* own)
      : PartLoader(source, plan.act, plan.stored, uploader, own, plan.eight), c_(config), tables_(tables) {}

  Status text(GrootWeights* w) {
    const std::string& at = c_.language;
    const Stack& s = c_.text;
    VV_TRY(table(c_.embedding, Shape(c_.vocab, s.width), &w->embed));
    w->text.resize(static_cast<size_t>(s.layers));
    for (size_t i = 0; i < w->text.size(); ++i) {
      TextLayer& l = w->text[i];
      const std::string in = at + "layers." + std::to_string(i) + ".", attn = in + "self_attn.";
      VV_TRY(vector(in + "input_layernorm.weight", s.width, &l.attn_norm));
      VV_TRY(join({{attn + "q_proj", s.q_width()}, {attn + "k_proj", s.kv_width()}, {attn + "v_proj", s.kv_width()}},
                  s.width, false, Rows::after, &l.qkv));
      VV_TRY(vector(attn + "q_norm.weight", s.head_dim, &l.q_norm));
      VV_TRY(vector(attn + "k_norm.weight", s.head_dim, &l.k_norm));
      VV_TRY(linear(attn + "o_proj", s.width, s.q_width(), &l.o, false));
      VV_TRY(vector(in + "post_attention_layernorm.weight", s.width, &l.mlp_norm));
      VV_TRY(join({{in + "mlp.gate_proj", s.mlp}, {in + "mlp.up_proj", s.mlp}}, s.width, false, Rows::alternate,
                  &l.gate_up));
      VV_TRY(linear(in + "mlp.down_proj", s.width, s.mlp, &l.down, false));
    }
    return c_.n16 ? vector(at + "norm.weight", s.width, &w->text_norm) : Status();
  }

  Status head(const std::vector<int>& slots, int64_t horizon, GrootWeights* w) {
    const std::string at = c_.top + "action_head.", dit = at + "model.";
    const Stack &a = c_.adapter, &s = c_.dit;
    VV_TRY(norm(at + "vlln", c_.text.width, &w->adapter_norm));
    w->adapter.resize(static_cast<size_t>(a.layers));
    for (size_t i = 0; i < w->adapter.size(); ++i) {
      Layer& l = w->adapter[i];
      const std::string in = at + "vl_self_attention.transformer_blocks." + std::to_string(i) + ".",
                        attn = in + "attn1.to_";
      VV_TRY(norm(in + "norm1", a.width, &l.attn_norm));
      VV_TRY(join({{attn + "q", a.width}, {attn + "k", a.width}, {attn + "v", a.width}}, a.width, true, Rows::after,
                  &l.qkv));
      VV_TRY(linear(attn + "out.0", a.width, a.width, &l.o));
      VV_TRY(norm(in + "norm3", a.width, &l.mlp_norm));
      VV_TRY(linear(in + "ff.net.0.proj", a.mlp, a.width, &l.up));
      VV_TRY(linear(in + "ff.net.2", a.width, a.mlp, &l.down));
    }
    const std::string time = dit + "timestep_encoder.timestep_embedder.";
    VV_TRY(for_tables(time + "linear_1", s.width, kTimeWidth, &w->time_up));
    VV_TRY(for_tables(time + "linear_2", s.width, s.width, &w->time_down));
    VV_TRY(for_tables(dit + "proj_out_1", 2 * s.width, s.width, &w->out_ada));
    VV_TRY(linear(dit + "proj_out_2", c_.dit_out, s.width, &w->out, true, true));
    w->dit.resize(static_cast<size_t>(s.layers));
    for (size_t i = 0; i < w->dit.size(); ++i) {
      Block& b = w->dit[i];
      const std::string in = dit + "transformer_blocks." + std::to_string(i) + ".", attn = in + "attn1.to_";
      VV_TRY(for_tables(in + "norm1.linear", 2 * s.width, s.width, &b.ada));
      if (c_.crosses(static_cast<int64_t>(i))) {
        VV_TRY(linear(attn + "q", s.width, s.width, &b.qkv, true, true));
        VV_TRY(linear(attn + "k", s.width, c_.text.width, &b.k));
        VV_TRY(linear(attn + "v", s.width, c_.text.width, &b.v));
      } else {
        VV_TRY(join({{attn + "q", s.width}, {attn + "k", s.width}, {attn + "v", s.width}}, s.width, true, Rows::after,
                    &b.qkv, true));
      }
      VV_TRY(linear(attn + "out.0", s.width, s.width, &b.o, true, true));
      VV_TRY(linear(in + "ff.net.0.proj", s.mlp, s.width, &b.up, true, true));
      VV_TRY(linear(in + "ff.net.2", s.width, s.mlp, &b.down, true, true));
    }
    Tensor places;
    VV_ASSIGN(places, get(at + "position_embedding.weight", Shape(c_.positions, s.width)));
    w->action_positions = synthetic() ? tensor(nullptr, places.dtype, Shape(horizon, s.width)) : top(places, horizon);
    uploader_->add(&w->action_positions, act_);
    w->embodiments.resize(slots.size());
    for (size_t i = 0; i < slots.size(); ++i) VV_TRY(embodiment(at, slots[i], &w->embodiments[i]));
    return {};
  }

 private:
  static constexpr int64_t kTimeWidth = 256;  // sines and cosines that diffusers' time embedding begins with

  Status for_tables(const std::string& name, int64_t N, int64_t K, Linear* to) {
    VV_ASSIGN(to->w, get(name + ".weight", Shape(N, K)));
    VV_ASSIGN(to->bias, get(name + ".bias", Shape(N)));
    tables_->add(&to->w, DType::f32);
    tables_->add(&to->bias, DType::f32, true);
    return {};
  }
  /// Columns [first, first + K) of embodiment `slot`'s matrix, stored [E, all K, N], as [N, K].
  Status turned(const std::string& name, int slot, int64_t all, int64_t N, int64_t first, int64_t K, Tensor* to) {
    VV_ASSIGN(const Tensor t, get(name + ".W", Shape(c_.embodiments, all, N)));
    *to = make(t.dtype, Shape(N, K));
    if (synthetic()) return {};
    const auto size = static_cast<size_t>(info(t.dtype).bytes);
    const char* const from = static_cast<const char*>(t.data) + static_cast<size_t>((slot * all + first) * N) * size;
    for (int64_t k = 0; k < K; ++k)
      for (int64_t n = 0; n < N; ++n)
        std::memcpy(static_cast<char*>(to->data) + static_cast<size_t>(n * K + k) * size,
                    from + static_cast<size_t>(k * N + n) * size, size);
    return {};
  }
  Status bias_of(const std::string& name, int slot, int64_t N, Tensor* to) {
    VV_ASSIGN(const Tensor t, get(name + ".b", Shape(c_.embodiments, N)));
    *to = synthetic() ? tensor(nullptr, t.dtype, Shape(N)) : row(t, slot);
    return {};
  }
  /// `entering`: its rows come from the host, in f32.
  Status of_slot(const std::string& name, int slot, int64_t N, int64_t K, Linear* to, bool entering = false) {
    VV_TRY(turned(name, slot, K, N, 0, K, &to->w));
    uploader_->add(&to->w, entering ? DType::f32 : dtype_of(to->w));
    VV_TRY(bias_of(name, slot, N, &to->bias));
    uploader_->add(&to->bias, dtype_of(to->bias), true);
    return {};
  }
  Status embodiment(const std::string& at, int slot, Embodiment* e) {
    const int64_t D = c_.dit.width;
    VV_TRY(of_slot(at + "state_encoder.layer1", slot, c_.hidden, c_.state_dim, &e->state_up, true));
    VV_TRY(of_slot(at + "state_encoder.layer2", slot, D, c_.hidden, &e->state_down));
    VV_TRY(of_slot(at + "action_encoder.W1", slot, D, c_.action_dim, &e->action_in, true));
    const std::string middle = at + "action_encoder.W2";
    VV_TRY(turned(middle, slot, 2 * D, D, 0, D, &e->action_mid.w));
    uploader_->add(&e->action_mid.w, dtype_of(e->action_mid.w));
    VV_TRY(turned(middle, slot, 2 * D, D, D, D, &e->time.w));
    tables_->add(&e->time.w, DType::f32);
    VV_TRY(bias_of(middle, slot, D, &e->time.bias));
    tables_->add(&e->time.bias, DType::f32, true);
    VV_TRY(of_slot(at + "action_encoder.W3", slot, D, D, &e->action_out));
    VV_TRY(of_slot(at + "action_decoder.layer1", slot, c_.hidden, c_.dit_out, &e->decode_up));
    return of_slot(at + "action_decoder.layer2", slot, c_.action_dim, c_.hidden, &e->decode_down);
  }

  const GrootConfig& c_;
  WeightUploader* tables_;
};

}  // namespace

Status load_weights(const WeightSource& source, const GrootConfig& config, const PrecisionPlan& plan, int64_t horizon,
                    const std::vector<int>& slots, WeightUploader* uploader, WeightUploader* tables, OwnedTensors* own,
                    GrootWeights* weights) {
  Loader load(source, config, plan, uploader, tables, own);
  VV_TRY(vision::VisionLoader(source, plan.act, plan.stored, uploader, own, plan.eight)
             .load(config.visual, config.vision, &weights->vision));
  VV_TRY(load.text(weights));
  return load.head(slots, horizon, weights);
}

engine::Forms forms_of(const GrootWeights& w) {
  engine::Forms forms;
  const auto layers = [&](const char* part, const std::vector<Layer>& all) {
    for (const Layer& l : all)
      for (const auto& [product, m] : {std::pair{"qkv", &l.qkv}, {"o", &l.o}, {"up", &l.up}, {"down", &l.down}})
        forms.add(part, product, m->w);
  };
  vision::add_forms(w.vision, &forms);
  forms.add("embedding", w.embed);
  for (const TextLayer& l : w.text)
    for (const auto& [product, m] : {std::pair{"qkv", &l.qkv}, {"o", &l.o}, {"gate_up", &l.gate_up}, {"down", &l.down}})
      forms.add("text", product, m->w);
  layers("adapter", w.adapter);
  for (const Block& b : w.dit)
    for (const auto& [product, m] : {std::pair{"qkv", &b.qkv},
                                     {"cross_k", &b.k},
                                     {"cross_v", &b.v},
                                     {"o", &b.o},
                                     {"up", &b.up},
                                     {"down", &b.down}})
      forms.add("dit", product, m->w);
  return forms;
}

}  // namespace vivace::models::groot
