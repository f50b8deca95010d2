// Precision plans of decoders: what activations, weights and cache are, decided once at load.
#pragma once
#include <string>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"

namespace vivace::models::decoder {

/// What becomes of a matrix that the checkpoint has in a plain dtype.
enum class Plain : uint8_t { stored, half, eight, four };  // as it is; bf16; e4m3 with a scale a row; FP4 with a scale for 16 columns, the head e4m3

/// How activations enter products: as they are, or as e4m3 with a scale a row made in the step, or one a place made before.
enum class Entry : uint8_t { plain, by_row, by_site };

struct PrecisionPlan {
  const char* name;
  DType hidden;       // of activations between ops
  const char* act;    // how activations enter a product with block-quantised weights: gemm's `act`
  Plain plain;
  bool keeps_blocks;  // block-quantised matrices stay what they are; else they become `hidden`
  Entry entry;

  bool eight_in() const { return entry != Entry::plain; }
};

/// `precision` as in engine::LoadOptions; "auto" depends on where the model runs. Errors: InvalidArgument lists the plans.
Result<PrecisionPlan> pick_plan(const std::string& precision, Place place);
/// `kv` as in engine::LoadOptions.
Result<DType> pick_kv(const std::string& kv, const PrecisionPlan& plan, Place place);

}  // namespace vivace::models::decoder
