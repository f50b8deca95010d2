// ShapeKey: the opaque name of one captured variant.
#pragma once
#include <compare>
#include <cstdint>

namespace vivace::exec {

/// 64 bits, matched exactly. What they encode, and any rounding of shapes to buckets, is decided by
/// whoever captures: exec/ neither reads nor orders them beyond equality.
struct ShapeKey {
  uint64_t value = 0;
  constexpr ShapeKey() = default;
  constexpr explicit ShapeKey(uint64_t v) : value(v) {}
  constexpr auto operator<=>(const ShapeKey&) const = default;
};

}  // namespace vivace::exec
