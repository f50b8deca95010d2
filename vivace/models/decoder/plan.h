// Precision plans of decoders: what activations, weights and cache are, decided once at load.
#pragma once
#include <optional>
#include <string>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"

namespace vivace::models::decoder {

/// What becomes of a matrix that the checkpoint has in a plain dtype.
enum class Plain : uint8_t {
  stored, half,  // as it is; bf16
  eight,         // e4m3 with a scale a row
  four,          // FP4 with a scale for 16 columns
  four_int,      // int4 in groups of 32 with an f16 scale, as q4_0 lays them out
};

/// How activations enter products: as they are, or as e4m3 with a scale a row made in the step, or one a place made
/// before.
enum class ActQuant : uint8_t { plain, per_token, per_tensor };

struct PrecisionPlan {
  const char* name;
  DType hidden;       // of activations between ops
  const char* act;    // how activations enter a product with block-quantized weights: gemm's `act`
  Plain plain;
  bool keeps_blocks;  // block-quantized matrices stay what they are; else they become `hidden`
  ActQuant entry;
  std::optional<DType>
      head;  // what a plain head becomes: e4m3 and e2m1 with scales, or blocks; none: as the table of the embedding
  bool head_given = false;    // by the caller, not by the plan

  /// Whether matrices that a checkpoint has as FP4 stay that.
  bool keeps_fp4() const { return keeps_blocks && (plain == Plain::half || plain == Plain::four); }
  /// The same of e4m3 with a scale a row or a tensor.
  bool keeps_e4m3() const { return plain == Plain::eight || (keeps_blocks && plain == Plain::half); }
  bool eight_in() const { return entry != ActQuant::plain; }
};

/// `precision` and `lm_head_dtype` as in engine::LoadOptions; "auto" depends on where the model runs. Errors:
/// InvalidArgument lists what there is; Unsupported: rows enter the head as e4m3 and want it so.
Result<PrecisionPlan> pick_plan(const std::string& precision, const std::string& lm_head_dtype, Place place);
/// `kv` as in engine::LoadOptions.
Result<DType> pick_kv(const std::string& kv, const PrecisionPlan& plan, Place place);

}  // namespace vivace::models::decoder
