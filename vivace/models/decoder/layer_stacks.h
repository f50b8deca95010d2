// What decode_layers takes of a model: its layers' weights and caches as stacks, one weight of all layers each.
#pragma once
#include "vivace/models/decoder/pipeline.h"

namespace vivace::models::decoder {

/// Whether steps of one row may go through decode_layers: what options, configuration and plan say, before any weight
/// lies anywhere. Errors: Unsupported says what the steps have that the op has not.
Status may_stack(const DecoderConfig& config, const PrecisionPlan& plan, DType kv_dtype);

/// The stacks, once weights and caches lie where they stay: views of them, since layers that are alike follow each
/// other at one distance. Errors: Unsupported names the weight that does not.
Result<LayerStacks> stack_layers(const DecoderConfig& config, const DecoderWeights& weights,
                                 const StepBuffers& buffers);

/// Elements of StepBuffers::decode_words.
int64_t decode_words(const DecoderConfig& config);

}  // namespace vivace::models::decoder
