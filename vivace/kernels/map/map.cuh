// map on CUDA: a program of ufuncs.def, written out as a Body by vivace/array/gpu_source, over strided operands.
// Chosen when: a program without a reduction; map_turned: operands lie side by side along another axis than the result.
#pragma once
#include "vivace/kernels/map/held.cuh"

namespace vivace::kernels {

/// Grid: ceil(vectors / 256) blocks, a thread a vector: several a thread are no faster and compile twice as long
/// (lab/notes/065). Body holds V elements of every operand: load(), value(i, index), kResult and kOutWalk. A thread
/// reads its elements before it writes them, so that the output may be an operand, element for element. A kernel of the
/// plain stream order: nothing is read ahead of it.
template <class Body, int V, class Offset, bool kFlat>
__global__ void __launch_bounds__(kMapThreads) map(const __grid_constant__ MapLaunch a) {
  using Out = Held<Body::kResult>;
  const Offset unit = static_cast<Offset>(blockIdx.x) * kMapThreads + threadIdx.x;
  if (unit >= static_cast<Offset>(a.vectors)) return;
  const Offset line = kFlat ? Offset(0) : divided(unit, a.by_vectors, a.inner_vectors);
  const Offset first = (unit - line * static_cast<Offset>(a.inner_vectors)) * V;
  Offset at[kMaxOperands + 1];
#pragma unroll
  for (int k = 0; k < Body::kOperands; ++k) at[k] = first * static_cast<Offset>(a.inner_stride[k]);
  at[kOut] = first * static_cast<Offset>(a.inner_stride[kOut]);
  if constexpr (!kFlat) place<Body::kOperands>(a.outer, line, at);
  const Offset left = static_cast<Offset>(a.inner) - first;
  const int n = left < V ? static_cast<int>(left) : V;
  Body body;
  body.load(a.in, at, a.inner_stride, n);
  typename Out::S* const p = static_cast<typename Out::S*>(a.out) + at[kOut];
  const Offset step = Body::kOutWalk == Walk::strided ? static_cast<Offset>(a.inner_stride[kOut]) : Offset(1);
  Words<typename Out::S, V> v;
#pragma unroll
  for (int i = 0; i < V; ++i) v.s[i] = Out::store(body.value(i, static_cast<int64_t>(at[kOut]) + i * int64_t{step}));
  if (Body::kOutWalk == Walk::dense && n == V) {
#pragma unroll
    for (int i = 0; i < Words<typename Out::S, V>::kWords; ++i)
      reinterpret_cast<typename Words<typename Out::S, V>::type*>(p)[i] = v.word[i];
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i < n) p[i * step] = v.s[i];
  }
}

/// Grid: lines * tiles. A block reads a tile along rows, where the operands lie side by side, and writes it along
/// columns.
template <class Body, class Offset>
__global__ void __launch_bounds__(kMapThreads) map_turned(const __grid_constant__ TurnedLaunch a) {
  using Out = Held<Body::kResult>;
  constexpr int kStep = kMapThreads / kTurnEdge, kEach = kTurnEdge / kStep, kBatch = 4;  // of a thread; at once
  __shared__ typename Out::S tile[kTurnEdge][kTurnEdge + 1];
  const Offset tiles = static_cast<Offset>(a.tiles), across = static_cast<Offset>(a.tiles_a_row);
  const Offset line = static_cast<Offset>(blockIdx.x) / tiles, number = static_cast<Offset>(blockIdx.x) - line * tiles;
  const Offset down = number / across;
  const Offset row = down * kTurnEdge, column = (number - down * across) * kTurnEdge;
  const int x = static_cast<int>(threadIdx.x) % kTurnEdge, y = static_cast<int>(threadIdx.x) / kTurnEdge;
  Offset base[kMaxOperands + 1] = {};
  place<Body::kOperands>(a.outer, line, base);
  const bool in_rows = row + x < static_cast<Offset>(a.rows), in_columns = column + x < static_cast<Offset>(a.columns);
#pragma unroll
  for (int first = 0; first < kEach; first += kBatch) {
    Body body[kBatch];
    int64_t unused[kMaxOperands + 1] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const Offset c = column + y + (first + i) * kStep;
      if (!in_rows || c >= static_cast<Offset>(a.columns)) continue;
      Offset at[kMaxOperands + 1];
#pragma unroll
      for (int k = 0; k < Body::kOperands; ++k)
        at[k] = base[k] + (row + x) * static_cast<Offset>(a.in_row[k]) + c * static_cast<Offset>(a.in_column[k]);
      body[i].load(a.in, at, unused, 1);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (in_rows && column + y + (first + i) * kStep < static_cast<Offset>(a.columns))
        tile[y + (first + i) * kStep][x] = Out::store(body[i].value(0, 0));
  }
  __syncthreads();
  typename Out::S* const out = static_cast<typename Out::S*>(a.out) + base[kOut] + column + x;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Offset r = row + y + i * kStep;
    if (in_columns && r < static_cast<Offset>(a.rows))
      out[r * static_cast<Offset>(a.out_row)] = tile[x][y + i * kStep];
  }
}

}  // namespace vivace::kernels
