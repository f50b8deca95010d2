#include "vivace/kernels/audio/resample.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void resample(const kernels::ResampleArgs& a, Pool& pool) {
  constexpr int kParts = kernels::kResampleParts;
  constexpr int64_t kStretch = 1024;  // outputs
  const int64_t stretches = (int64_t{a.O} + kStretch - 1) / kStretch;
  for_rows(pool, a.B * stretches, kStretch * a.K, [&](int64_t row) {
    const int64_t b = row / stretches, begin = row % stretches * kStretch;
    const float* const x = a.x + b * a.x_stride;
    for (int64_t o = begin; o < std::min<int64_t>(a.O, begin + kStretch); ++o) {
      const int64_t at = o * a.down, whole = at / a.up, from = whole + a.first;
      const float* const filter = a.filter + (at - whole * a.up) * a.filter_stride;
      const int64_t first = std::clamp<int64_t>(-from, 0, a.K), end = std::clamp<int64_t>(a.N - from, 0, a.K);
      float part[kParts] = {};
      int64_t k = first;
      for (; k + kParts <= end; k += kParts)
        for (int i = 0; i < kParts; ++i) part[i] += filter[k + i] * x[from + k + i];
      for (int i = 0; k + i < end; ++i) part[i] += filter[k + i] * x[from + k + i];
      for (int d = kParts / 2; d > 0; d /= 2)
        for (int i = 0; i < d; ++i) part[i] += part[i + d];
      a.out[b * a.out_stride + o] = part[0];
    }
  });
}

}  // namespace vivace::cpu
