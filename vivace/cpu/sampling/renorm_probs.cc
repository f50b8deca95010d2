#include "vivace/kernels/sampling/renorm_probs.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

using kernels::RenormProbsArgs;
constexpr int kIdBits = 22;
static_assert(kernels::kMaxSampleVocab == int64_t{1} << kIdBits);

/// Order of (probability, id) as order of integers: of equal probabilities the lower id is larger.
uint64_t ranked(float p, int64_t v) {
  return static_cast<uint64_t>(kernels::score_key(p)) << kIdBits |
         static_cast<uint64_t>((int64_t{1} << kIdBits) - 1 - v);
}

/// The largest cut at or above `cut` such that the measures of ranks from it on reach `target`: one bit of
/// the rank a pass, so that no memory is needed.
template <class Measure>
uint64_t narrow(const float* p, int64_t V, uint64_t cut, uint64_t target, Measure&& measure) {
  const auto reaches = [&](uint64_t from) {
    uint64_t sum = 0;
    for (int64_t v = 0; v < V; ++v)
      if (p[v] > 0 && ranked(p[v], v) >= from) sum += measure(p[v]);
    return sum >= target;
  };
  uint64_t found = 0;
  for (uint64_t bit = uint64_t{1} << (31 + kIdBits); bit != 0; bit >>= 1)
    if (reaches(std::max(cut, found | bit))) found |= bit;
  return std::max(cut, found);
}

void renorm_row(const RenormProbsArgs& a, int64_t t) {
  const float* p = a.probs + t * a.probs_stride;
  float* out = a.out + t * a.out_stride;
  float max = 0;
  for (int64_t v = 0; v < a.V; ++v) max = std::max(max, p[v]);
  uint64_t cut = 0;
  const int64_t k = a.top_k ? a.top_k[t] : 0;
  const float share = a.top_p ? a.top_p[t] : 1.0f;
  if (k > 0 && k < a.V) cut = narrow(p, a.V, cut, static_cast<uint64_t>(k), [](float) { return uint64_t{1}; });
  if (share < 1.0f) {
    const auto mass = [max](float x) {  // max over max is 1 where both are infinite too
      return static_cast<uint64_t>((x == max ? 1.0f : x / max) * kernels::kMassUnit);
    };
    uint64_t total = 0;
    for (int64_t v = 0; v < a.V; ++v)
      if (p[v] > 0 && ranked(p[v], v) >= cut) total += mass(p[v]);
    const double want = std::ceil(static_cast<double>(share) * static_cast<double>(total));
    cut = narrow(p, a.V, cut, want < 1 ? 1 : std::min(total, static_cast<uint64_t>(want)), mass);
  }
  const auto kept = [&](int64_t v) { return p[v] > 0 && ranked(p[v], v) >= cut; };
  float sum = 0;
  for_chunks(a.V, [&](int64_t first, int64_t n) {
    float part = 0;
    for (int64_t v = first; v < first + n; ++v) part += kept(v) ? p[v] : 0.0f;
    sum += part;
  });
  for (int64_t v = 0; v < a.V; ++v) out[v] = kept(v) ? p[v] / sum : 0.0f;
}

}  // namespace

void renorm_probs(const RenormProbsArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.V * int64_t{64}, [&](int64_t t) { renorm_row(a, t); });
}

}  // namespace vivace::cpu
