// Every weight format x activation mode x instruction-set level against a float64 loop, and the bits of
// a row against its neighbours, its place and the thread count.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "vivace/base/float_types.h"
#include "vivace/cpu/pool.h"
#include "vivace/cpu/quant/dequantize.h"
#include "vivace/cpu/simd/isa.h"
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/ops/registry.h"

namespace vivace::cpu {

void gemm(const kernels::GemmArgs& a, Pool& pool);

namespace {

using kernels::GemmAct;
using kernels::GemmArgs;

constexpr DType kFormats[] = {DType::f32,  DType::bf16, DType::f16,  DType::q4_0, DType::q4_1, DType::q5_0,
                              DType::q5_1, DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k};
constexpr Isa kLevels[] = {Isa::portable, Isa::avx2, Isa::avx512};

/// Random codes with small scales in every place where a format keeps a scale.
std::vector<uint8_t> random_weights(DType t, int64_t n, int64_t k, std::mt19937& rng) {
  const DTypeInfo f = info(t);
  std::vector<uint8_t> w(n * row_bytes(t, k));
  std::normal_distribution<float> normal;
  if (!is_block(t)) {
    for (int64_t i = 0; i < n * k; ++i) {
      const float v = normal(rng);
      const uint16_t h = t == DType::bf16 ? bf16_of_f32(v) : f16_of_f32(v);
      std::memcpy(w.data() + i * f.bytes, t == DType::f32 ? static_cast<const void*>(&v) : &h, f.bytes);
    }
    return w;
  }
  for (uint8_t& b : w) b = static_cast<uint8_t>(rng());
  const int at[2] = {t == DType::q6_k ? 208 : 0, 2};
  const bool two = t == DType::q4_1 || t == DType::q5_1 || t == DType::q4_k || t == DType::q5_k;
  for (size_t b = 0; b < w.size(); b += f.bytes)
    for (int i = 0; i < (two ? 2 : 1); ++i) {
      const uint16_t h = f16_of_f32(normal(rng) * 0.05f);
      std::memcpy(w.data() + b + at[i], &h, 2);
    }
  return w;
}

struct Problem {
  int64_t T, N, K;
  DType format;
  GemmAct act;
  std::vector<float> x, bias, residual;
  std::vector<uint8_t> w;

  Problem(DType f, GemmAct mode, int64_t t, int64_t n, int64_t k) : T(t), N(n), K(k), format(f), act(mode) {
    std::mt19937 rng(static_cast<unsigned>(f) * 7 + 1);
    std::normal_distribution<float> normal;
    w = random_weights(f, n, k, rng);
    for (std::vector<float>* v : {&x, &bias, &residual}) v->resize(v == &x ? T * K : v == &bias ? N : T * N);
    for (std::vector<float>* v : {&x, &bias, &residual})
      for (float& e : *v) e = normal(rng);
  }

  std::vector<float> run(int threads, int64_t first, int64_t count) const {
    Pool pool(threads);
    std::vector<float> out(count * N, -77.0f);
    GemmArgs a{};
    a.x = x.data() + first * K, a.w = w.data(), a.bias = bias.data(), a.residual = residual.data() + first * N,
    a.out = out.data();
    a.x_stride = a.w_stride = K, a.residual_stride = a.out_stride = N;
    a.T = static_cast<int32_t>(count), a.N = static_cast<int32_t>(N), a.K = static_cast<int32_t>(K);
    a.alpha = 0.5f, a.act = act, a.x_dtype = a.bias_dtype = a.out_dtype = DType::f32, a.w_dtype = format;
    gemm(a, pool);
    return out;
  }

  /// float64 over the dequantized weights and, for q8, the quantized activations; and the sum of the
  /// terms' sizes, which rounding is measured against.
  void reference(std::vector<double>* out, std::vector<double>* size) const {
    std::vector<double> xs(x.begin(), x.end());
    if (act == GemmAct::q8)
      for (int64_t b = 0; b < T * K; b += 32) {
        float amax = 0;
        for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[b + i]));
        const float d = amax / 127.0f, inv = 127.0f / amax;
        for (int i = 0; i < 32; ++i) xs[b + i] = static_cast<double>(std::nearbyint(x[b + i] * inv)) * d;
      }
    std::vector<float> wf(N * K);
    for (int64_t n = 0; n < N; ++n) {
      const uint8_t* row = w.data() + n * row_bytes(format, K);
      for (int64_t k = 0; k < K; ++k) {
        uint16_t h = 0;
        if (format == DType::f32) std::memcpy(&wf[n * K + k], row + 4 * k, 4);
        else if (!is_block(format))
          std::memcpy(&h, row + 2 * k, 2), wf[n * K + k] = format == DType::bf16 ? f32_of_bf16(h) : f32_of_f16(h);
      }
      if (is_block(format)) dequantize_row(format, row, 0, K, &wf[n * K]);
    }
    out->assign(T * N, 0), size->assign(T * N, 0);
    for (int64_t t = 0; t < T; ++t)
      for (int64_t n = 0; n < N; ++n) {
        double s = 0, m = 0;
        for (int64_t k = 0; k < K; ++k)
          s += xs[t * K + k] * wf[n * K + k], m += std::fabs(xs[t * K + k] * wf[n * K + k]);
        (*out)[t * N + n] = residual[t * N + n] + 0.5 * s + bias[n];
        (*size)[t * N + n] = 1 + m;
      }
  }
};

class GemmTest : public ::testing::TestWithParam<std::tuple<DType, GemmAct, Isa>> {
 protected:
  void SetUp() override {
    const auto [format, act, isa] = GetParam();
    if (!has(isa)) GTEST_SKIP() << "this CPU lacks " << name(isa);
    if (act == GemmAct::q8 && !is_block(format)) GTEST_SKIP() << "q8 is for block formats";
  }
};

TEST_P(GemmTest, AgreesWithFloat64) {
  const auto [format, act, isa] = GetParam();
  const ScopedIsa level(isa);
  struct { int64_t T, N, K; } shapes[] = {{1, 1, 256}, {3, 16, 512}, {37, 37, 768}, {11, 50, 2304}, {1, 160, 4352}};
  for (const auto& s : shapes) {
    const Problem p(format, act, s.T, s.N, s.K - (is_block(format) ? 0 : 5));
    std::vector<double> want, size;
    p.reference(&want, &size);
    const std::vector<float> got = p.run(2, 0, s.T);
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 3e-6 * size[i])
          << name(format) << " " << name(isa) << " T " << s.T << " N " << s.N << " K " << s.K << " at " << i;
  }
}

TEST_P(GemmTest, RowBitsDependOnTheRowAlone) {
  const auto [format, act, isa] = GetParam();
  const ScopedIsa level(isa);
  const Problem p(format, act, 37, 50, 2304);
  const std::vector<float> all = p.run(1, 0, 37);
  EXPECT_EQ(all, p.run(3, 0, 37));
  for (int64_t first : {0, 1, 17, 36})
    for (int64_t count : {1, 2, 7, 8, 9}) {
      if (first + count > 37) continue;
      const std::vector<float> some = p.run(2, first, count);
      ASSERT_EQ(0, std::memcmp(some.data(), all.data() + first * 50, some.size() * 4))
          << "rows from " << first << ", " << count;
    }
}

INSTANTIATE_TEST_SUITE_P(All, GemmTest,
                         ::testing::Combine(::testing::ValuesIn(kFormats), ::testing::Values(GemmAct::f32, GemmAct::q8),
                                            ::testing::ValuesIn(kLevels)),
                         [](const auto& i) {
                           return std::string(name(std::get<0>(i.param))) +
                                  (std::get<1>(i.param) == GemmAct::q8 ? "_q8_" : "_f32_") + name(std::get<2>(i.param));
                         });

TEST(GemmSpecTest, Q8NeedsBlockWeights) {
  std::vector<float> x(32), w(64), out(2);
  ops::Call call(*ops::find("gemm")->spec);
  ASSERT_TRUE(call.bind("x", tensor(x.data(), DType::f32, Shape(1, 32))).ok());
  ASSERT_TRUE(call.bind("w", tensor(w.data(), DType::f32, Shape(2, 32))).ok());
  ASSERT_TRUE(call.bind("out", tensor(out.data(), DType::f32, Shape(1, 2))).ok());
  ASSERT_TRUE(call.set("act", "q8").ok());
  ASSERT_TRUE(call.check().ok());
  exec::Launch launch;
  const Status s = ops::find("gemm")->prepare(call, ops::Target{}, &launch);
  EXPECT_EQ(s.code(), Code::kInvalidArgument) << s.message();
}

}  // namespace
}  // namespace vivace::cpu
