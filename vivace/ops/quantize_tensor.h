// quantize_tensor: one dynamic scale for a whole tensor, which takes two passes over it.
#pragma once
#include "vivace/base/check.h"
#include "vivace/ops/registry.h"

namespace vivace::ops::defs {

struct quantize_tensor {
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "rows to quantize"),
      out("out", "T,H", "e4m3|i8", "codes: value ~ code * tensor_scale"),
      out("tensor_scale", "1", "f32", "the scale"),
      inout("row_amax", "T", "f32", "scratch: largest magnitude of each row"),
      inout("amax", "1", "f32", "scratch: largest magnitude of all"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "quantize_tensor",
      .group = "quantize",
      .brief = "Quantizes a tensor with one dynamic scale.",
      .formula = "amax = max |x| over the valid rows (reduce, twice); then quantize with amax",
      .source = "OCP OFP8 1.0",
      .ports = kPorts,
      .attrs = {},
      .composite = true,
  };

  static Status decompose(const Call& c, Recorder& rec) {
    Tensor across = c["row_amax"];  // the column of row maxima, as one row
    across.shape = Shape(1, c.dim("T"));
    across.stride[0] = c.dim("T");
    across.stride[1] = 1;
    VV_TRY(rec(ops::reduce, {{"x", c["x"]}, {"out", c["row_amax"]}, {"rows", c["rows"]}}, {{"kind", "amax"}}));
    VV_TRY(rec(ops::reduce, {{"x", across}, {"out", c["amax"]}, {"cols", c["rows"]}}, {{"kind", "amax"}}));
    return rec(ops::quantize, {{"x", c["x"]},
                               {"out", c["out"]},
                               {"amax", c["amax"]},
                               {"tensor_scale", c["tensor_scale"]},
                               {"rows", c["rows"]}});
  }
};

}  // namespace vivace::ops::defs
