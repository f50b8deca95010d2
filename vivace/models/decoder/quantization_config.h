// What config.json says of matrices that come with scales, and which of it is served.
#pragma once
#include "vivace/base/status.h"
#include "vivace/engine/checkpoint/json.h"

namespace vivace::models::decoder {

/// `q`: quantization_config. Served are, of 128 x 128 blocks, fp8; of a tensor or a row, fp8, fbgemm_fp8, ModelOpt's
/// FP8 and FP8_PER_CHANNEL_PER_TOKEN and compressed-tensors' float-quantized and naive-quantized, also in blocks;
/// NVFP4 as ModelOpt and compressed-tensors write it; compressed-tensors' mixed-precision of these; and its dense with
/// a kv_cache_scheme alone, whose scales kv_scales.h reads. WeightSource decides by the tensors alone what each matrix
/// is. Errors: Unsupported says what there is.
Status check_quantization(const engine::JsonValue& q);

}  // namespace vivace::models::decoder
