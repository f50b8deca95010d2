// attention at every level against a naive float64 softmax, and the bits of a row against its neighbours.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "vivace/base/float_types.h"
#include "vivace/cpu/pool.h"
#include "vivace/cpu/simd/isa.h"
#include "vivace/kernels/attention/attention.h"

namespace vivace::cpu {

void attention(const kernels::AttentionArgs& a, Pool& pool);

namespace {

using kernels::AttentionArgs;
using kernels::AttentionMask;

/// A cache of two slots, and queries spread over them.
struct Problem {
  static constexpr int T = 9, S = 2, L = 150;
  int Hq, Hkv, D, Dv;
  std::vector<float> q, k, v, sinks;
  std::vector<uint8_t> stored_k, stored_v;
  std::vector<int32_t> pos{0, 3, 31, 32, 64, 149, 100, 7, 5}, slot{0, 1, 0, 1, 0, 1, 0, 2, -1}, length{150, 140},
      prefix{20, 50};
  AttentionArgs a{};

  Problem(int hq, int hkv, int d, int dv, DType kv) : Hq(hq), Hkv(hkv), D(d), Dv(dv) {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int64_t n) {
      x.resize(n);
      for (float& e : x) e = normal(rng);
    };
    fill(q, T * Hq * D), fill(k, S * L * Hkv * D), fill(v, S * L * Hkv * Dv), fill(sinks, Hq);
    stored_k = store(k, kv), stored_v = store(v, kv);
    a.q = q.data(), a.k = stored_k.data(), a.v = stored_v.data(), a.pos = pos.data(), a.slot = slot.data(),
    a.length = length.data();
    a.k_pitch = Hkv * D, a.v_pitch = Hkv * Dv;
    a.q_stride = Hq * D, a.k_stride = int64_t{L} * Hkv * D, a.v_stride = int64_t{L} * Hkv * Dv, a.out_stride = Hq * Dv,
    a.lse_stride = Hq;
    a.T = T, a.S = S, a.B = S, a.L = L, a.Hq = Hq, a.Hkv = Hkv, a.D = D, a.Dv = Dv;
    a.scale = 1.0f / std::sqrt(static_cast<float>(D)), a.dtype = DType::f32, a.kv_dtype = kv;
  }

  /// Encodes, and leaves in x what the code means.
  static std::vector<uint8_t> store(std::vector<float>& x, DType t) {
    const int e = info(t).bytes;
    std::vector<uint8_t> bytes(x.size() * e);
    for (size_t i = 0; i < x.size(); ++i) {
      const uint16_t h = t == DType::bf16 ? bf16_of_f32(x[i]) : t == DType::f16 ? f16_of_f32(x[i]) : e4m3_of_f32(x[i]);
      std::memcpy(&bytes[i * e], t == DType::f32 ? static_cast<const void*>(&x[i]) : &h, e);
      if (t != DType::f32)
        x[i] = t == DType::bf16  ? f32_of_bf16(h)
               : t == DType::f16 ? f32_of_f16(h)
                                 : f32_of_e4m3(static_cast<uint8_t>(h));
    }
    return bytes;
  }

  bool visible(int t, int j) const {
    if (slot[t] < 0 || slot[t] >= S || j >= length[slot[t]]) return false;
    if (a.window > 0 && j <= pos[t] - a.window) return false;
    if (a.mask == AttentionMask::full) return true;
    return j <= pos[t] || (a.mask == AttentionMask::prefix && j < prefix[slot[t]]);
  }

  void expect(const std::vector<float>& out, const std::vector<float>& lse, const std::string& what) const {
    for (int t = 0; t < T; ++t)
      for (int h = 0; h < Hq; ++h) {
        const int kv = h / (Hq / Hkv);
        std::vector<double> y(Dv, 0);
        double mass = 0;
        for (int j = 0; j < L; ++j) {
          if (!visible(t, j)) continue;
          double s = 0;
          for (int i = 0; i < D; ++i)
            s += static_cast<double>(q[(t * Hq + h) * D + i]) * k[((slot[t] * L + j) * Hkv + kv) * D + i];
          s *= a.scale;
          if (a.softcap > 0) s = a.softcap * std::tanh(s / a.softcap);
          mass += std::exp(s);
          for (int i = 0; i < Dv; ++i) y[i] += std::exp(s) * v[((slot[t] * L + j) * Hkv + kv) * Dv + i];
        }
        const double total = mass + (a.sinks ? std::exp(sinks[h]) : 0);
        if (mass == 0) EXPECT_EQ(lse[t * Hq + h], -INFINITY) << what;
        else EXPECT_NEAR(lse[t * Hq + h], std::log(mass), 1e-5) << what << " row " << t;
        for (int i = 0; i < Dv; ++i)
          ASSERT_NEAR(out[(t * Hq + h) * Dv + i], mass > 0 ? y[i] / total : 0, 1e-5)
              << what << " row " << t << " head " << h;
      }
  }
};

class AttentionTest : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  void SetUp() override {
    if (!has(std::get<0>(GetParam()))) GTEST_SKIP() << "this CPU lacks " << name(std::get<0>(GetParam()));
  }
};

TEST_P(AttentionTest, AgreesWithNaive) {
  const ScopedIsa level(std::get<0>(GetParam()));
  Pool pool(2);
  const int shapes[][4] = {{9, 3, 64, 64}, {4, 4, 40, 24}, {6, 1, 257, 96}};
  for (const auto& s : shapes)
    for (AttentionMask mask : {AttentionMask::causal, AttentionMask::prefix, AttentionMask::full})
      for (int variant = 0; variant < 4; ++variant) {
        Problem p(s[0], s[1], s[2], s[3], std::get<1>(GetParam()));
        p.a.mask = mask;
        p.a.prefix = mask == AttentionMask::prefix ? p.prefix.data() : nullptr;
        p.a.window = variant & 1 ? 17 : 0;
        p.a.softcap = variant & 2 ? 1.5f : 0;
        p.a.sinks = variant & 2 ? p.sinks.data() : nullptr;
        std::vector<float> out(Problem::T * p.Hq * p.Dv, -9), lse(Problem::T * p.Hq, -9);
        p.a.out = out.data(), p.a.lse = lse.data();
        attention(p.a, pool);
        p.expect(out, lse, strf("D %d mask %d variant %d", s[2], static_cast<int>(mask), variant));
      }
}

TEST_P(AttentionTest, RowBitsDependOnTheRowAlone) {
  const ScopedIsa level(std::get<0>(GetParam()));
  Pool one(1), three(3);
  for (const bool neighbours : {false, true})  // consecutive queries of one slot share passes over its keys
    for (const int window : {0, 17}) {
      Problem p(9, 3, 64, 64, std::get<1>(GetParam()));
      p.a.window = window;
      if (neighbours) p.pos = {60, 61, 62, 63, 64, 65, 3, 149, 5}, p.slot = {1, 1, 1, 1, 1, 1, 1, 1, 0};
      const size_t row = p.Hq * p.Dv;
      std::vector<float> all(Problem::T * row), single(row);
      p.a.out = all.data();
      attention(p.a, three);
      for (int t = 0; t < Problem::T; ++t) {
        AttentionArgs a = p.a;
        a.q = p.q.data() + t * a.q_stride, a.pos += t, a.slot += t, a.T = 1, a.out = single.data();
        attention(a, one);
        EXPECT_EQ(0, std::memcmp(single.data(), all.data() + t * row, row * 4)) << "row " << t << " window " << window;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTest,
                         ::testing::Combine(::testing::Values(Isa::portable, Isa::avx2, Isa::avx512),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16, DType::e4m3)),
                         [](const auto& i) {
                           return std::string(name(std::get<0>(i.param))) + "_" + name(std::get<1>(i.param));
                         });

}  // namespace
}  // namespace vivace::cpu
