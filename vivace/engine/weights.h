// WeightSource: tensors of a checkpoint by declared names, checked, zero-copy where alignment allows.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/model.h"
#include "vivace/engine/weight_uploader.h"

namespace vivace::engine {

/// Which rows of a hub's matrix are one weight's, where it holds several: the matrix goes by groups of `group` rows,
/// and the weight is the first piece of all groups, then the second of all groups, and so on.
struct RowPieces {
  struct Piece {
    int64_t first = 0, rows = 0;
  };
  int64_t group = 0;  // 0: the matrix is this weight's alone
  std::array<Piece, 3> pieces{};  // of a group
};

/// Where one weight comes from. "{}" in a name stands for the layer's number; an empty name means that
/// the format does not carry this weight. With "{e}" a hub checkpoint keeps one [N, K] tensor for each of
/// the E matrices of a [E, N, K] weight.
struct WeightRule {
  const char* gguf;
  const char* hf;
  Shape shape;
  bool hf_transposed = false;  // the hub's matrix is [in, out]
  RowPieces rows{};
};

/// Owns the checkpoint's mapping for as long as views of it live.
class WeightSource {
 public:
  explicit WeightSource(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  const Checkpoint& checkpoint() const { return checkpoint_; }
  bool has(const WeightRule& rule, int layer = -1) const;
  /// From now on every weight is there, as a bf16 view of the declared shape without data, but those that
  /// only has() asks for.
  void make_synthetic() { synthetic_ = true; }
  bool synthetic() const { return synthetic_; }
  /// Put before every hub name from now on.
  void set_hub_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  /// From now on FP4 matrices of layers are given as they are stored, e2m1, and scales_of() gives what they come with.
  void keep_fp4() { keep_fp4_ = true; }
  /// The same of e4m3 matrices with a scale a row or one in all, which is every row's.
  void keep_e4m3() { keep_e4m3_ = true; }
  /// Null for what is no such matrix.
  const Scales* scales_of(const Tensor& t) const;
  /// Such a matrix as bf16, or as f16 where its scales are f16.
  Tensor widened(const Tensor& t) const;
  /// Matrices that come with scales, by how they are stored, of those that were read.
  struct Stored {
    std::string form;           // "e4m3 by row", "e4m3 by tensor", "e4m3 by 128 x 128", "e2m1 by 16"
    int64_t kept, dequantized;  // in 16 bits; an expert counts as one matrix
  };
  std::vector<Stored> stored() const;
  /// A plain tensor's values in another plain dtype, in memory of this object.
  Tensor converted(const Tensor& t, DType to) const;
  /// A copy whose pieces of `rows` rows from row `first` on, as many as `order` has, are the tensor's in that order;
  /// its other rows are where they were. A vector's rows are its elements.
  Tensor reordered(const Tensor& t, int64_t first, int64_t rows, std::span<const int64_t> order) const;
  /// The same of a matrix's columns, all of them in pieces. Blocks that two pieces share become bf16.
  Tensor reordered_columns(const Tensor& t, std::span<const int64_t> order) const;
  /// A view of the mapped file; a matrix of one row may be stored as a vector. Copied once, into memory of this object:
  /// a tensor whose address breaks its dtype's alignment, a transposed one, experts that lie apart, rows between
  /// another weight's, and e4m3 with a scale a 128 x 128 block ("weight_scale_inv" or "weight_scale" beside "weight"),
  /// which becomes bf16: code times scale in f32, rounded once. So do matrices that are not kept: e4m3 whose
  /// "weight_scale" has one element, or one a row, [N] or [N, 1]; FP4, u8 codes "weight" with
  /// e4m3 "weight_scale" of 16 columns and one f32 "weight_scale_2", as ModelOpt writes NVFP4, or "weight_packed" and
  /// an f32 "weight_global_scale" that scales are divided by, as compressed-tensors does. Errors: NotFound names the
  /// tensor, InvalidShape both shapes, Unsupported a dtype no op multiplies, CorruptData scales that are no positive
  /// finite numbers.
  Result<Tensor> get(const WeightRule& rule, int layer = -1) const;
  /// Bytes of the mapped files, and of what was copied out of them.
  int64_t bytes() const;
  int64_t copied_bytes() const { return copied_; }
  /// IoError if a file that weights are read from was cut short or overwritten in place. No allocation.
  Status check_files() const;
  /// What check_files() finds without a system call: bytes that have gone and read as zeros.
  Status check_lost() const;
  /// Reads every page of the files once, so that no step faults.
  void touch() const;

 private:
  std::string name_of(const WeightRule& rule, int layer) const;
  Result<Tensor> one(const std::string& name, const Shape& shape, bool transposed) const;
  Result<Tensor> gathered_rows(const WeightRule& rule, const std::string& name) const;
  Result<Tensor> gather(const WeightRule& rule, const std::string& name) const;
  /// As bf16 of blocks; of rows and whole tensors a view of the codes, whose scales are checked.
  Result<Tensor> e4m3(const TensorEntry& weight) const;
  Result<Tensor> unblock(const TensorEntry& weight, const TensorEntry& scale) const;
  Result<Tensor> rows_of(const TensorEntry& weight, const TensorEntry& scale) const;
  bool keeps(DType t) const { return t == DType::e2m1 ? keep_fp4_ : keep_e4m3_; }
  /// A matrix with scales, to as many 16-bit values as it has.
  void dequantize(const Tensor& t, uint16_t* to) const;
  /// ... in memory of this object; any other as it is.
  Tensor plain(const Tensor& t) const { return scaled(t) ? widened(t) : t; }
  bool scaled(const Tensor& t) const { return t.dtype == DType::e2m1 || t.dtype == DType::e4m3; }
  /// Checks codes and scales of the weight `name`; a view of the codes. `divides`: the whole scale is a divisor.
  Result<Tensor> fp4(const TensorEntry& codes, const std::string& name, const Shape& shape, bool divides) const;
  /// A dense tensor in memory of this object.
  Tensor own(DType dtype, const Shape& shape) const;
  Checkpoint checkpoint_;
  std::string prefix_;
  bool synthetic_ = false, keep_fp4_ = false, keep_e4m3_ = false;
  struct WithScales {
    Scales scales;
    const TensorEntry* codes;
    float divisor = 0;          // whose reciprocal scales.whole is, where the checkpoint divides
    DType wide = DType::bf16;
  };
  mutable std::map<const void*, WithScales> scales_;  // by where the codes are
  /// Of each that was read, its form, and of those that became 16 bits.
  mutable std::map<const TensorEntry*, const char*> forms_;
  mutable std::set<const TensorEntry*> dequantized_;
  mutable int64_t copied_ = 0;
  mutable std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace vivace::engine
