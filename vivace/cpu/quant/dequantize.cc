#include "vivace/cpu/quant/dequantize.h"

#include "vivace/cpu/quant/level.h"
#include "vivace/cpu/simd/isa.h"

namespace vivace::cpu {
namespace {

Dequantize level() {
  switch (isa()) {
    case Isa::avx512: return dequantize_avx512();
    case Isa::avx2: return dequantize_avx2();
    case Isa::portable: break;
  }
  return dequantize_portable();
}

}  // namespace

void dequantize_row(DType dtype, const void* row, int64_t first, int64_t n, float* dst) {
  level()(dtype, static_cast<const uint8_t*>(row) + row_bytes(dtype, first), n, dst);
}

}  // namespace vivace::cpu
