// Where a decoder's weights go: which dtype, and which ones lie side by side.
#include <algorithm>
#include <utility>

#include "vivace/base/check.h"
#include "vivace/models/decoder/weights.h"

namespace vivace::models::decoder {
namespace {

using engine::WeightUploader;

/// Whether the plan makes narrow matrices of plain ones.
bool quantizes(const PrecisionPlan& plan) {
  return plan.plain == Plain::eight || plan.plain == Plain::four || plan.plain == Plain::four_int;
}

/// Quantized matrices stay what they are: whether a layer has one that the plan makes narrow, or that is in its form
/// already.
bool narrows_any(const PrecisionPlan& plan, const DecoderWeights& weights) {
  for (const LayerWeights& w : weights.layers)
    for (const Tensor* t : {&w.q, &w.k, &w.v, &w.qkv, &w.conv_in, &w.o, &w.gate, &w.up, &w.down})
      if (t->present() && (!is_block(t->dtype) || (plan.plain == Plain::four_int && t->dtype == DType::q4_0)))
        return true;
  return false;
}

class LayerUploader {
 public:
  LayerUploader(const PrecisionPlan& plan, const engine::WeightSource& source, WeightUploader* uploader)
      : plan_(plan), source_(source), uploader_(uploader) {}

  void plain(Tensor* t) {
    if (source_.scales_of(*t) != nullptr) *t = source_.widened(*t);  // kept, and joined with nothing after all
    if (t->present()) uploader_->add(t, dtype_of(*t));
  }
  void vector(Tensor* t, bool bias = false) {
    if (t->present()) uploader_->add(t, t->dtype, bias);
  }
  /// A matrix of products: `scale` is set where it is quantized and no block format.
  void matrix(Tensor* t, engine::Scales* scale) {
    if (source_.scales_of(*t) != nullptr) keep({t}, t, scale);
    else if (t->present() && narrow(*t)) quantize({t}, t, scale, format());
    else plain(t);
  }
  /// The experts' matrices: plain, blocks, or e4m3 with a scale a row. Gates and ups lie side by side in each expert,
  /// if one dtype serves both.
  void experts(LayerWeights& w) {
    if (expert_dtype(w.gate) != expert_dtype(w.up)) {
      for (Tensor* t : {&w.gate, &w.up})
        uploader_->add(t, expert_dtype(*t) == DType::e4m3 ? dtype_of(*t) : expert_dtype(*t));
    } else if (expert_dtype(w.gate) == DType::e4m3) {
      uploader_->quantize_experts(&w.gate, &w.up, {}, {}, &w.gate_up_scale.row);
    } else {
      uploader_->join({&w.gate, &w.up}, nullptr, expert_dtype(w.gate), WeightUploader::Rows::within);
    }
    if (expert_dtype(w.down) == DType::e4m3) uploader_->quantize({&w.down}, &w.down, &w.down_scale.row);
    else uploader_->add(&w.down, expert_dtype(w.down));
  }
  /// The one that every token takes as one more of them, and its gate as one more row of the router.
  void experts_and_shared(LayerWeights& w) {
    const Tensor gate = std::exchange(w.shared_gate, {}), up = std::exchange(w.shared_up, {});
    Tensor& last = w.shared_down;
    last = tensor(last.data, last.dtype, Shape(1, last.shape[0], last.shape[1]));
    if (expert_dtype(w.gate) == DType::e4m3) {
      uploader_->quantize_experts(&w.gate, &w.up, gate, up, &w.gate_up_scale.row);
      uploader_->quantize({&w.down, &last}, &w.down, &w.down_scale.row);
    } else {
      uploader_->join_experts(&w.gate, &w.up, gate, up, expert_dtype(w.gate));
      uploader_->join({&w.down, &last}, &w.down, expert_dtype(w.gate));
    }
    uploader_->join({&w.router, &w.shared_open}, &w.router, dtype_of(w.router));
  }
  /// Whether that can be: 16 bits, e4m3 or q4_0 in all of them, and matrices of one shape.
  bool shared_fits(const LayerWeights& w) const {
    const DType dtype = expert_dtype(w.gate);
    const Tensor* const all[] = {&w.up, &w.down, &w.shared_gate, &w.shared_up, &w.shared_down};
    return (dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::e4m3 || dtype == DType::q4_0) &&
           w.shared_gate.shape[0] == w.gate.shape[1] &&
           std::all_of(std::begin(all), std::end(all), [&](const Tensor* t) { return expert_dtype(*t) == dtype; }) &&
           dtype_of(w.router) == dtype_of(w.shared_open);
  }
  bool quantizes_head(const Tensor& t) const { return plan_.head && !(is_block(t.dtype) && plan_.keeps_blocks); }
  /// The head decides which token comes: the plan says what becomes of it apart from other matrices.
  void head(Tensor* t, engine::Scales* scale) {
    if (quantizes_head(*t)) quantize({t}, t, scale, *plan_.head);
    else plain(t);
  }
  /// One matrix of several, if one dtype serves all.
  bool join(std::initializer_list<Tensor*> parts, Tensor* whole, engine::Scales* scale,
            WeightUploader::Rows rows = WeightUploader::Rows::after) {
    const Tensor& first = **parts.begin();
    for (const Tensor* t : parts)
      if (t->shape.rank != 2 || dtype_of(*t) != dtype_of(first)) return false;
    if (source_.scales_of(first) != nullptr) keep(parts, whole, scale, rows);
    else if (narrow(first)) quantize(parts, whole, scale, format(), rows);
    else uploader_->join(parts, whole, dtype_of(first), rows);
    return true;
  }
  /// Whether the plan leaves all of them as plain matrices of one dtype.
  bool stay_alike(std::initializer_list<Tensor*> parts) const {
    const DType first = dtype_of(**parts.begin());
    return std::all_of(parts.begin(), parts.end(), [&](const Tensor* t) {
      return !narrow(*t) && source_.scales_of(*t) == nullptr && dtype_of(*t) == first;
    });
  }
  /// The same as they are; parts of several dtypes stay apart.
  void join_plain(std::initializer_list<Tensor*> parts, Tensor* whole) {
    const DType first = dtype_of(**parts.begin());
    if (std::all_of(parts.begin(), parts.end(), [&](const Tensor* t) { return dtype_of(*t) == first; }))
      uploader_->join(parts, whole, first);
    else
      for (Tensor* t : parts) plain(t);
  }
  /// In the dtype of activations, where an op takes no other.
  void hidden(Tensor* t) { uploader_->add(t, plan_.hidden); }

  /// Of quantized matrices.
  DType format() const {
    return plan_.plain == Plain::four ? DType::e2m1 : plan_.plain == Plain::four_int ? DType::q4_0 : DType::e4m3;
  }
  bool makes_blocks() const { return quantizes(plan_) && is_block(format()); }

 private:
  /// FP4 or e4m3 of the checkpoint; FP4 parts of one matrix share a scale, see load_weights().
  void keep(std::initializer_list<Tensor*> parts, Tensor* whole, engine::Scales* scale,
            WeightUploader::Rows rows = WeightUploader::Rows::after) {
    std::vector<engine::Scales> scales;
    for (const Tensor* t : parts) scales.push_back(*source_.scales_of(*t));
    if ((*parts.begin())->dtype == DType::e4m3)
      return uploader_->keep_scaled(parts, std::move(scales), whole, &scale->row, rows);
    uploader_->keep_block_scaled(parts, std::move(scales), whole, &scale->block, &scale->whole, rows);
  }
  void quantize(std::initializer_list<Tensor*> parts, Tensor* whole, engine::Scales* scale, DType to,
                WeightUploader::Rows rows = WeightUploader::Rows::after) {
    if (is_block(to)) uploader_->join(parts, whole, to, rows);
    else if (to == DType::e2m1) uploader_->quantize_block_scaled(parts, whole, &scale->block, &scale->whole, rows);
    else uploader_->quantize(parts, whole, &scale->row, rows);
  }
  bool narrow(const Tensor& t) const { return quantizes(plan_) && !(is_block(t.dtype) && plan_.keeps_blocks); }
  /// No product of experts takes FP4.
  DType expert_dtype(const Tensor& t) const { return narrow(t) && format() != DType::e2m1 ? format() : dtype_of(t); }
  DType dtype_of(const Tensor& t) const {
    if (is_block(t.dtype)) return plan_.keeps_blocks ? t.dtype : plan_.hidden;
    return plan_.plain == Plain::stored ? t.dtype : DType::bf16;
  }
  const PrecisionPlan& plan_;
  const engine::WeightSource& source_;
  WeightUploader* uploader_;
};

void upload_attention(LayerUploader& p, WeightUploader* uploader, Place place, LayerWeights& w) {
  const bool biased = w.q_bias.present();
  const bool split = w.q.present();
  const bool one_bias = !biased || (w.q_bias.dtype == w.k_bias.dtype && w.q_bias.dtype == w.v_bias.dtype);
  if (!split) {
    p.matrix(&w.qkv, &w.qkv_scale);
  } else if (one_bias && (w.attn_gate.present() ? p.join({&w.q, &w.k, &w.v, &w.attn_gate}, &w.qkv, &w.qkv_scale)
                                                : p.join({&w.q, &w.k, &w.v}, &w.qkv, &w.qkv_scale))) {
    if (biased)
      uploader->join({&w.q_bias, &w.k_bias, &w.v_bias}, &w.qkv_bias, w.q_bias.dtype, WeightUploader::Rows::after, true);
  } else {
    // As files of k-quants have it, whose values have more bits. The host's blocks stay where they are mapped.
    const bool pair = place != Place::host && one_bias && p.stay_alike({&w.q, &w.k});
    if (pair) {
      p.join_plain({&w.q, &w.k}, &w.qk);
      if (biased) uploader->join({&w.q_bias, &w.k_bias}, &w.qk_bias, w.q_bias.dtype, WeightUploader::Rows::after, true);
    } else {
      for (Tensor* t : {&w.q_bias, &w.k_bias}) p.vector(t, true);
      for (Tensor* t : {&w.q, &w.k}) p.plain(t);
    }
    p.vector(&w.v_bias, true);
    for (Tensor* t : {&w.v, &w.attn_gate}) p.plain(t);
  }
  p.matrix(&w.o, &w.o_scale);
}

void upload_recurrent(LayerUploader& p, LayerWeights& w) {
  if (p.stay_alike({&w.conv_in, &w.delta_gate, &w.delta_b, &w.delta_a})) {
    p.join_plain({&w.conv_in, &w.delta_gate, &w.delta_b, &w.delta_a}, &w.delta_in);
  } else {
    if (!p.join({&w.conv_in, &w.delta_gate}, &w.delta_in, &w.delta_in_scale))
      for (Tensor* t : {&w.conv_in, &w.delta_gate}) p.plain(t);
    p.join_plain({&w.delta_b, &w.delta_a}, &w.delta_ba);  // small, and what is forgotten hangs on them
  }
  p.hidden(&w.conv);
  for (Tensor* t : {&w.delta_rate, &w.delta_bias, &w.delta_norm}) p.vector(t);
  p.matrix(&w.o, &w.o_scale);
}

void upload_mlp(LayerUploader& p, const DecoderConfig& config, Place place, bool shared_is_expert, LayerWeights& w) {
  if (shared_is_expert) return p.experts_and_shared(w);
  p.plain(&w.router);
  if (config.has(kExperts)) {
    p.experts(w);
    for (Tensor* t : {&w.shared_open, &w.shared_gate, &w.shared_up, &w.shared_down}) p.plain(t);
    return;
  }
  // Rows in turn are gated in the product's own pass. The host's blocks lie one after the other, as they are mapped,
  // and gated_mlp sees that they do: its act_mul is many values at a time.
  const bool gated = w.gate.present();
  const bool apart = place == Place::host && (p.makes_blocks() || is_block(w.gate.dtype) || is_block(w.up.dtype));
  const bool joined =
      gated && (apart ? p.join({&w.gate, &w.up}, nullptr, nullptr)
                      : p.join({&w.gate, &w.up}, &w.gate_up, &w.gate_up_scale, WeightUploader::Rows::alternate));
  if (gated && !joined) p.plain(&w.gate);
  if (gated && !joined) p.plain(&w.up);
  if (!gated) p.matrix(&w.up, &w.up_scale);
  p.matrix(&w.down, &w.down_scale);
}

void upload_layer(LayerUploader& p, WeightUploader* to, const DecoderConfig& config, Place place,
                  bool shared_is_expert, LayerWeights& w) {
  for (Tensor* t : {&w.attn_norm, &w.q_norm, &w.k_norm, &w.attn_post_norm, &w.mlp_norm, &w.mlp_post_norm}) p.vector(t);
  for (Tensor* t : {&w.attn_norm_bias, &w.qkv_bias, &w.o_bias, &w.mlp_norm_bias, &w.up_bias, &w.down_bias})
    p.vector(t, true);
  if (w.conv.present()) upload_recurrent(p, w);
  else upload_attention(p, to, place, w);
  upload_mlp(p, config, place, shared_is_expert, w);
}

}  // namespace

Status upload_weights(const DecoderConfig& config, const PrecisionPlan& plan, const engine::Runtime& runtime,
                      const engine::WeightSource& source, DecoderWeights* weights, WeightUploader* uploader,
                      int64_t resident, std::vector<WeightUploader>* streamed) {
  if (quantizes(plan) && is_block(weights->layers.front().o.dtype) &&
      (!plan.keeps_blocks || !narrows_any(plan, *weights)))
    return Status(Code::kUnsupported, strf("precision %s: the checkpoint's matrices are %s already; use native",
                                           plan.name, name(weights->layers.front().o.dtype)));
  if (plan.head_given && plan.keeps_blocks && is_block(weights->head.dtype))
    return Status(Code::kUnsupported, strf("lm_head_dtype: the checkpoint's is %s already; leave lm_head_dtype at auto",
                                           name(weights->head.dtype)));
  if (plan.plain == Plain::four_int || (plan.head && is_block(*plan.head))) {
    for (const int64_t width : {config.hidden, config.q_width(), config.mlp, config.linear.v_width()})
      if (width % 32 != 0)
        return Status(
            Code::kUnsupported,
            strf("precision %s: int4 and int8 rows have a scale for each 32 columns, which %ld does not divide into",
                 plan.name, static_cast<long>(width)));
  }
  if (plan.plain == Plain::four && (config.hidden % 16 != 0 || config.q_width() % 16 != 0 || config.mlp % 16 != 0 ||
                                    config.linear.v_width() % 16 != 0))
    return Status(Code::kUnsupported, strf("precision %s: FP4 rows have a scale for each 16 columns; hidden %ld, heads "
                                           "%ld and mlp %ld wide do not all divide",
                                           plan.name, static_cast<long>(config.hidden),
                                           static_cast<long>(config.q_width()), static_cast<long>(config.mlp)));
  const bool as_mapped = runtime.place() == Place::host && plan.plain == Plain::stored && !plan.head &&
                         !source.synthetic() && resident >= config.layers;
  if (as_mapped) {
    for (LayerWeights& w : weights->layers)
      if (w.conv.present() && w.conv.dtype != plan.hidden) w.conv = source.converted(w.conv, plan.hidden);
    return {};
  }
  LayerUploader p(plan, source, uploader);
  // A quantized head is its own, and the table of the embedding stays 16-bit; else a tied model has one table
  // (model.cc).
  if (config.tied && !p.quantizes_head(weights->head)) weights->head = Tensor{};
  else p.head(&weights->head, &weights->head_scale);
  p.plain(&weights->embed);
  p.plain(&weights->positions);
  p.vector(&weights->final_norm);
  p.vector(&weights->final_norm_bias, true);
  // What the host maps as it is stays apart, whatever else is moved.
  weights->shared_is_expert =
      config.has(kSharedExpert) && !(runtime.place() == Place::host && plan.plain == Plain::stored) &&
      std::all_of(weights->layers.begin(), weights->layers.end(),
                  [&](const LayerWeights& w) { return p.shared_fits(w); }) &&
      (!config.drafts || p.shared_fits(weights->draft.layer));
  streamed->resize(static_cast<size_t>(config.layers - std::min(resident, config.layers)));
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    LayerWeights& w = weights->layers[i];
    WeightUploader* const to =
        static_cast<int64_t>(i) < resident ? uploader : &(*streamed)[i - static_cast<size_t>(resident)];
    LayerUploader of_layer(plan, source, to);
    upload_layer(of_layer, to, config, runtime.place(), weights->shared_is_expert, w);
  }
  if (config.drafts) {
    DraftWeights& d = weights->draft;
    for (Tensor* t : {&d.embed_norm, &d.hidden_norm, &d.norm}) p.vector(t);
    PrecisionPlan half = plan;  // one layer, whose activations nobody calibrates
    if (plan.eight_in()) half.plain = Plain::half;
    LayerUploader of_draft(half, source, uploader);
    of_draft.matrix(&d.fc, &d.fc_scale);
    upload_layer(of_draft, uploader, config, runtime.place(), weights->shared_is_expert, d.layer);
  }
  return {};
}

}  // namespace vivace::models::decoder
