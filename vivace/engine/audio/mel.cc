#include "vivace/engine/audio/mel.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace vivace::engine {
namespace {

constexpr double kHzAMel = 200.0 / 3, kKnee = 1000.0 / kHzAMel;  // linear to 1 kHz
const double kStep = std::log(6.4) / 27;                          // above, a factor of 6.4 every 27

double mel_of(double hz) { return hz < 1000 ? hz / kHzAMel : kKnee + std::log(hz / 1000) / kStep; }
double hz_of(double mel) { return mel < kKnee ? mel * kHzAMel : 1000 * std::exp((mel - kKnee) * kStep); }

}  // namespace

std::vector<float> hann_window(int n) {
  std::vector<float> w(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i)
    w[static_cast<size_t>(i)] = static_cast<float>(0.5 - 0.5 * std::cos(2 * std::numbers::pi * i / n));
  return w;
}

std::vector<float> mel_filters(int bins, int n_fft, int rate) {
  const int F = n_fft / 2 + 1;
  const double top = mel_of(rate / 2.0);
  const auto edge = [&](int i) { return hz_of(top * i / (bins + 1)); };
  std::vector<float> filters;
  for (int m = 0; m < bins; ++m) {
    const double low = edge(m), centre = edge(m + 1), high = edge(m + 2);
    for (int f = 0; f < F; ++f) {
      const double hz = static_cast<double>(f) * rate / n_fft;
      filters.push_back(static_cast<float>(
          std::max(0.0, std::min((hz - low) / (centre - low), (high - hz) / (high - centre))) * 2 / (high - low)));
    }
  }
  return filters;
}

}  // namespace vivace::engine
