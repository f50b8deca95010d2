#include "vivace/models/decoder/plan.h"

#include "vivace/base/check.h"

namespace vivace::models::decoder {
namespace {

constexpr PrecisionPlan kPlans[] = {
    {"q8", DType::f32, "q8", Plain::stored, true, ActQuant::plain, {}},     // activations as int8 blocks against
                                                                            // block-quantized weights, f32 elsewhere
    {"f32", DType::f32, "f32", Plain::stored, true, ActQuant::plain, {}},   // every product in f32, of weights as they
                                                                            // are
    {"bf16", DType::bf16, "f32", Plain::half, false, ActQuant::plain, {}},  // weights and activations bf16, sums in f32
    {"native", DType::bf16, "f32", Plain::half, true, ActQuant::plain, {}},  // the same, but block-quantized weights as
                                                                             // the checkpoint has them
    {"w8a16", DType::bf16, "f32", Plain::eight, true, ActQuant::plain, DType::e4m3},  // e4m3 weights, bf16 activations
    {"w4a16", DType::bf16, "f32", Plain::four, true, ActQuant::plain,
     DType::e4m3},  // FP4 weights (NVFP4), bf16 activations
    {"int4", DType::bf16, "f32", Plain::four_int, true, ActQuant::plain,
     DType::q8_0},  // int4 weights in groups of 32, experts too; bf16 activations
    {"fp8", DType::bf16, "f32", Plain::eight, false, ActQuant::per_token,
     DType::e4m3},  // e4m3 weights and, where they enter products, activations
    {"fp8_static", DType::bf16, "f32", Plain::eight, false, ActQuant::per_tensor,
     DType::e4m3},  // the same with calibrated scales
};
constexpr DType kHeads[] = {DType::e4m3, DType::e2m1, DType::q8_0, DType::q4_0};

Result<PrecisionPlan> plan_of(const std::string& precision, Place place) {
  const std::string wanted = precision != "auto" ? precision : place == Place::host ? "q8" : "native";
  std::string names;
  for (const PrecisionPlan& p : kPlans) {
    if (wanted == p.name) return p;
    names += std::string(", ") + p.name;
  }
  return Status(Code::kInvalidArgument, "precision: wanted auto" + names + ", got '" + precision + "'");
}

}  // namespace

Result<PrecisionPlan> pick_plan(const std::string& precision, const std::string& lm_head_dtype, Place place) {
  VV_ASSIGN(PrecisionPlan plan, plan_of(precision, place));
  if (lm_head_dtype == "auto") return plan;
  std::optional<DType> chosen;
  std::string names;
  for (const DType t : kHeads) {
    if (lm_head_dtype == name(t)) chosen = t;
    names += std::string(", ") + name(t);
  }
  if (!chosen && lm_head_dtype != "plain")
    return Status(Code::kInvalidArgument,
                  "lm_head_dtype: wanted auto, plain" + names + ", got '" + lm_head_dtype + "'");
  if (plan.eight_in() && chosen != plan.head)
    return Status(Code::kUnsupported, strf("lm_head_dtype %s: precision %s hands its rows over as e4m3; leave "
                                           "lm_head_dtype at auto, or use w8a16 or bf16",
                                           lm_head_dtype.c_str(), plan.name));
  plan.head = chosen;
  plan.head_given = true;
  return plan;
}

Result<DType> pick_kv(const std::string& kv, const PrecisionPlan& plan, Place place) {
  if (kv == "auto") return plan.hidden != DType::f32 ? plan.hidden : place == Place::host ? DType::f16 : DType::f32;
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    if (kv == name(t)) return t;
  return Status(Code::kInvalidArgument, "kv_dtype: wanted auto, f32, f16, bf16 or e4m3, got '" + kv + "'");
}

}  // namespace vivace::models::decoder
