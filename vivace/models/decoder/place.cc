// Where a decoder's weights go: which dtype, and which ones lie side by side.
#include "vivace/models/decoder/weights.h"

namespace vivace::models::decoder {
namespace {

class Placer {
 public:
  Placer(const PrecisionPlan& plan, engine::Placement* placement) : plan_(plan), placement_(placement) {}

  void matrix(Tensor* t) {
    if (t->present()) placement_->add(t, dtype_of(*t));
  }
  void vector(Tensor* t, bool bias = false) {
    if (t->present()) placement_->add(t, t->dtype, bias);
  }
  /// One matrix of several, if one dtype serves all; `whole` may be null.
  bool join(std::initializer_list<Tensor*> parts, Tensor* whole) {
    for (const Tensor* t : parts)
      if (t->shape.rank != 2 || dtype_of(*t) != dtype_of(**parts.begin())) return false;
    placement_->join(parts, whole, dtype_of(**parts.begin()));
    return true;
  }

 private:
  DType dtype_of(const Tensor& t) const {
    if (is_block(t.dtype)) return plan_.keeps_blocks ? t.dtype : plan_.hidden;
    return plan_.plain_16_bit ? DType::bf16 : t.dtype;
  }
  const PrecisionPlan& plan_;
  engine::Placement* placement_;
};

}  // namespace

void place_weights(const DecoderConfig& config, const PrecisionPlan& plan, const engine::Machine& machine, bool synthetic,
                     DecoderWeights* weights, engine::Placement* placement) {
  const bool as_mapped = machine.place() == Place::host && !plan.plain_16_bit && !synthetic;
  if (as_mapped) return;
  Placer p(plan, placement);
  p.matrix(&weights->embed);
  if (!config.tied) p.matrix(&weights->head);
  p.matrix(&weights->positions);
  p.vector(&weights->final_norm);
  p.vector(&weights->final_norm_bias, true);
  for (LayerWeights& w : weights->layers) {
    for (Tensor LayerWeights::*t : {&LayerWeights::attn_norm, &LayerWeights::q_norm, &LayerWeights::k_norm, &LayerWeights::attn_post_norm, &LayerWeights::mlp_norm, &LayerWeights::mlp_post_norm})
      p.vector(&(w.*t));
    for (Tensor LayerWeights::*t : {&LayerWeights::attn_norm_bias, &LayerWeights::qkv_bias, &LayerWeights::o_bias, &LayerWeights::mlp_norm_bias, &LayerWeights::up_bias, &LayerWeights::down_bias})
      p.vector(&(w.*t), true);
    const bool biased = w.q_bias.present(), split = w.q.present();
    const bool same_biases = !biased || (w.q_bias.dtype == w.k_bias.dtype && w.q_bias.dtype == w.v_bias.dtype);
    const bool joined = split && same_biases && p.join({&w.q, &w.k, &w.v}, &w.qkv);
    if (joined && biased) placement->join({&w.q_bias, &w.k_bias, &w.v_bias}, &w.qkv_bias, w.q_bias.dtype, true);
    for (Tensor LayerWeights::*t : {&LayerWeights::q_bias, &LayerWeights::k_bias, &LayerWeights::v_bias})
      if (!joined) p.vector(&(w.*t), true);
    for (Tensor LayerWeights::*t : {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v})
      if (!joined) p.matrix(&(w.*t));
    if (!split) p.matrix(&w.qkv);
    p.matrix(&w.o);
    p.matrix(&w.router);
    // Side by side, gate and up are one product: gated_mlp looks for it.
    const bool beside = w.gate.present() && p.join({&w.gate, &w.up}, nullptr);
    if (!beside) p.matrix(&w.gate);
    if (!beside) p.matrix(&w.up);
    p.matrix(&w.down);
  }
}

}  // namespace vivace::models::decoder
