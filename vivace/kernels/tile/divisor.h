// Division of indices by a number that the host knows: a product and a shift in place of twenty instructions. POD.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

/// n / by and n % by for n and by in [1, 2^31): the rounded-up reciprocal of Granlund and Montgomery.
struct Divisor {
  uint32_t by, factor, shift;

  static constexpr Divisor of(int32_t d) {
    uint32_t shift = 0;
    while ((uint64_t{1} << shift) < static_cast<uint64_t>(d)) ++shift;
    const uint64_t over = (uint64_t{1} << shift) - static_cast<uint64_t>(d);  // < d, so the factor has 32 bits
    return {static_cast<uint32_t>(d), static_cast<uint32_t>((over << 32) / static_cast<uint64_t>(d) + 1), shift};
  }
  VV_HD constexpr int32_t quotient(int32_t n) const {
    const uint32_t u = static_cast<uint32_t>(n);
    return static_cast<int32_t>((static_cast<uint32_t>((uint64_t{u} * factor) >> 32) + u) >> shift);
  }
  VV_HD constexpr int32_t remainder(int32_t n, int32_t q) const { return n - q * static_cast<int32_t>(by); }
};

static_assert(Divisor::of(7).quotient(2147483647) == 306783378 && Divisor::of(1).quotient(2147483647) == 2147483647);
static_assert(Divisor::of(2147483647).quotient(2147483646) == 0 && Divisor::of(2147483647).quotient(2147483647) == 1);

}  // namespace vivace::kernels
