// What ops with a table of rows trust of ada_row, for checked mode (ops/checked.h).
#pragma once
#include "vivace/ops/checked.h"

namespace vivace::ops {

/// ada_row of the valid rows in [0, R). Without the mode a token whose row is not there becomes NaN.
inline Status inspect_ada_row(const Call& c, const Contents& read) {
  VV_ASSIGN(const std::vector<int32_t> ada, read("ada_row"));
  const int64_t R = c.dim("R");
  if (ada.empty() || R == 0) return {};
  VV_ASSIGN(const int64_t rows, read.rows());
  for (int64_t t = 0; t < rows; ++t)
    if (ada[static_cast<size_t>(t)] < 0 || ada[static_cast<size_t>(t)] >= R)
      return c.error(Code::kInvalidArgument,
                     strf("ada_row[%ld] is %d, wanted 0 to %ld: a row of the table", static_cast<long>(t),
                          ada[static_cast<size_t>(t)], static_cast<long>(R - 1)));
  return {};
}

}  // namespace vivace::ops
