// PrecisionPlan: what activations and weights of a robot's policy are, by the name of a precision.
#pragma once
#include <string>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"

namespace vivace::models {

struct PrecisionPlan {
  const char* name;
  DType act;    // of activations between ops
  bool stored;  // matrices keep the checkpoint's dtype; else bf16
  bool eight;   // matrices of what runs once an observation e4m3 with a scale a row, activations e4m3 with a scale a
                // token where they enter products of these; what runs once a step stays in 16 bits, whatever its rows
  bool fixed;   // ... with a scale a place, which calibration found
  bool expert = false;  // a flow's action expert, which runs once a step, is in 8 bits too: an option beside the plan
};

/// The one of a family's plans that `precision` names; auto: f32 on the host, else bf16. Errors: InvalidArgument lists
/// the plans.
template <typename Plan, size_t N>
Result<Plan> pick_plan(const Plan (&plans)[N], const std::string& precision, Place place) {
  const std::string wanted = precision != "auto" ? precision : place == Place::host ? "f32" : "bf16";
  std::string names;
  for (const Plan& p : plans) {
    if (wanted == p.name) return p;
    names += std::string(", ") + p.name;
  }
  return Status(Code::kInvalidArgument, "precision: wanted auto" + names + ", got '" + precision + "'");
}

/// ... of the policies' plans.
Result<PrecisionPlan> pick_plan(const std::string& precision, Place place);

}  // namespace vivace::models
