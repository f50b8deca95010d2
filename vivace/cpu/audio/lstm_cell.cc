#include "vivace/kernels/audio/lstm_cell.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

}  // namespace

void lstm_cell(const kernels::LstmCellArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), int64_t{a.H} * 16, [&](int64_t t) {
    const float* const g = a.gates + t * a.gates_stride;
    float *const cell = a.cell + t * a.cell_stride, *const out = a.out + t * a.out_stride;
    for (int64_t h = 0; h < a.H; ++h) {
      cell[h] = sigmoid(g[a.H + h]) * cell[h] + sigmoid(g[h]) * std::tanh(g[2 * a.H + h]);
      out[h] = sigmoid(g[3 * a.H + h]) * std::tanh(cell[h]);
    }
  });
}

}  // namespace vivace::cpu
