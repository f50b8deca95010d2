// euler_step: one step along a velocity, as gate_residual.
#pragma once
#include "vivace/ops/registry.h"

namespace vivace::ops::defs {

struct euler_step {
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "state"),
      in("v", "T,H", "=x", "velocity"),
      opt_in("dt_device", "1", "f32", "step size in device memory, multiplied with dt"),
      out("out", "T,H", "=x", "state after the step", "x"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {real("dt", 1, "step size")};
  static constexpr OpSpec spec{
      .name = "euler_step",
      .group = "gate",
      .brief = "One Euler step of a flow.",
      .formula = "out = round(x + v * (dt * dt_device)), in f32, rounded once",
      .source = "flow matching arXiv:2210.02747",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  static Status decompose(const Call& c, Recorder& rec) {
    return rec(ops::gate_residual,
               {{"x", c["v"]}, {"residual", c["x"]}, {"dt", c["dt_device"]}, {"out", c["out"]}, {"rows", c["rows"]}},
               {{"alpha", c.real("dt")}});
  }
};

}  // namespace vivace::ops::defs
