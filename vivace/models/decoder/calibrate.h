// Calibration: how large activations get where they enter products, and the e4m3 scales that follow.
#pragma once
#include <array>
#include <vector>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"

namespace vivace::models::decoder {

/// A histogram of magnitudes a site. A bin is one bf16 magnitude, so that bf16 activations are counted exactly.
class SiteHistograms {
 public:
  explicit SiteHistograms(int64_t sites) : bins_(static_cast<size_t>(sites)) {}
  /// Counts a dense tensor of bf16 or f32 in host memory. Errors: Unsupported for other dtypes, NaN and infinity.
  Status add(int64_t site, const Tensor& values);
  /// Of each site, the least magnitude that `percentile` percent of its values do not exceed, over e4m3's largest;
  /// 1 where all are zero, or none was counted. Errors: InvalidArgument (percentile outside (50, 100], nothing counted
  /// at all).
  Result<std::vector<float>> scales(double percentile) const;

 private:
  static constexpr size_t kBins = 0x7f80;  // magnitudes of finite bf16
  std::vector<std::array<uint32_t, kBins>> bins_;
};

}  // namespace vivace::models::decoder
