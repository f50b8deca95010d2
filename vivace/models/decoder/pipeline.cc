#include "vivace/models/decoder/pipeline.h"

#include "vivace/base/check.h"

namespace vivace::models::decoder {
namespace {

/// The first T rows of a scratch or input tensor.
Tensor top(const Tensor& t, int64_t T) { return slice(t, 0, T); }

/// Columns [first, first + n) of [T, W].
Tensor columns(const Tensor& t, int64_t first, int64_t n) {
  Tensor r = t;
  r.data = static_cast<char*>(t.data) + row_bytes(t.dtype, first);
  r.shape.dim[1] = n;
  return r;
}

/// [T, N, D] seen as [T, N*D].
Tensor flat(const Tensor& t) {
  Tensor r = tensor(t.data, t.dtype, Shape(t.shape[0], t.shape[1] * t.shape[2]), t.place);
  r.stride[0] = t.stride[0];
  return r;
}

class Step {
 public:
  Step(ops::Recorder& rec, const DecoderConfig& c, const PrecisionPlan& plan, const DecoderWeights& w, const StepBuffers& b, int64_t T, double attn_factor)
      : rec_(rec), c_(c), plan_(plan), w_(w), b_(b), T_(T), attn_factor_(attn_factor),
        hidden_(top(b.hidden, T)), normed_(top(b.normed, T)), pos_(top(b.pos, T)), slot_(top(b.slot, T)) {}

  Status record() {
    const Tensor tokens = top(b_.tokens, T_);
    VV_TRY(rec_(ops::embedding, {{"table", w_.embed}, {"ids", tokens}, {"out", hidden_}, {"rows", b_.rows}}));
    VV_TRY(rec_(ops::count_tokens, {{"ids", tokens}, {"slot", slot_}, {"counts", b_.counts}, {"rows", b_.rows}}));
    for (size_t i = 0; i < w_.layers.size(); ++i) {
      VV_TRY(attention(w_.layers[i], b_.k_cache[i], b_.v_cache[i]));
      VV_TRY(mlp(w_.layers[i]));
    }
    return sample();
  }

 private:
  Status attention(const LayerWeights& w, const Tensor& k_cache, const Tensor& v_cache) {
    const int64_t nq = c_.q_width(), nk = c_.kv_width();
    const Tensor qkv = top(b_.qkv, T_), q = top(b_.q, T_), attended = top(b_.attended, T_);
    VV_TRY(norm(hidden_, w.attn_norm, normed_));
    VV_TRY(linear(normed_, w.q, w.q_bias, columns(qkv, 0, nq)));
    VV_TRY(linear(normed_, w.k, w.k_bias, columns(qkv, nq, nk)));
    VV_TRY(linear(normed_, w.v, w.v_bias, columns(qkv, nq + nk, nk)));
    VV_TRY(rec_(ops::qkv_rope,
                {{"qkv", qkv}, {"q", q}, {"k_cache", k_cache}, {"v_cache", v_cache}, {"pos", pos_}, {"slot", slot_},
                 {"inv_freq", b_.inv_freq}, {"q_norm", w.q_norm}, {"k_norm", w.k_norm}, {"rows", b_.rows}},
                {{"style", std::string_view(c_.rope_style)}, {"attn_factor", attn_factor_}, {"eps", c_.eps}}));
    VV_TRY(rec_(ops::attention, {{"q", q}, {"k", k_cache}, {"v", v_cache}, {"pos", pos_}, {"slot", slot_}, {"out", attended}, {"rows", b_.rows}},
                {{"mask", "causal"}}));
    return rec_(ops::gemm, {{"x", flat(attended)}, {"w", w.o}, {"residual", hidden_}, {"out", hidden_}, {"rows", b_.rows}}, {{"act", act(w.o)}});
  }

  Status mlp(const LayerWeights& w) {
    VV_TRY(norm(hidden_, w.mlp_norm, normed_));
    return rec_(ops::gated_mlp,
                {{"x", normed_}, {"w_gate", w.gate}, {"w_up", w.up}, {"w_down", w.down}, {"residual", hidden_}, {"out", hidden_},
                 {"gate_up", top(b_.gate_up, T_)}, {"hidden", top(b_.mlp, T_)}, {"rows", b_.rows}},
                {{"act", "silu"}, {"quant", act(w.gate)}});
  }

  Status sample() {
    // A row's logits cost as much as its whole stack of layers: only the sampled rows reach the head.
    VV_TRY(rec_(ops::embedding, {{"table", hidden_}, {"ids", b_.sample_rows}, {"out", b_.last}, {"rows", b_.samples}}));
    VV_TRY(rec_(ops::norm, {{"x", b_.last}, {"weight", w_.final_norm}, {"out", b_.last}, {"rows", b_.samples}}, {{"eps", c_.eps}}));
    VV_TRY(rec_(ops::gemm, {{"x", b_.last}, {"w", w_.head}, {"out", b_.logits}, {"rows", b_.samples}}, {{"act", act(w_.head)}}));
    return rec_(ops::sample,
                {{"logits", b_.logits}, {"token", b_.next}, {"logprob", b_.logprob}, {"temperature", b_.temperature}, {"top_k", b_.top_k},
                 {"top_p", b_.top_p}, {"min_p", b_.min_p}, {"seed", b_.seed}, {"step", b_.sample_step}, {"counts", b_.counts},
                 {"slot", b_.sample_slot}, {"repetition", b_.repetition}, {"presence", b_.presence}, {"frequency", b_.frequency}, {"rows", b_.samples}});
  }

  Status norm(const Tensor& x, const Tensor& weight, const Tensor& out) {
    return rec_(ops::norm, {{"x", x}, {"weight", weight}, {"out", out}, {"rows", b_.rows}}, {{"eps", c_.eps}});
  }

  Status linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& out) {
    return rec_(ops::gemm, {{"x", x}, {"w", w}, {"bias", bias}, {"out", out}, {"rows", b_.rows}}, {{"act", act(w)}});
  }

  /// Plain weights take activations as they are under every plan.
  std::string_view act(const Tensor& w) const { return is_block(w.dtype) ? plan_.act : "f32"; }

  ops::Recorder& rec_;
  const DecoderConfig& c_;
  const PrecisionPlan& plan_;
  const DecoderWeights& w_;
  const StepBuffers& b_;
  int64_t T_;
  double attn_factor_;
  Tensor hidden_, normed_, pos_, slot_;
};

}  // namespace

Status record_step(ops::Recorder& rec, const DecoderConfig& config, const PrecisionPlan& plan, const DecoderWeights& weights,
                   const StepBuffers& buffers, int64_t T, double attn_factor) {
  return Step(rec, config, plan, weights, buffers, T, attn_factor).record();
}

}  // namespace vivace::models::decoder
