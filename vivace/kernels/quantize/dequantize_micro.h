// Arguments of `dequantize_micro`: those of `quantize_micro`, the other way round.
#pragma once
#include "vivace/kernels/quantize/quantize_micro.h"
