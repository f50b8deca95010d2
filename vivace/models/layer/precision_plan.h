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
};

/// Errors: InvalidArgument lists the plans.
Result<PrecisionPlan> pick_plan(const std::string& precision, Place place);

}  // namespace vivace::models
