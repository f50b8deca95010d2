// Arguments of `dequantize_block_scaled`: those of `quantize_block_scaled`, the other way round.
#pragma once
#include "vivace/kernels/quantize/quantize_block_scaled.h"
