// The vectorised conversions give the bits that base/float_types.h defines.
#include "vivace/cpu/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "vivace/base/float_types.h"

namespace vivace::cpu {
namespace {

constexpr DType kNarrow[] = {DType::bf16, DType::f16, DType::e4m3, DType::e5m2};

float widened(DType t, uint16_t v) {
  if (t == DType::bf16) return f32_of_bf16(v);
  if (t == DType::f16) return f32_of_f16(v);
  return t == DType::e4m3 ? f32_of_e4m3(static_cast<uint8_t>(v)) : f32_of_e5m2(static_cast<uint8_t>(v));
}

uint16_t narrowed(DType t, float f) {
  if (t == DType::bf16) return bf16_of_f32(f);
  if (t == DType::f16) return f16_of_f32(f);
  return t == DType::e4m3 ? e4m3_of_f32(f) : e5m2_of_f32(f);
}

/// Values as raw codes of `t`, one a uint16_t, stored in as many bytes as the type has.
void expect_stored(DType t, const std::vector<float>& in) {
  std::vector<uint16_t> out(in.size() + 1, 0);
  store_f32(out.data(), t, 0, static_cast<int64_t>(in.size()), in.data());
  const auto* bytes = reinterpret_cast<const uint8_t*>(out.data());
  for (size_t i = 0; i < in.size(); ++i) {
    const uint16_t got = info(t).bytes == 2 ? out[i] : bytes[i];
    ASSERT_EQ(got, narrowed(t, in[i])) << name(t) << " of " << std::hexfloat << in[i];
  }
}

TEST(Convert, LoadsEveryCode) {
  for (const DType t : kNarrow) {
    const int codes = info(t).bytes == 2 ? 65536 : 256;
    std::vector<uint16_t> in(static_cast<size_t>(codes));
    for (int i = 0; i < codes; ++i)
      info(t).bytes == 2 ? in[static_cast<size_t>(i)] = static_cast<uint16_t>(i)
                         : reinterpret_cast<uint8_t*>(in.data())[i] = static_cast<uint8_t>(i);
    std::vector<float> got(in.size());
    load_f32(in.data(), t, 0, codes, got.data());
    for (int i = 0; i < codes; ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(got[static_cast<size_t>(i)]),
                std::bit_cast<uint32_t>(widened(t, static_cast<uint16_t>(i))))
          << name(t) << " code " << i;
  }
}

TEST(Convert, StoresValuesTiesAndNeighbours) {
  for (const DType t : kNarrow) {
    std::vector<float> in;
    const int codes = info(t).bytes == 2 ? 65536 : 256;
    for (int i = 0; i < codes; ++i) {
      const float a = widened(t, static_cast<uint16_t>(i)), b = widened(t, static_cast<uint16_t>((i + 1) % codes));
      const float tie = static_cast<float>((static_cast<double>(a) + b) / 2);
      for (const float f : {a, tie, std::nextafter(tie, 1e30f), std::nextafter(tie, -1e30f)}) in.push_back(f);
    }
    expect_stored(t, in);
  }
}

TEST(Convert, StoresAnyBits) {
  std::mt19937 rng(5);
  std::vector<float> in(1 << 18);
  for (float& f : in) f = std::bit_cast<float>(static_cast<uint32_t>(rng()));
  for (const DType t : kNarrow) expect_stored(t, in);
}

TEST(Convert, StartsAtTheElementItIsTold) {
  const float in[3] = {1, 2, 3};
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e5m2}) {
    float raw[8] = {}, out[5];
    store_f32(raw, t, 1, 3, in);
    load_f32(raw, t, 0, 5, out);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(out[i], i >= 1 && i <= 3 ? in[i - 1] : 0.0f) << name(t) << " element " << i;
  }
}

TEST(ValidRows, ClampsTheCount) {
  for (const auto& [count, want] : {std::pair{-1, 0}, {0, 0}, {3, 3}, {5, 5}, {9, 5}})
    EXPECT_EQ(valid_rows(&count, 5), want);
  EXPECT_EQ(valid_rows(nullptr, 5), 5);
}

}  // namespace
}  // namespace vivace::cpu
