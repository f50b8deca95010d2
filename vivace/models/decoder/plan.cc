#include "vivace/models/decoder/plan.h"

namespace vivace::models::decoder {
namespace {

constexpr PrecisionPlan kPlans[] = {
    {"q8", DType::f32, "q8", false, true},    // activations as int8 blocks against block-quantised weights, f32 elsewhere
    {"f32", DType::f32, "f32", false, false},  // every product in f32, of weights as they are
    {"bf16", DType::bf16, "f32", true, false}, // weights and activations bf16, sums in f32
};

}  // namespace

Result<PrecisionPlan> pick_plan(const std::string& precision, Place place) {
  const std::string wanted = precision != "auto" ? precision : place == Place::host ? "q8" : "bf16";
  std::string names;
  for (const PrecisionPlan& p : kPlans) {
    if (wanted == p.name) return p;
    names += std::string(", ") + p.name;
  }
  return Status(Code::kInvalidArgument, "precision: wanted auto" + names + ", got '" + precision + "'");
}

Result<DType> pick_kv(const std::string& kv, const PrecisionPlan& plan, Place place) {
  if (kv == "auto") return plan.hidden != DType::f32 ? plan.hidden : place == Place::host ? DType::f16 : DType::f32;
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    if (kv == name(t)) return t;
  return Status(Code::kInvalidArgument, "kv_dtype: wanted auto, f32, f16, bf16 or e4m3, got '" + kv + "'");
}

}  // namespace vivace::models::decoder
