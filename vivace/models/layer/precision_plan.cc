#include "vivace/models/layer/precision_plan.h"

namespace vivace::models {
namespace {

constexpr PrecisionPlan kPlans[] = {
    {"f32", DType::f32, true, false, false},     // every product in f32, of weights as they are
    {"bf16", DType::bf16, false, false, false},  // weights and activations bf16, sums in f32
    {"fp8", DType::bf16, false, true, false},    // e4m3 in products, bf16 between them
    {"fp8_static", DType::bf16, false, true, true},
};

}  // namespace

Result<PrecisionPlan> pick_plan(const std::string& precision, Place place) {
  return pick_plan(kPlans, precision, place);
}

}  // namespace vivace::models
