#include "vivace/kernels/decode/decode_layers.h"

#include <limits>
#include <vector>

#include "vivace/cpu/decode/passed.h"
#include "vivace/cpu/rope/rotate.h"

namespace vivace::cpu {
namespace {

using kernels::DecodeLayersArgs;
using kernels::LayerStack;

class Token {
 public:
  Token(const DecodeLayersArgs& a, Pool& pool)
      : a_(a),
        pool_(pool),
        slot_(a.slot != nullptr ? *a.slot : 0),
        pos_(*a.pos),
        rotation_(a.inv_freq, a.D / 2, pos_, a.attn_factor, kernels::RopeStyle::half),
        residual_(size(a.H)),
        row_(size(a.H)),
        qkv_(size((a.Hq + 2 * a.Hkv) * a.D)),
        attended_(size(a.Hq * a.D)),
        hidden_(size(a.M)) {}

  void run() {
    const DecodeLayersArgs::Place place = a_.place(slot_, pos_);
    if (place.block < 0) return;
    load_f32(a_.x, DType::bf16, 0, a_.H, residual_.data());
    for (layer_ = 0; layer_ < a_.N; ++layer_) {
      float inv = norm(a_.attn_norm);
      product(a_.qkv, std::ssize(qkv_), row_, [&](int64_t n, float sum) {
        float bias = 0;
        if (a_.qkv_bias.data != nullptr)
          load_f32(a_.qkv_bias.data, a_.bias_dtype, layer_ * a_.qkv_bias.stride + n, 1, &bias);
        qkv_[size(n)] = passed(sum * inv + bias);
      });
      for (int h = 0; h < a_.Hq; ++h) turn(h, a_.q_norm);
      for (int h = 0; h < a_.Hkv; ++h) turn(a_.Hq + h, a_.k_norm);
      for (float& v : qkv_) v = rounded(v);
      const float* const keys = qkv_.data() + int64_t{a_.Hq} * a_.D;
      const int64_t width = int64_t{a_.Hkv} * a_.D;
      store_f32(a_.k_cache, DType::bf16, layer_ * a_.k_stride + a_.element(place, 0), width, keys);
      store_f32(a_.v_cache, DType::bf16, layer_ * a_.v_stride + a_.element(place, 0), width, keys + width);
      for_rows(pool_, a_.Hq, int64_t{pos_ + 1} * a_.D, [&](int64_t h) { attend(static_cast<int>(h)); });
      product(a_.o, a_.H, attended_, [&](int64_t n, float sum) { residual_[size(n)] += sum; });
      inv = norm(a_.mlp_norm);
      std::vector<float> both(size(2 * a_.M));
      product(a_.gate_up, std::ssize(both), row_, [&](int64_t n, float sum) { both[size(n)] = sum * inv; });
      for (size_t i = 0; i < hidden_.size(); ++i) {
        const float gate = both[2 * i], up = both[2 * i + 1];
        hidden_[i] = rounded(passed(gate / (1.0f + std::exp(-gate)) * up));
      }
      product(a_.down, a_.H, hidden_, [&](int64_t n, float sum) { residual_[size(n)] += sum; });
    }
    store_f32(a_.out, DType::bf16, 0, a_.H, residual_.data());
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  /// layer_product() of this layer, times the rows' scales.
  template <class F>
  void product(const kernels::LayerMatrix& m, int64_t n, const std::vector<float>& y, F&& f) {
    const auto* const scale = static_cast<const float*>(m.scale.data);
    layer_product(m.w, a_.weight_dtype, layer_, n, y, pool_, [&](int64_t row, float sum) {
      f(row, scale != nullptr ? sum * scale[layer_ * m.scale.stride + row] : sum);
    });
  }
  /// row_ = residual times a norm's weights; its inverse root is for what the product gives.
  float norm(const LayerStack& weight) {
    double squares = 0;
    load_f32(weight.data, DType::bf16, layer_ * weight.stride, a_.H, row_.data());
    for (size_t i = 0; i < row_.size(); ++i) {
      const float v = passed(residual_[i]);
      squares += static_cast<double>(v) * v;
      row_[i] = rounded(v * row_[i]);
    }
    return static_cast<float>(1 / std::sqrt(squares / a_.H + static_cast<double>(a_.eps)));
  }
  /// A head of q or k: its norm, and the rotation.
  void turn(int h, const LayerStack& weight) {
    float* const head = qkv_.data() + int64_t{h} * a_.D;
    if (weight.data != nullptr) {
      std::vector<float> factor(size(a_.D));
      load_f32(weight.data, DType::bf16, layer_ * weight.stride, a_.D, factor.data());
      float squares = 0;
      for (int d = 0; d < a_.D; ++d) squares += head[d] * head[d];
      const float inv = 1.0f / std::sqrt(squares / static_cast<float>(a_.D) + a_.eps);
      for (int d = 0; d < a_.D; ++d) head[d] = head[d] * inv * factor[size(d)];
    }
    rotation_.apply(head);
  }
  /// Keys come one after the other; what is there so far shrinks when a larger score comes.
  void attend(int h) {
    const float* const q = qkv_.data() + int64_t{h} * a_.D;
    const float scale = 1.0f / std::sqrt(static_cast<float>(a_.D));
    std::vector<float> key(size(a_.D)), sum(size(a_.D));
    float most = -std::numeric_limits<float>::infinity(), mass = 0;
    for (int32_t at = 0; at <= pos_; ++at) {
      const DecodeLayersArgs::Place place = a_.place(slot_, at);
      if (place.block < 0) continue;
      const int64_t element = a_.element(place, h / (a_.Hq / a_.Hkv));
      load_f32(a_.k_cache, DType::bf16, layer_ * a_.k_stride + element, a_.D, key.data());
      float score = 0;
      for (int d = 0; d < a_.D; ++d) score += q[d] * key[size(d)];
      score *= scale;
      const float top = std::max(most, score), kept = std::exp(most - top), p = std::exp(score - top);
      most = top, mass = mass * kept + p;
      load_f32(a_.v_cache, DType::bf16, layer_ * a_.v_stride + element, a_.D, key.data());
      for (int d = 0; d < a_.D; ++d) sum[size(d)] = sum[size(d)] * kept + p * key[size(d)];
    }
    for (int d = 0; d < a_.D; ++d) attended_[size(int64_t{h} * a_.D + d)] = rounded(passed(sum[size(d)] / mass));
  }

  const DecodeLayersArgs& a_;
  Pool& pool_;
  int32_t slot_, pos_;
  int layer_ = 0;
  Rotation rotation_;
  std::vector<float> residual_, row_, qkv_, attended_, hidden_;
};

}  // namespace

void decode_layers(const DecodeLayersArgs& a, Pool& pool) {
  if (valid_rows(a.rows, 1) == 1) Token(a, pool).run();
}

}  // namespace vivace::cpu
