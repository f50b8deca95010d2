// How elementwise kernels cut [T, H] into thread blocks: each takes one stretch of one row. POD.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

struct StretchPolicy {
  int32_t threads;  // a block
  int32_t vec;      // elements an access; 1 serves any alignment
  int32_t items;    // accesses a thread has in flight
  constexpr bool operator==(const StretchPolicy&) const = default;
  constexpr int64_t stretch() const { return int64_t{threads} * vec * items; }
};

}  // namespace vivace::kernels
