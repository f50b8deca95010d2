// Tensor maps: what TMA of Hopper and later needs to know of a matrix in device memory.
#pragma once
#include <cstdint>

#include "vivace/base/status.h"

namespace vivace::device {

/// A row-major matrix, copied in boxes of box_rows rows x box_bytes of columns, which land in shared memory
/// with the swizzle of that width and zeros beyond the matrix's edges.
struct MapShape {
  const void* data;       // device memory, aligned to 16 bytes
  int64_t rows, columns;  // elements; at least 1
  int64_t pitch;          // bytes a row, a multiple of 16
  int element_bytes;      // 1, 2 or 4
  int box_rows;           // 1 to 256
  int box_bytes = 128;    // of columns: 32, 64 or 128, which is the swizzle too
};

/// Writes the map to `map`: 128 bytes, aligned to 64, a __grid_constant__ argument of kernels. No work is
/// issued. Errors: Unsupported (a driver without tensor maps), CudaError with the shape where the driver refuses it.
Status encode_map(const MapShape& shape, void* map);

/// A row-major matrix of 32-bit (or 64-bit) words, copied in boxes of box_rows rows x box_words words, at most 256 each
/// and whole 16 bytes, which land row behind row, with zeros beyond the matrix's edges.
struct WordMapShape {
  const void* data;     // as above
  int64_t rows, words;  // words a row
  int64_t pitch;
  int box_rows, box_words;
  bool paired = false;  // as encode_paired_map() has rows
  int word_bytes = 4;   // or 8
};
Status encode_map(const WordMapShape& shape, void* map);

/// A row-major matrix whose rows, 16 by 16, land with the even ones before the odd ones: boxes of box_rows rows x 128
/// bytes, to be copied from (column, 0, 0, row / 16). Rows and box_rows are multiples of 16.
Status encode_paired_map(const MapShape& shape, void* map);

/// A row-major matrix of heads of `head_rows` rows, of which each eight of a head's first half land before the eight of
/// its second half: boxes of box_rows rows x 128 bytes, to be copied from (column, 0, 0, row % head_rows / 16, row /
/// head_rows), row counted as they land. box_rows is a multiple of 16 and divides head_rows.
Status encode_halved_map(const MapShape& shape, int head_rows, void* map);

/// Up to five axes, innermost first and dense: 16-bit elements in boxes of 64 x box_rows of the first two axes and one
/// of the others, laid out in shared memory as above.
struct BoxShape {
  const void* data;    // device memory, aligned to 16 bytes
  int axes;            // 2 to 5
  int64_t dim[5];      // elements; at least 1
  int64_t pitch[4];    // bytes along axis 1 and on, multiples of 16
  int box_rows;        // 1 to 256
};
Status encode_map(const BoxShape& shape, void* map);

}  // namespace vivace::device
