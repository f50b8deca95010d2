// Arguments of the map and fold kernels: plain data. Shapes and strides are arguments, so that no shape compiles anew.
#pragma once
#include "vivace/kernels/map/map.h"
#include "vivace/kernels/tile/divisor.h"

namespace vivace::kernels {

inline constexpr int kMapThreads = 256;  // of a block, of every map and fold
inline constexpr int kFoldUnroll = 4;    // loads in flight of a thread that folds
inline constexpr int kOut = kMaxOperands;

/// How an operand walks along the inner axis. Dense: vectors. Loose: side by side, but not aligned for vectors.
enum class Walk : uint8_t { scalar, still, dense, loose, strided };

/// Axes that a number is decoded into, the fastest first. Strides in elements; [kOut] is the output's.
struct Axes {
  int32_t rank;
  int64_t dim[kMapRank];
  Divisor by[kMapRank];  // of dim, where offsets have 32 bits
  int64_t stride[kMaxOperands + 1][kMapRank];
};

/// out[line, i] = program(in[line, i]). Lines are decoded by `outer`, i walks along one axis.
struct MapLaunch {
  uint64_t in[kMaxOperands];  // an address, or the bits of a scalar
  void* out;
  int64_t vectors;        // in all lines together
  int64_t inner;          // elements of a line
  int64_t inner_vectors;  // vectors of a line, the last one perhaps cut
  Divisor by_vectors;     // of inner_vectors, where offsets have 32 bits
  int64_t inner_stride[kMaxOperands + 1];
  Axes outer;
};

inline constexpr int kTurnEdge = 64;  // of a tile of map_turned
/// The same where operands lie side by side along another axis than the output: out[line, row, column], in dense along
/// rows.
struct TurnedLaunch {
  uint64_t in[kMaxOperands];  // as in MapLaunch
  void* out;
  int64_t rows, columns;
  int64_t in_row[kMaxOperands], in_column[kMaxOperands], out_row;  // strides; the output's along columns is 1
  int64_t tiles_a_row, tiles;  // along columns; of a line
  Axes outer;
};

/// out[o] = finish(join over r of program(in[o, r])).
struct FoldLaunch {
  uint64_t in[kMaxOperands];
  void* out;
  void* partial;  // null, or one value of each split of each output: [outputs, splits]
  int64_t outputs;
  int32_t splits;
  int64_t inner;          // rows: elements of a folded line; columns: outputs along the kept axis that is dense
  int64_t inner_vectors;  // of it
  Divisor by_vectors;
  int64_t units;  // rows: vectors that an output folds; columns: rows that it folds
  int64_t units_a_split;
  int64_t inner_stride[kMaxOperands + 1];
  Axes kept;    // rows: all kept axes; columns: those beside the dense one
  Axes folded;  // rows: those beside the inner one; columns: all folded axes
};

struct FinishLaunch {
  const void* partial;
  void* out;
  int64_t outputs;
  int32_t splits;
  Axes kept;
};

}  // namespace vivace::kernels
