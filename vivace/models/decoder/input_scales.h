// Static scales of activations, as fp8 checkpoints carry them: input_scale beside a product's weight.
#pragma once
#include <vector>

#include "vivace/models/decoder/config.h"

namespace vivace::models::decoder {

/// What the checkpoint says instead of a calibration.
struct InputScales {
  std::vector<float> sites;  // [site_count()], 1 where no product takes e4m3 rows; empty: not every site has one
  bool head = false;         // the last is the checkpoint's too; else it is 1 and says nothing
  int64_t tensors = 0;       // that were read
};

/// Whether each product of a layer whose rows enter as e4m3 has an `input_scale`, by names alone: that of the head and
/// of experts may be missing.
bool has_input_scales(const engine::Checkpoint& checkpoint, const DecoderConfig& config);

/// A row enters a product as codes sat_e4m3(x / input_scale). Products of one site share their rows, and take the
/// largest scale of them, as vLLM does. Each is one number in f32, bf16 or f16, [] or [1]. Errors: InvalidShape for
/// several numbers, Unsupported for other types, CorruptData for what is not positive and finite; each names the
/// tensor.
Result<InputScales> read_input_scales(const engine::Checkpoint& checkpoint, const DecoderConfig& config);

}  // namespace vivace::models::decoder
