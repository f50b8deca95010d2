// Arguments of the kernels that order, search, gather and add up along dense rows: plain data.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

inline constexpr int kOrderItems = 8;  // elements of a thread; a block of t threads has a tile of 8 t
/// Threads of a block whose rows have so many elements.
VV_HD constexpr int order_threads(int64_t n) {
  return n <= 32 * kOrderItems ? 32 : 256;
}

/// Tiles of rows [rows, n], each sorted by itself. Block: row * tiles + tile.
struct TilesLaunch {
  const void* x;
  void* keys;       // [rows, n] of the key's type; null where nobody merges
  uint32_t* order;  // [rows, n]: the place in its row
  int64_t n, tiles;
};
/// Runs of `run` elements, each two joined into one. Block: row * tiles + tile of the output.
struct MergeLaunch {
  const void* keys;
  const uint32_t* order;
  void* keys_out;  // null in the last round
  uint32_t* order_out;
  int64_t n, run, tiles;
};
/// Running sums of rows [rows, n] in chunks. Block: row * chunks + chunk; of the middle kernel: row.
struct ScanLaunch {
  const void* x;
  void* out;
  void* partial;  // [rows, chunks]: first each chunk's total, then what stands before it; null with one chunk
  int64_t n, chunks;
};
/// Where values belong in x [n], sorted, or sorted by `sorter`.
struct SearchLaunch {
  const void* x;
  const int64_t* sorter;  // null: x is in order
  const void* values;
  int64_t* out;
  int64_t n, count;
  int64_t* bad;  // as in GatherLaunch, for the sorter
};
/// out[o, j, i] = x[o, at, i], at = at[j] or, along, at[o, j, i]. Units of a power of two bytes.
struct GatherLaunch {
  const void* x;
  const void* at;
  void* out;
  int64_t total;  // outer * count * inner
  int64_t length, inner, count;
  int64_t* bad;  // {an index out of range, 1} is written there, and the nearest place is read; host memory. May be null
};

}  // namespace vivace::kernels
