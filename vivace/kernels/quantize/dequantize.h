// Arguments of `dequantize`: beside those of `quantize`, whose scales it reads.
#pragma once
#include "vivace/kernels/quantize/quantize.h"
#include "vivace/kernels/tile/stretch.h"
