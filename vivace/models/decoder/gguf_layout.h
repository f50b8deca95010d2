// GGUF's layout of recurrent layers, and the hub's.
#pragma once
#include "vivace/models/decoder/weights.h"

namespace vivace::models::decoder {

/// Brings a recurrent layer of a GGUF file into the layout of hub files. There value heads of one key head lie as far
/// apart as there are key heads, in every matrix that has a row, or `o` a column, of them; and delta_rate is the rate
/// itself, negative. Of families with kKeyGroups value heads lie by key head already. Errors: CorruptData for rates
/// that are not negative.
Status undo_gguf_layout(const engine::WeightSource& source, const DecoderConfig& config, LayerWeights* weights);

}  // namespace vivace::models::decoder
