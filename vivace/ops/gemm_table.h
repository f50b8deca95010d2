// Measured tiles of gemm: rows of product and tile, shipped, printed, replaced by a file of the same form.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "vivace/base/dtype.h"
#include "vivace/base/status.h"
#include "vivace/ops/gemm_tiles.h"

namespace vivace::ops {

/// Products x W^T of W [N, K] and up to T tokens: above the row before it of the same weight, from half of T on, and
/// above 64 tokens from 3/4 T on: a tile that is right for 968 leaves a third of 600 empty, one for 64 takes 58.8 us of
/// 32 where one for 32 takes 47.4 (24576 x 4096). A row chooses how blocks share the work and never how a sum is cut:
/// no table changes a bit of a result.
struct GemmRow {
  DType dtype;    // of x and W
  int32_t N, K, T;
  int32_t rows, tokens, multicast_x, multicast_w;  // as in kernels::GemmWgmma
  float us;       // measured with cold weights, 0: not measured

  constexpr bool serves(int64_t tokens) const {
    return tokens <= T && (tokens <= GemmTiles::kFewTokens ? T <= GemmTiles::kFewTokens && (T <= 16 || 2 * tokens > T)
                                                           : 4 * tokens > 3 * int64_t{T});
  }
  friend bool operator==(const GemmRow&, const GemmRow&) = default;
};

/// The rows in use, by dtype, N, K, T: the shipped ones, then those of the file that VIVACE_TACTICS names or of
/// the last load_gemm_rows(), which take the place of shipped ones of the same product.
/// Errors: those of load_gemm_rows() on the file.
Result<std::span<const GemmRow>> gemm_rows();

/// One row a line: dtype N K T rows tokens multicast_x multicast_w us; # starts a comment. An empty text restores the
/// shipped rows. Setup phase: calls that are already prepared keep their tile.
/// Errors: CorruptData names the line and what a row wants.
Status load_gemm_rows(std::string_view text);

/// The shipped ones alone, whatever is loaded.
std::span<const GemmRow> shipped_gemm_rows();

/// VIVACE_PORTABLE=1: the tactics of chips without a table, so that they can be tested on one that has it.
bool portable_only();

/// The row that serves the product, or nullptr.
const GemmRow* find_gemm_row(std::span<const GemmRow> rows, DType dtype, int64_t N, int64_t K, int64_t T);

/// The table as a file, and the SHA-256 of that, which receipts quote.
std::string print_gemm_rows(std::span<const GemmRow> rows);
std::string gemm_table_digest(std::span<const GemmRow> rows);

}  // namespace vivace::ops
