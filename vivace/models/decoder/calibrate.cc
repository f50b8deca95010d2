#include "vivace/models/decoder/calibrate.h"

#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"

namespace vivace::models::decoder {

namespace {
constexpr float kLargest = 448;  // of e4m3
}

Status SiteHistograms::add(int64_t site, const Tensor& values) {
  if (values.dtype != DType::bf16 && values.dtype != DType::f32)
    return Status(Code::kUnsupported, strf("calibrate: wanted activations of bf16 or f32, got %s", name(values.dtype)));
  auto& bins = bins_[static_cast<size_t>(site)];
  const bool half = values.dtype == DType::bf16;
  for (int64_t i = 0; i < values.shape.elements(); ++i) {
    uint32_t bits = 0;
    if (half) bits = static_cast<const uint16_t*>(values.data)[i];
    else
      std::memcpy(&bits, static_cast<const float*>(values.data) + i, 4),
          bits = ((bits & 0x7fffffffu) + 0xffffu) >> 16;  // up: a scale must cover its values
    const size_t bin = bits & 0x7fffu;
    if (bin >= kBins)
      return Status(
          Code::kUnsupported,
          strf("calibrate: an activation of quantization point %ld is NaN or infinite: the checkpoint is broken",
               static_cast<long>(site)));
    ++bins[bin];
  }
  return {};
}

Result<std::vector<float>> SiteHistograms::scales(double percentile) const {
  if (!(percentile > 50 && percentile <= 100))
    return Status(Code::kInvalidArgument, strf("percentile: wanted a value above 50, to 100, got %g", percentile));
  std::vector<float> all;
  bool any = false;
  for (const auto& bins : bins_) {
    uint64_t total = 0, seen = 0;
    for (const uint32_t n : bins) total += n;
    any = any || total > 0;
    if (total == 0) {
      all.push_back(1.0f);
      continue;
    }
    size_t bin = 0;
    for (; bin + 1 < kBins; ++bin) {
      seen += bins[bin];
      if (static_cast<double>(seen) >= percentile / 100 * static_cast<double>(total)) break;
    }
    const float largest = f32_of_bf16(static_cast<uint16_t>(bin));
    all.push_back(largest / kLargest > 0 ? largest / kLargest : 1.0f);
  }
  if (!any) return Status(Code::kInvalidArgument, "calibrate: no prompt, or empty ones: nothing was seen");
  return all;
}

}  // namespace vivace::models::decoder
