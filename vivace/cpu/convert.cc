#include "vivace/cpu/convert.h"

#include <cstring>

#include "vivace/base/float_types.h"

namespace vivace::cpu {

void load_f32(const void* src, DType dtype, int64_t first, int64_t n, float* dst) {
  const auto* u16 = static_cast<const uint16_t*>(src) + first;
  const auto* u8 = static_cast<const uint8_t*>(src) + first;
  switch (dtype) {
    case DType::f32: std::memcpy(dst, static_cast<const float*>(src) + first, n * sizeof(float)); return;
    case DType::bf16: for (int64_t i = 0; i < n; ++i) dst[i] = f32_of_bf16(u16[i]); return;
    case DType::f16: for (int64_t i = 0; i < n; ++i) dst[i] = f32_of_f16(u16[i]); return;
    case DType::e4m3: for (int64_t i = 0; i < n; ++i) dst[i] = f32_of_e4m3(u8[i]); return;
    case DType::e5m2: for (int64_t i = 0; i < n; ++i) dst[i] = f32_of_e5m2(u8[i]); return;
    default: __builtin_trap();  // specs list only the types above
  }
}

void store_f32(void* dst, DType dtype, int64_t first, int64_t n, const float* src) {
  auto* u16 = static_cast<uint16_t*>(dst) + first;
  auto* u8 = static_cast<uint8_t*>(dst) + first;
  switch (dtype) {
    case DType::f32: std::memcpy(static_cast<float*>(dst) + first, src, n * sizeof(float)); return;
    case DType::bf16: for (int64_t i = 0; i < n; ++i) u16[i] = bf16_of_f32(src[i]); return;
    case DType::f16: for (int64_t i = 0; i < n; ++i) u16[i] = f16_of_f32(src[i]); return;
    case DType::e4m3: for (int64_t i = 0; i < n; ++i) u8[i] = e4m3_of_f32(src[i]); return;
    case DType::e5m2: for (int64_t i = 0; i < n; ++i) u8[i] = e5m2_of_f32(src[i]); return;
    default: __builtin_trap();  // specs list only the types above
  }
}

}  // namespace vivace::cpu
