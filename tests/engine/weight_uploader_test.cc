#include "vivace/engine/weight_uploader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <tuple>
#include <vector>

#include "vivace/base/float_types.h"
#include "vivace/engine/runtime.h"

namespace vivace::engine {
namespace {

/// Row r of a block matrix, as bytes.
std::vector<uint8_t> row(const Tensor& t, int64_t r) {
  const auto* p = static_cast<const uint8_t*>(t.data) + r * row_bytes(t.dtype, t.stride[0]);
  return {p, p + row_bytes(t.dtype, t.shape[1])};
}

struct JoinedInTurn : testing::TestWithParam<int64_t> {
  static constexpr int64_t kRows = 5;
  std::unique_ptr<Runtime> machine = *Runtime::open("cpu", 1);

  /// The parts' rows in turn; `parts` become views of it.
  Tensor join(Tensor& first, Tensor& second) {
    Tensor whole;
    uploader.join({&first, &second}, &whole, DType::q4_0, WeightUploader::Rows::alternate);
    const Status s = uploader.commit(*machine);
    EXPECT_TRUE(s.ok()) << s.message();
    return whole;
  }
  WeightUploader uploader;
};

// 32 columns are 18 bytes, no whole words; 64 are 36.
TEST_P(JoinedInTurn, BlocksStayWhatTheyAre) {
  const int64_t K = GetParam(), bytes = row_bytes(DType::q4_0, K) * kRows;
  std::vector<uint8_t> data(static_cast<size_t>(2 * bytes));
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<uint8_t>(i * 37 + i / 256);  // patterns of NaN among them
  const Tensor gate = tensor(data.data(), DType::q4_0, Shape(kRows, K)),
               up = tensor(data.data() + bytes, DType::q4_0, Shape(kRows, K));
  Tensor first = gate, second = up;
  const Tensor whole = join(first, second);
  ASSERT_EQ(whole.shape[0], 2 * kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    EXPECT_EQ(row(whole, 2 * r), row(gate, r)) << r;
    EXPECT_EQ(row(whole, 2 * r + 1), row(up, r)) << r;
    EXPECT_EQ(row(second, r), row(up, r)) << r;
  }
}

TEST_P(JoinedInTurn, AndPlainOnesBecomeBlocks) {
  const int64_t K = GetParam();
  std::vector<float> data(static_cast<size_t>(2 * kRows * K));
  std::iota(data.begin(), data.end(), -100.0f);
  Tensor gate = tensor(data.data(), DType::f32, Shape(kRows, K)),
         up = tensor(data.data() + kRows * K, DType::f32, Shape(kRows, K)), first = gate, second = up;
  const Tensor whole = join(first, second);
  WeightUploader apart;
  apart.add(&gate, DType::q4_0);
  apart.add(&up, DType::q4_0);
  ASSERT_TRUE(apart.commit(*machine).ok());
  for (int64_t r = 0; r < 2 * kRows; ++r) EXPECT_EQ(row(whole, r), row(r % 2 == 0 ? gate : up, r / 2)) << r;
}

/// Two experts and one more: gates and ups alternate by expert, and the views have all three.
TEST(JoinedExperts, OneMoreComesLast) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    constexpr int64_t kExperts = 2, kRows = 3, kWidth = 5, kEach = kRows * kWidth;
    std::unique_ptr<Runtime> machine = *Runtime::open("cpu", 1);
    std::vector<float> data(static_cast<size_t>((2 * kExperts + 2) * kEach));
    std::iota(data.begin(), data.end(), 0.0f);  // below 256: bf16 has them all
    Tensor gate = tensor(data.data(), DType::f32, Shape(kExperts, kRows, kWidth)),
           up = tensor(data.data() + kExperts * kEach, DType::f32, Shape(kExperts, kRows, kWidth));
    const Tensor last_gate = tensor(data.data() + 2 * kExperts * kEach, DType::f32, Shape(kRows, kWidth)),
                 last_up = tensor(data.data() + (2 * kExperts + 1) * kEach, DType::f32, Shape(kRows, kWidth));
    WeightUploader uploader;
    uploader.join_experts(&gate, &up, last_gate, last_up, dtype);
    ASSERT_TRUE(uploader.commit(*machine).ok());
    for (const Tensor* t : {&gate, &up}) {
      ASSERT_EQ(t->shape, Shape(kExperts + 1, kRows, kWidth));
      EXPECT_EQ(t->stride[0], 2 * kEach);
    }
    EXPECT_EQ(static_cast<char*>(up.data) - static_cast<char*>(gate.data), row_bytes(dtype, kEach));
    for (int64_t e = 0; e <= kExperts; ++e)
      for (int64_t half = 0; half < 2; ++half)
        for (int64_t i = 0; i < kEach; ++i) {
          const int64_t at = e * 2 * kEach + half * kEach + i;
          const float got = dtype == DType::f32 ? static_cast<const float*>(gate.data)[at]
                                                : f32_of_bf16(static_cast<const uint16_t*>(gate.data)[at]);
          EXPECT_EQ(got, static_cast<float>((e < kExperts ? half * kExperts + e : 2 * kExperts + half) * kEach + i));
        }
  }
}

/// The one more is stored as blocks, the others become blocks.
TEST(JoinedExperts, OneMoreIsBlocksAlready) {
  constexpr int64_t kExperts = 2, kRows = 3, kWidth = 64, kEach = kRows * kWidth;
  std::unique_ptr<Runtime> machine = *Runtime::open("cpu", 1);
  std::vector<float> data(static_cast<size_t>(2 * kExperts * kEach));
  std::iota(data.begin(), data.end(), -100.0f);
  std::vector<uint8_t> blocks(static_cast<size_t>(2 * row_bytes(DType::q4_0, kEach)));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(i * 37);
  const Shape experts(kExperts, kRows, kWidth), one(kRows, kWidth);
  Tensor gate = tensor(data.data(), DType::f32, experts),
         up = tensor(data.data() + kExperts * kEach, DType::f32, experts), gate_alone = gate, up_alone = up;
  const Tensor last_gate = tensor(blocks.data(), DType::q4_0, one),
               last_up = tensor(blocks.data() + row_bytes(DType::q4_0, kEach), DType::q4_0, one);
  WeightUploader apart, joined;
  for (Tensor* t : {&gate_alone, &up_alone}) apart.add(t, DType::q4_0);
  joined.join_experts(&gate, &up, last_gate, last_up, DType::q4_0);
  ASSERT_TRUE(apart.commit(*machine).ok() && joined.commit(*machine).ok());
  const auto bytes = [](const void* p) {
    const auto* from = static_cast<const uint8_t*>(p);
    return std::vector<uint8_t>(from, from + row_bytes(DType::q4_0, kEach));
  };
  for (const auto& [all, plain, last] : {std::tuple{&gate, &gate_alone, &last_gate}, {&up, &up_alone, &last_up}})
    for (int64_t e = 0; e <= kExperts; ++e)
      EXPECT_EQ(bytes(slice(*all, e, 1).data), bytes(e < kExperts ? slice(*plain, e, 1).data : last->data)) << e;
}

INSTANTIATE_TEST_SUITE_P(Widths, JoinedInTurn, testing::Values(32, 64, 1056));

}  // namespace
}  // namespace vivace::engine
