#include "vivace/engine/blocks.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"

namespace vivace::engine {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kPiece = 1 << 16;  // elements that a thread takes at once

float inverse(float d) { return d != 0 ? 1 / d : 0; }

/// int4: the value of largest magnitude, with its sign, becomes code 0, which stands for -8.
void encode_q4_0(const float* x, std::byte* out) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i)
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  const float d = largest / -8;
  const double scale = inverse(d);
  const uint16_t half = f16_of_f32(d);
  std::memcpy(out, &half, 2);
  const auto code = [&](int i) {
    return static_cast<uint8_t>(std::clamp(static_cast<int>(x[i] * scale + 8.5), 0, 15));
  };
  for (int i = 0; i < kBlock / 2; ++i) out[2 + i] = static_cast<std::byte>(code(i) | code(i + kBlock / 2) << 4);
}

void encode_q8_0(const float* x, std::byte* out) {
  float amax = 0;
  for (int i = 0; i < kBlock; ++i) amax = std::max(amax, std::fabs(x[i]));
  const float d = amax / 127, scale = inverse(d);
  const uint16_t half = f16_of_f32(d);
  std::memcpy(out, &half, 2);
  for (int i = 0; i < kBlock; ++i) {
    const float y = x[i] * scale;
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(y + std::copysign(0.5f, y)));  // half away from zero
  }
}

/// Elements [begin, begin + n) as f32; whether all are finite.
bool upcast(const Tensor& from, int64_t begin, int64_t n, float* to) {
  const char* at = static_cast<const char*>(from.data) + row_bytes(from.dtype, begin);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half = 0;
    if (from.dtype == DType::f32) std::memcpy(to + i, at + 4 * i, 4);
    else std::memcpy(&half, at + 2 * i, 2), to[i] = from.dtype == DType::bf16 ? f32_of_bf16(half) : f32_of_f16(half);
    sum += to[i] * 0;  // NaN from the first value that is not finite
  }
  return sum == 0;
}

}  // namespace

Status encode_blocks(const Tensor& from, DType to, std::byte* out) {
  if (to != DType::q4_0 && to != DType::q8_0)
    return Status(Code::kUnsupported, strf("blocks: wanted q4_0 or q8_0, got %s", name(to)));
  if (from.dtype != DType::f32 && from.dtype != DType::f16 && from.dtype != DType::bf16)
    return Status(Code::kUnsupported,
                  strf("blocks: %s is made of f32, f16 or bf16, got %s; use precision native or bf16", name(to),
                       name(from.dtype)));
  const int64_t columns = from.shape[from.shape.rank - 1], all = from.shape.elements();
  if (columns % kBlock != 0)
    return Status(Code::kUnsupported, strf("blocks: %s wants rows a multiple of %ld wide, got %ld", name(to),
                                           static_cast<long>(kBlock), static_cast<long>(columns)));
  std::atomic<int64_t> next{0};
  std::atomic<bool> finite{true};
  const auto work = [&] {
    std::vector<float> values(kPiece);
    for (int64_t begin = next.fetch_add(kPiece); begin < all; begin = next.fetch_add(kPiece)) {
      const int64_t n = std::min(kPiece, all - begin);
      if (!upcast(from, begin, n, values.data())) finite = false;
      for (int64_t i = 0; finite && i < n; i += kBlock)
        (to == DType::q4_0 ? encode_q4_0 : encode_q8_0)(values.data() + i, out + row_bytes(to, begin + i));
    }
  };
  const int64_t helpers =
      std::min<int64_t>(std::max(1u, std::thread::hardware_concurrency()), (all + kPiece - 1) / kPiece) - 1;
  std::vector<std::jthread> threads;
  for (int64_t i = 0; i < helpers; ++i) threads.emplace_back(work);
  work();
  threads.clear();
  return finite ? Status()
                : Status(Code::kCorruptData, "blocks: a weight is NaN or infinite: the checkpoint is broken");
}

}  // namespace vivace::engine
