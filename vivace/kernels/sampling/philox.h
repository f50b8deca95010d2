// Philox4x32-10 and the Gumbel noise of `sample` made from it. Host and device, no std.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

struct PhiloxWords {
  uint32_t w[4];
};

/// Ten rounds on `counter` with the two key words. Random123's known-answer vectors hold.
VV_HD inline PhiloxWords philox4x32_10(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u, kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  PhiloxWords c = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * c.w[0], p1 = static_cast<uint64_t>(kMul1) * c.w[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.w[1] ^ key0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.w[3] ^ key1, static_cast<uint32_t>(p0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

/// The four noise words of tokens 4 * group .. 4 * group + 3 at (seed, step).
VV_HD inline PhiloxWords noise_words(uint64_t seed, uint32_t step, uint32_t group) {
  return philox4x32_10({{group, step, 0, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// No gumbel() exceeds this: -log(0.5 * 2^-32) is 22.87.
inline constexpr float kMaxGumbel = 22.9f;

/// Standard Gumbel noise: u = min((f32(w) + 0.5) * 2^-32, 1 - 2^-24); g = -log(-log1p(-u)).
/// NOTE: large g, which decides draws, comes from small u, where f32 has its full precision; with
/// -log(-log(u)) it would come from u near 1, of which f32 has but 2^24 values, and u could round to 1.
VV_HD inline float gumbel(uint32_t w) {
  const float x = (static_cast<float>(w) + 0.5f) * 0x1p-32f;
  const float u = x < 0x1.fffffep-1f ? x : 0x1.fffffep-1f;
#ifdef __CUDACC__
  return -logf(-log1pf(-u));
#else
  return -__builtin_logf(-__builtin_log1pf(-u));
#endif
}

}  // namespace vivace::kernels
