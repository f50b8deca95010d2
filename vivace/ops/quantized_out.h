// The rule of every op whose `out` may be e4m3: exactly one of out_scale and row_scale says how.
#pragma once
#include "vivace/base/check.h"
#include "vivace/ops/call.h"

namespace vivace::ops {

inline Status check_quantized_out(const Call& c) {
  const DType out = c["out"].dtype;
  const bool fixed = c["out_scale"].present(), dynamic = c["row_scale"].present();
  if ((out == DType::e4m3) == (fixed != dynamic) && !(fixed && dynamic)) return {};
  return c.error(Code::kInvalidArgument, strf("out is %s: an e4m3 out takes exactly one of out_scale and row_scale, "
                                              "any other out neither (got out_scale %s, row_scale %s)",
                                              name(out), fixed ? "given" : "absent", dynamic ? "given" : "absent"));
}

}  // namespace vivace::ops
