// stft_mel on the CPU: real frames as complex signals of half their length through a mixed-radix transform, in f64,
// kLanes frames side by side so that each step is the same few vector operations.
#include "vivace/kernels/audio/stft_mel.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

using kernels::StftMelArgs;

constexpr int kLanes = 8;

/// kLanes complex numbers.
struct Lanes {
  double re[kLanes], im[kLanes];
};

/// e^(-2 pi i k / n) of a whole circle.
struct Turn {
  double re, im;
};

inline Lanes turned(const Lanes& v, Turn w) {
  Lanes r;
  for (int l = 0; l < kLanes; ++l) {
    r.re[l] = v.re[l] * w.re - v.im[l] * w.im;
    r.im[l] = v.re[l] * w.im + v.im[l] * w.re;
  }
  return r;
}

/// Transform of `n` points, the first of them in[0], the next in[stride]; `circle` has whole / n * n = whole entries.
class Transform {
 public:
  Transform(const Turn* circle, int whole, Lanes* parts) : circle_(circle), whole_(whole), parts_(parts) {}

  void run(Lanes* out, const Lanes* in, int n, int stride) const {
    if (n == 1) {
      out[0] = in[0];
      return;
    }
    const int p = factor(n), m = n / p;
    for (int q = 0; q < p; ++q) run(out + q * m, in + q * stride, m, stride * p);
    for (int k = 0; k < m; ++k) {
      if (p == 4) four(out + k, m, k * stride);
      else any(out + k, m, p, k * stride);
    }
  }

 private:
  static int factor(int n) {
    if (n % 4 == 0) return 4;
    for (int p = 2; p * p <= n; ++p)
      if (n % p == 0) return p;
    return n;
  }
  Turn at(int64_t i) const { return circle_[i % whole_]; }

  void four(Lanes* x, int m, int step) const {
    const Lanes a = x[0], b = turned(x[m], at(step)), c = turned(x[2 * m], at(int64_t{2} * step)),
                d = turned(x[3 * m], at(int64_t{3} * step));
    for (int l = 0; l < kLanes; ++l) {
      const double er = a.re[l] + c.re[l], ei = a.im[l] + c.im[l], fr = a.re[l] - c.re[l], fi = a.im[l] - c.im[l];
      const double gr = b.re[l] + d.re[l], gi = b.im[l] + d.im[l], hr = b.re[l] - d.re[l], hi = b.im[l] - d.im[l];
      x[0].re[l] = er + gr, x[0].im[l] = ei + gi;
      x[m].re[l] = fr + hi, x[m].im[l] = fi - hr;
      x[2 * m].re[l] = er - gr, x[2 * m].im[l] = ei - gi;
      x[3 * m].re[l] = fr - hi, x[3 * m].im[l] = fi + hr;
    }
  }

  void any(Lanes* x, int m, int p, int step) const {
    for (int q = 0; q < p; ++q) parts_[q] = turned(x[q * m], at(int64_t{q} * step));
    for (int r = 0; r < p; ++r) {
      Lanes sum = parts_[0];
      for (int q = 1; q < p; ++q) {
        const Turn w = at(int64_t{q} * r * (whole_ / p));
        for (int l = 0; l < kLanes; ++l) {
          sum.re[l] += parts_[q].re[l] * w.re - parts_[q].im[l] * w.im;
          sum.im[l] += parts_[q].re[l] * w.im + parts_[q].im[l] * w.re;
        }
      }
      x[r * m] = sum;
    }
  }

  const Turn* circle_;
  int whole_;
  Lanes* parts_;  // the widest factor's
};

/// Frequencies outside of which a band's filter is 0, as most of it is.
struct Stretch {
  int32_t first, end;
};

/// What one thread works in.
struct Memory {
  Lanes *in, *out, *parts;
  float* power;  // [F][kLanes]
  Memory(std::byte* at, const StftMelArgs& a) {
    in = reinterpret_cast<Lanes*>(at);
    out = in + a.W / 2;
    parts = out + a.W / 2;
    power = reinterpret_cast<float*>(parts + a.W / 2);
  }
  static size_t bytes(const StftMelArgs& a) {
    return static_cast<size_t>(a.W / 2) * 3 * sizeof(Lanes) +
           (static_cast<size_t>(a.F()) * kLanes * sizeof(float) + 63) / 64 * 64;
  }
};

/// Powers of up to kLanes frames from `first` on.
void powers(const StftMelArgs& a, const Turn* half_circle, const Turn* circle, int64_t first, int64_t n,
            const Memory& mem) {
  const int H = a.W / 2;
  for (int l = 0; l < kLanes; ++l) {
    const auto t = static_cast<int32_t>(first + std::min<int64_t>(l, n - 1));  // lanes beyond the last frame repeat it
    const int32_t b = a.frames.quotient(t), f = a.frames.remainder(t, b);
    const float* const x = a.x + b * a.x_stride;
    for (int i = 0; i < H; ++i) {
      mem.in[i].re[l] = static_cast<double>(x[a.sample(f, 2 * i)]) * static_cast<double>(a.window[2 * i]);
      mem.in[i].im[l] = static_cast<double>(x[a.sample(f, 2 * i + 1)]) * static_cast<double>(a.window[2 * i + 1]);
    }
  }
  Transform(half_circle, H, mem.parts).run(mem.out, mem.in, H, 1);
  for (int f = 0; f <= H; ++f) {
    const Lanes &z = mem.out[f % H], &y = mem.out[(H - f) % H];
    const Turn w = circle[f];
    for (int l = 0; l < kLanes; ++l) {
      // Even samples' spectrum and odd ones': (z + conj y) / 2 and (z - conj y) / 2i.
      const double er = 0.5 * (z.re[l] + y.re[l]), ei = 0.5 * (z.im[l] - y.im[l]), odd_re = 0.5 * (z.im[l] + y.im[l]),
                   odd_im = -0.5 * (z.re[l] - y.re[l]);
      const double re = er + odd_re * w.re - odd_im * w.im, im = ei + odd_re * w.im + odd_im * w.re;
      mem.power[f * kLanes + l] = static_cast<float>(re * re + im * im);
    }
  }
}

void bands(const StftMelArgs& a, const Stretch* stretches, int64_t first, int64_t n, const float* power) {
  float most[kLanes];
  std::fill_n(most, kLanes, -std::numeric_limits<float>::infinity());
  for (int m = 0; m < a.M; ++m) {
    const float* const filter = a.filters + m * a.filters_stride;
    float sum[kLanes] = {};
    for (int f = stretches[m].first; f < stretches[m].end; ++f) {
      if (filter[f] == 0) continue;
      for (int l = 0; l < kLanes; ++l) sum[l] += filter[f] * power[f * kLanes + l];
    }
    for (int l = 0; l < n; ++l) {
      const float y = std::log10(sum[l] < kernels::kLeastMel ? kernels::kLeastMel : sum[l]);
      a.out[(first + l) * a.out_stride + m] = y;
      if (y > most[l]) most[l] = y;
    }
  }
  if (a.peak != nullptr) std::copy_n(most, n, a.peak + first);
}

void fill_circle(Turn* turns, int n, int count) {
  for (int i = 0; i < count; ++i) {
    const double angle = -2.0 * std::numbers::pi * i / n;
    turns[i] = {std::cos(angle), std::sin(angle)};
  }
}

}  // namespace

void stft_mel(const StftMelArgs& a, Pool& pool) {
  const int64_t T = valid_rows(a.rows, a.T);
  if (T == 0) return;
  const int64_t batches = (T + kLanes - 1) / kLanes, threads = std::min<int64_t>(pool.threads(), batches);
  const size_t each = Memory::bytes(a), tables = static_cast<size_t>(a.W / 2 + a.F()) * sizeof(Turn);
  auto* const memory = static_cast<std::byte*>(
      pool.scratch(static_cast<size_t>(threads) * each + tables + static_cast<size_t>(a.M) * sizeof(Stretch)));
  auto* const half_circle = reinterpret_cast<Turn*>(memory + static_cast<size_t>(threads) * each);
  Turn* const circle = half_circle + a.W / 2;
  auto* const stretches = reinterpret_cast<Stretch*>(circle + a.F());
  fill_circle(half_circle, a.W / 2, a.W / 2);
  fill_circle(circle, a.W, a.F());
  for (int m = 0; m < a.M; ++m) {
    const float* const filter = a.filters + m * a.filters_stride;
    int32_t first = 0, end = a.F();
    while (end > 0 && filter[end - 1] == 0) --end;
    while (first < end && filter[first] == 0) ++first;
    stretches[m] = {first, end};
  }
  pool.run(threads, [&](int64_t worker) {
    const Memory mem(memory + static_cast<size_t>(worker) * each, a);
    for (int64_t batch = batches * worker / threads; batch < batches * (worker + 1) / threads; ++batch) {
      const int64_t first = batch * kLanes, n = std::min<int64_t>(kLanes, T - first);
      powers(a, half_circle, circle, first, n, mem);
      bands(a, stretches, first, n, mem.power);
    }
  });
}

}  // namespace vivace::cpu
