#include "vivace/kernels/decode/decode_layers_cross.h"

#include <limits>
#include <vector>

#include "vivace/cpu/decode/passed.h"
#include "vivace/kernels/gate/activation.h"

namespace vivace::cpu {
namespace {

using kernels::DecodeLayersCrossArgs;
using kernels::LayerStack;

class CrossToken {
 public:
  CrossToken(const DecodeLayersCrossArgs& a, Pool& pool)
      : a_(a),
        pool_(pool),
        slot_(a.slot != nullptr ? *a.slot : 0),
        window_(a.window != nullptr ? *a.window : 0),
        pos_(*a.pos),
        residual_(size(a.H)),
        row_(size(a.H)),
        weight_(size(a.H)),
        shift_(size(a.H)),
        qkv_(size(3 * int64_t{a.H})),
        query_(size(a.H)),
        attended_(size(a.H)),
        hidden_(size(a.M)) {}

  void run() {
    const int32_t place = a_.row_of(slot_, pos_);
    if (place < 0 || window_ < 0 || window_ >= a_.C) return;
    load_f32(a_.x, DType::bf16, 0, a_.H, residual_.data());
    if (a_.add != nullptr) {
      load_f32(a_.add, DType::bf16, 0, a_.H, row_.data());
      for (size_t i = 0; i < row_.size(); ++i) residual_[i] += row_[i];
    }
    const auto add = [&](int64_t n, float v) { residual_[size(n)] += v; };
    for (layer_ = 0; layer_ < a_.N; ++layer_) {
      norm(a_.attn_norm);
      product(a_.qkv, row_, std::ssize(qkv_), [&](int64_t n, float v) { qkv_[size(n)] = rounded(passed(v)); });
      store_f32(a_.k_cache, DType::bf16, layer_ * a_.k_stride + int64_t{place} * a_.H, a_.H, qkv_.data() + a_.H);
      store_f32(a_.v_cache, DType::bf16, layer_ * a_.v_stride + int64_t{place} * a_.H, a_.H, qkv_.data() + 2 * a_.H);
      attend(qkv_.data(), {a_.k_cache, a_.k_stride}, {a_.v_cache, a_.v_stride}, int64_t{pos_} + 1,
             [&](int64_t at) -> int64_t { return a_.row_of(slot_, static_cast<int32_t>(at)); });
      product(a_.o, attended_, a_.H, add);
      norm(a_.cross_norm);
      product(a_.cross_q, row_, a_.H, [&](int64_t n, float v) { query_[size(n)] = rounded(passed(v)); });
      if (a_.queries != nullptr) store_f32(a_.queries, DType::bf16, layer_ * a_.queries_stride, a_.H, query_.data());
      attend(query_.data(), {a_.cross_k, a_.cross_k_stride}, {a_.cross_v, a_.cross_v_stride}, a_.F,
             [&](int64_t at) { return int64_t{window_} * a_.F + at; });
      product(a_.cross_o, attended_, a_.H, add);
      norm(a_.mlp_norm);
      product(a_.up, row_, a_.M, [&](int64_t n, float v) {
        hidden_[size(n)] = rounded(passed(kernels::activate(kernels::Activation::gelu_erf, v)));
      });
      product(a_.down, hidden_, a_.H, add);
    }
    store_f32(a_.out, DType::bf16, 0, a_.H, residual_.data());
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  /// f(row, its product with y and its bias).
  template <class F>
  void product(const DecodeLayersCrossArgs::Matrix& m, const std::vector<float>& y, int64_t n, F&& f) {
    layer_product(m.w, DType::bf16, layer_, n, y, pool_, [&](int64_t row, float sum) {
      float bias;
      load_f32(m.bias.data, DType::bf16, layer_ * m.bias.stride + row, 1, &bias);
      f(row, sum + bias);
    });
  }
  /// row_ = the residual's layer norm.
  void norm(const DecodeLayersCrossArgs::Norm& n) {
    load_f32(n.weight.data, DType::f32, layer_ * n.weight.stride, a_.H, weight_.data());
    load_f32(n.bias.data, DType::f32, layer_ * n.bias.stride, a_.H, shift_.data());
    double sum = 0, squares = 0;
    for (const float r : residual_) sum += static_cast<double>(passed(r));
    const double mean = sum / a_.H;
    for (const float r : residual_) {
      const double away = static_cast<double>(passed(r)) - mean;
      squares += away * away;
    }
    const double inv = 1 / std::sqrt(squares / a_.H + static_cast<double>(a_.eps));
    for (size_t i = 0; i < row_.size(); ++i)
      row_[i] = rounded(static_cast<float>((static_cast<double>(passed(residual_[i])) - mean) * inv) * weight_[i] +
                        shift_[i]);
  }
  /// attended_: of each head, over the places row_of(0 .. count) of a layer's keys and values that exist. Keys come one
  /// after the other; what is there so far shrinks when a larger score comes.
  template <class RowOf>
  void attend(const float* query, LayerStack keys, LayerStack values, int64_t count, RowOf&& row_of) {
    constexpr int D = DecodeLayersCrossArgs::D;
    const float scale = 1.0f / std::sqrt(static_cast<float>(D));
    for_rows(pool_, a_.heads, count * D, [&](int64_t h) {
      const float* const q = query + h * D;
      float key[D], sum[D] = {}, most = -std::numeric_limits<float>::infinity(), mass = 0;
      for (int64_t at = 0; at < count; ++at) {
        const int64_t row = row_of(at);
        if (row < 0) continue;
        load_f32(keys.data, DType::bf16, layer_ * keys.stride + row * a_.H + h * D, D, key);
        float score = 0;
        for (int d = 0; d < D; ++d) score += q[d] * key[d];
        score *= scale;
        const float top = std::max(most, score), kept = std::exp(most - top), p = std::exp(score - top);
        most = top, mass = mass * kept + p;
        load_f32(values.data, DType::bf16, layer_ * values.stride + row * a_.H + h * D, D, key);
        for (int d = 0; d < D; ++d) sum[d] = sum[d] * kept + p * key[d];
      }
      for (int d = 0; d < D; ++d) attended_[size(h * D + d)] = rounded(passed(sum[d] / mass));
    });
  }

  const DecodeLayersCrossArgs& a_;
  Pool& pool_;
  int32_t slot_, window_, pos_;
  int layer_ = 0;
  std::vector<float> residual_, row_, weight_, shift_, qkv_, query_, attended_, hidden_;
};

}  // namespace

void decode_layers_cross(const DecodeLayersCrossArgs& a, Pool& pool) {
  if (valid_rows(a.rows, 1) == 1) CrossToken(a, pool).run();
}

}  // namespace vivace::cpu
