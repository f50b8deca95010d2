// What products trust of their scales, for checked mode (ops/checked.h).
#pragma once
#include <cmath>
#include <initializer_list>

#include "vivace/ops/checked.h"

namespace vivace::ops {

/// Scales of the f32 ports `names` are finite and above zero; of x_row_scale and x_block_scale those of valid rows.
inline Status inspect_scales(const Call& c, const Contents& read, std::initializer_list<const char*> names) {
  for (const char* port : names) {
    if (!c[port].present() || c[port].dtype != DType::f32) continue;
    VV_ASSIGN(const std::vector<float> values, read.floats(port));
    size_t count = values.size();
    if (std::string_view(port).starts_with("x_") && c[port].shape.dim[0] == c.dim("T") && c.dim("T") > 0) {
      VV_ASSIGN(const int64_t rows, read.rows());
      count = count / static_cast<size_t>(c.dim("T")) * static_cast<size_t>(rows);
    }
    for (size_t i = 0; i < count; ++i)
      if (!(values[i] > 0.0f) || !std::isfinite(values[i]))
        return c.error(Code::kInvalidArgument, strf("port %s: a scale is finite and above zero, entry %zu is %g", port,
                                                    i, static_cast<double>(values[i])));
  }
  return {};
}

}  // namespace vivace::ops
