// Field: a named value as a robot or another program sent it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "vivace/base/dtype.h"
#include "vivace/base/float_types.h"

namespace vivace::engine {

/// An array in host memory in C order. Its memory stays the sender's, and no address of it need be aligned.
struct HostArray {
  static constexpr int kMostRank = 4;
  const std::byte* data = nullptr;
  DType dtype = DType::u8;
  int rank = 0;
  std::array<int64_t, kMostRank> shape{};
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[static_cast<size_t>(i)];
    return n;
  }
};

/// Element `i` of an array of numbers.
inline double value_at(const HostArray& a, int64_t i) {
  const auto read = [&]<class T>(T v) {
    std::memcpy(&v, a.data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return v;
  };
  switch (a.dtype) {
    case DType::f64: return read(double());
    case DType::f32: return static_cast<double>(read(float()));
    case DType::f16: return static_cast<double>(f32_of_f16(read(uint16_t())));
    case DType::i64: return static_cast<double>(read(int64_t()));
    case DType::i32: return read(int32_t());
    case DType::i16: return read(int16_t());
    case DType::i8: return read(int8_t());
    default: return read(uint8_t());
  }
}

/// Parts of a name are joined by '/': {"images": {"top": a}} is "images/top".
struct Field {
  enum class Kind : uint8_t { nil, flag, number, text, array };
  std::string_view name;
  Kind kind = Kind::nil;
  double number = 0;  // of flag: 0 or 1
  std::string_view text;
  HostArray array;
};

}  // namespace vivace::engine
