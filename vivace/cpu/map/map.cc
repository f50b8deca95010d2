#include "vivace/cpu/map/map.h"

#include <algorithm>

#include "vivace/cpu/map/block.h"

namespace vivace::cpu {
namespace {

using kernels::kMapRank;
using kernels::kMaxOperands;
using kernels::MapSpace;

constexpr int64_t kParallel = 32768;  // elements below which waking threads costs more than it saves
constexpr int64_t kGrain = 16384;     // elements of a thread's turn

/// Calls body(n, in, out) for runs of at most `most` elements along the last axis, of lines [begin, end) of the others.
template <class Body>
void walk(const MapSpace& s, int operands, const int64_t (&in_bytes)[kMaxOperands], int64_t out_bytes, int64_t begin,
          int64_t end, int64_t most, Body&& body) {
  const int last = s.rank - 1;
  const int64_t n = s.rank == 0 ? 1 : s.dim[last];
  int64_t at[kMapRank] = {};
  const char* in[kMaxOperands];
  for (int k = 0; k < operands; ++k) in[k] = static_cast<const char*>(s.in[k]);
  char* out = static_cast<char*>(s.out);
  for (int64_t rest = begin, i = last - 1; i >= 0; --i) {
    at[i] = rest % s.dim[i], rest /= s.dim[i];
    for (int k = 0; k < operands; ++k) in[k] += at[i] * s.in_stride[k][i] * in_bytes[k];
    out += at[i] * s.out_stride[i] * out_bytes;
  }
  for (int64_t line = begin; line < end; ++line) {
    const char* run[kMaxOperands];
    for (int64_t done = 0; done < n; done += most) {
      for (int k = 0; k < operands; ++k) run[k] = in[k] + (s.rank == 0 ? 0 : done * s.in_stride[k][last] * in_bytes[k]);
      body(std::min(most, n - done), run, out + (s.rank == 0 ? 0 : done * s.out_stride[last] * out_bytes));
    }
    for (int i = last - 1; i >= 0; --i) {
      ++at[i];
      for (int k = 0; k < operands; ++k) in[k] += s.in_stride[k][i] * in_bytes[k];
      out += s.out_stride[i] * out_bytes;
      if (at[i] < s.dim[i]) break;
      for (int k = 0; k < operands; ++k) in[k] -= at[i] * s.in_stride[k][i] * in_bytes[k];
      out -= at[i] * s.out_stride[i] * out_bytes;
      at[i] = 0;
    }
  }
}

/// Splits the space among threads: by lines, or one long line by its elements.
template <class Body>
void spread(const MapSpace& s, int operands, const int64_t (&in_bytes)[kMaxOperands], int64_t out_bytes, int64_t most,
            Pool* pool, Body&& body) {
  int64_t lines = 1;
  for (int i = 0; i + 1 < s.rank; ++i) lines *= s.dim[i];
  const int64_t n = s.rank == 0 ? 1 : s.dim[s.rank - 1], all = lines * n;
  if (all == 0) return;
  if (pool == nullptr || all < kParallel || pool->threads() == 1) {
    walk(s, operands, in_bytes, out_bytes, 0, lines, most, body);
    return;
  }
  if (lines >= pool->threads() * 2) {
    const int64_t turn = std::max<int64_t>(1, kGrain / std::max<int64_t>(n, 1));
    pool->run((lines + turn - 1) / turn, [&](int64_t c) {
      walk(s, operands, in_bytes, out_bytes, c * turn, std::min(lines, (c + 1) * turn), most, body);
    });
    return;
  }
  pool->run((n + kGrain - 1) / kGrain, [&](int64_t c) {
    MapSpace part = s;
    const int last = s.rank - 1;
    part.dim[last] = std::min(kGrain, n - c * kGrain);
    for (int k = 0; k < operands; ++k)
      part.in[k] = static_cast<const char*>(s.in[k]) + c * kGrain * s.in_stride[k][last] * in_bytes[k];
    part.out = static_cast<char*>(s.out) + c * kGrain * s.out_stride[last] * out_bytes;
    walk(part, operands, in_bytes, out_bytes, 0, lines, most, body);
  });
}

}  // namespace

void map(const kernels::MapProgram& program, const MapSpace& s, Pool* pool) {
  const Evaluator evaluator(program);
  int64_t in_bytes[kMaxOperands] = {}, in_stride[kMaxOperands] = {};
  const int64_t out_bytes = elem_bytes(program.result), last = s.rank - 1;
  for (int k = 0; k < program.operands; ++k) {
    in_bytes[k] = elem_bytes(program.operand[k]);
    in_stride[k] = s.rank == 0 ? 0 : s.in_stride[k][last] * in_bytes[k];
  }
  const int64_t out_stride = s.rank == 0 ? out_bytes : s.out_stride[last] * out_bytes;
  const char* const base = static_cast<const char*>(s.out);
  spread(s, program.operands, in_bytes, out_bytes, evaluator.single() ? kGrain : kBlock, pool,
         [&](int64_t n, const char* const* in, char* out) {
           char* const scratch = evaluator.single() ? nullptr : thread_scratch(evaluator.scratch_bytes());
           evaluator.eval(n, in, in_stride, (out - base) / out_bytes, out_stride / out_bytes, out, out_stride, scratch);
         });
}

void copy(int bytes, const MapSpace& s, Pool* pool) {
  const Loop loop = copy_loop(bytes);
  const int64_t in_bytes[kMaxOperands] = {bytes}, last = s.rank - 1;
  const int64_t in_stride = s.rank == 0 ? bytes : s.in_stride[0][last] * bytes;
  const int64_t out_stride = s.rank == 0 ? bytes : s.out_stride[last] * bytes;
  spread(s, 1, in_bytes, bytes, kGrain, pool,
         [&](int64_t n, const char* const* in, char* out) { loop(n, in, &in_stride, out, out_stride); });
}

}  // namespace vivace::cpu
