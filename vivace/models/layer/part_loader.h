// PartLoader: parts of a checkpoint by their hub names, queued for where ops read them.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"
#include "vivace/engine/weights.h"
#include "vivace/models/layer/parts.h"

namespace vivace::models {

/// Memory of tensors that loading makes, until their uploader is committed.
using OwnedTensors = std::vector<std::unique_ptr<std::byte[]>>;

/// Errors of all calls: NotFound names the missing tensor, InvalidShape both shapes.
class PartLoader {
 public:
  using Rows = engine::WeightUploader::Rows;

  /// `act`: of activations. `stored`: matrices stay as the checkpoint has them; else they are as activations are.
  /// `eight`: e4m3 with a scale a row instead, but for those that are asked for `wide`.
  PartLoader(const engine::WeightSource& source, DType act, bool stored, engine::WeightUploader* uploader,
             OwnedTensors* own, bool eight = false)
      : source_(source), uploader_(uploader), act_(act), stored_(stored), eight_(eight), own_(own) {}

 protected:
  bool synthetic() const { return source_.synthetic(); }
  Result<Tensor> get(const std::string& name, const Shape& shape) const {
    return source_.get(engine::WeightRule{"", name.c_str(), shape});
  }
  DType dtype_of(const Tensor& t) const { return stored_ ? t.dtype : act_; }

  /// Memory of this loading's for a made tensor; without data of weights that will be drawn.
  Tensor make(DType dtype, const Shape& shape) {
    Tensor t = tensor(nullptr, dtype, shape);
    if (synthetic()) return t;
    own_->push_back(std::make_unique<std::byte[]>(static_cast<size_t>(t.span_bytes())));
    t.data = own_->back().get();
    return t;
  }
  /// Element `i` of a checkpoint's tensor.
  static float value(const Tensor& t, int64_t i) {
    if (t.dtype == DType::f32) {
      float v;
      std::memcpy(&v, static_cast<const char*>(t.data) + 4 * i, 4);
      return v;
    }
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(t.data) + 2 * i, 2);
    return t.dtype == DType::bf16 ? f32_of_bf16(bits) : f32_of_f16(bits);
  }

  Status vector(const std::string& name, int64_t n, Tensor* t) {
    VV_ASSIGN(*t, get(name, Shape(n)));
    uploader_->add(t, t->dtype);
    return {};
  }
  Status table(const std::string& name, const Shape& shape, Tensor* t) {
    VV_ASSIGN(*t, get(name, shape));
    uploader_->add(t, dtype_of(*t));
    return {};
  }
  Status norm(const std::string& name, int64_t n, Norm* to) {
    VV_TRY(vector(name + ".weight", n, &to->weight));
    VV_ASSIGN(to->bias, get(name + ".bias", Shape(n)));
    uploader_->add(&to->bias, to->weight.dtype, true);
    return {};
  }
  /// A matrix whose one part is there.
  void place(Linear* to, bool wide = false) {
    if (eight_ && !wide) {
      uploader_->quantize({&to->parts[0]}, &to->w, &to->scale.row);
      return;
    }
    to->w = to->parts[0];
    uploader_->add(&to->w, dtype_of(to->w));
  }
  Status linear(const std::string& name, int64_t N, int64_t K, Linear* to, bool bias = true, bool wide = false) {
    VV_ASSIGN(to->parts[0], get(name + ".weight", Shape(N, K)));
    place(to, wide);
    if (!bias) return {};
    VV_ASSIGN(to->bias, get(name + ".bias", Shape(N)));
    uploader_->add(&to->bias, dtype_of(to->bias), true);
    return {};
  }
  /// Matrices that read the same rows as one.
  Status join(std::vector<std::pair<std::string, int64_t>> parts, int64_t K, bool bias, Rows order, Linear* to,
              bool wide = false) {
    for (size_t i = 0; i < parts.size(); ++i) {
      VV_ASSIGN(to->parts[i], get(parts[i].first + ".weight", Shape(parts[i].second, K)));
      if (!bias) continue;
      VV_ASSIGN(to->part_bias[i], get(parts[i].first + ".bias", Shape(parts[i].second)));
    }
    const auto all = [&](Tensor* p, Tensor* whole, DType dtype, bool is_bias) {
      if (parts.size() == 2)
        uploader_->join({p, p + 1}, whole, dtype, order, is_bias);
      else
        uploader_->join({p, p + 1, p + 2}, whole, dtype, order, is_bias);
    };
    Tensor* const p = to->parts;
    if (!eight_ || wide)
      all(p, &to->w, dtype_of(p[0]), false);
    else if (parts.size() == 2)
      uploader_->quantize({p, p + 1}, &to->w, &to->scale.row, order);
    else
      uploader_->quantize({p, p + 1, p + 2}, &to->w, &to->scale.row, order);
    if (bias) all(to->part_bias, &to->bias, dtype_of(to->part_bias[0]), true);
    return {};
  }

  const engine::WeightSource& source_;
  engine::WeightUploader* uploader_;
  DType act_;

 private:
  bool stored_, eight_;
  OwnedTensors* own_;
};

}  // namespace vivace::models
