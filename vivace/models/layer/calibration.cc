#include "vivace/models/layer/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"
#include "vivace/engine/runtime.h"

namespace vivace::models {

Status Calibration::see(exec::Stream& stream, int64_t place, const Tensor& x, int64_t valid) {
  if (valid == 0) return {};
  const Tensor part = slice(x, 0, valid);
  copy_.resize(static_cast<size_t>(part.span_bytes()));
  VV_TRY(stream.synchronize());
  VV_TRY(stream.copy(copy_.data(), part.data, copy_.size()));
  VV_TRY(stream.synchronize());
  float& most = largest_[static_cast<size_t>(place)].back();
  for (int64_t t = 0; t < valid; ++t)
    for (int64_t i = 0; i < x.shape[1]; ++i) {
      const auto at = static_cast<size_t>(t * x.stride[0] + i);
      float v;
      if (x.dtype == DType::f32) std::memcpy(&v, copy_.data() + 4 * at, 4);
      else v = f32_of_bf16(reinterpret_cast<const uint16_t*>(copy_.data())[at]);
      if (!std::isfinite(v))
        return Status(Code::kCorruptData,
                      strf("calibrate: values that enter product %ld are not finite: the checkpoint is broken, or an "
                           "input lies far outside what it was trained on",
                           static_cast<long>(place)));
      most = std::max(most, std::fabs(v));
    }
  return {};
}

std::vector<float> Calibration::scales(double percentile) {
  std::vector<float> scales;
  for (auto& l : largest_) {
    std::sort(l.begin(), l.end());
    const double at = percentile / 100 * static_cast<double>(l.size() - 1), low = std::floor(at);
    const float below = l[static_cast<size_t>(low)], above = l[static_cast<size_t>(std::ceil(at))];
    const float value = below + (above - below) * static_cast<float>(at - low);
    scales.push_back(value > 0 ? value / 448.0f : 1.0f);  // e4m3's largest; a place that nothing reached
  }
  return scales;
}

Status check_calibration(const PrecisionPlan& plan, size_t observations, double percentile) {
  if (plan.eight)
    return Status(Code::kFailedPrecondition,
                  strf("calibrate: %s quantizes activations already; load with bf16 or f32", plan.name));
  if (observations == 0 || !(percentile > 0 && percentile <= 100))
    return Status(Code::kInvalidArgument,
                  strf("calibrate: wanted observations and a percentile in (0, 100], got %zu and %g", observations,
                       percentile));
  return {};
}

Status check_act_scales(const char* precision, bool fixed, std::span<const float> scales, int64_t places) {
  const size_t wanted = fixed ? static_cast<size_t>(places) : 0;
  if (scales.size() != wanted)
    return Status(Code::kInvalidArgument,
                  strf("act_scales: precision %s takes %zu of them, got %zu; calibrate this checkpoint", precision,
                       wanted, scales.size()));
  for (const float s : scales)
    if (!(s > 0 && std::isfinite(s)))
      return Status(Code::kInvalidArgument,
                    strf("act_scales: wanted positive numbers, got %g", static_cast<double>(s)));
  return {};
}

Status upload_act_scales(engine::Runtime& runtime, const PrecisionPlan& plan, std::span<const float> scales,
                         int64_t places, const Tensor& to) {
  if (!plan.fixed)
    return Status(Code::kFailedPrecondition,
                  strf("act_scales: precision %s has none that are fixed; load with fp8_static", plan.name));
  VV_TRY(check_act_scales(plan, scales, places));
  VV_TRY(runtime.stream().synchronize());
  const engine::Upload all[] = {{to.data, scales.data(), scales.size() * sizeof(float)}};
  return runtime.upload(all);
}

}  // namespace vivace::models
