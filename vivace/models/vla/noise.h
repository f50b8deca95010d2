// Seeded standard normal noise, the same wherever the policy runs: it is drawn on the host.
#pragma once
#include <cmath>
#include <span>

#include "vivace/kernels/sampling/philox.h"

namespace vivace::models::vla {

/// out[i] = Box-Muller of Philox4x32-10 words (key: the seed, counter: i / 4), in f64, rounded once.
inline void draw_noise(uint64_t seed, std::span<float> out) {
  for (size_t i = 0; i < out.size(); i += 4) {
    const kernels::PhiloxWords words = kernels::noise_words(seed, 0, static_cast<uint32_t>(i / 4));
    for (size_t k = 0; k < 4 && i + k < out.size(); ++k) {
      const double u = (words.w[k / 2 * 2] + 0.5) * 0x1p-32,
                   angle = 2 * M_PI * (words.w[k / 2 * 2 + 1] + 0.5) * 0x1p-32;
      const double radius = std::sqrt(-2 * std::log(u));
      out[i + k] = static_cast<float>(radius * (k % 2 == 0 ? std::cos(angle) : std::sin(angle)));
    }
  }
}

}  // namespace vivace::models::vla
