// WeightSource: tensors of a checkpoint by declared names, checked, zero-copy where alignment allows.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/model.h"
#include "vivace/engine/weight_uploader.h"

namespace vivace::engine {

/// Where one weight comes from. "{}" in a name stands for the layer's number; an empty name means that
/// the format does not carry this weight. With "{e}" a hub checkpoint keeps one [N, K] tensor for each of
/// the E matrices of a [E, N, K] weight.
struct WeightRule {
  const char* gguf;
  const char* hf;
  Shape shape;
  bool hf_transposed = false;  // the hub's matrix is [in, out]
  int64_t turns = 0;           // n > 0: the hub's matrix has twice as many rows, n of one weight, n of another, in turn
  bool second = false;         // of these two
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
  /// Null for what is no such matrix.
  const Scales* scales_of(const Tensor& t) const;
  /// Such a matrix as bf16.
  Tensor widened(const Tensor& t) const;
  /// A plain tensor's values in another plain dtype, in memory of this object.
  Tensor converted(const Tensor& t, DType to) const;
  /// A copy whose pieces of `rows` rows from row `first` on, as many as `order` has, are the tensor's in that order;
  /// its other rows are where they were. A vector's rows are its elements.
  Tensor reordered(const Tensor& t, int64_t first, int64_t rows, std::span<const int64_t> order) const;
  /// The same of a matrix's columns, all of them in pieces. Blocks that two pieces share become bf16.
  Tensor reordered_columns(const Tensor& t, std::span<const int64_t> order) const;
  /// A view of the mapped file; a matrix of one row may be stored as a vector. Copied once, into memory of this object:
  /// a tensor whose address breaks its dtype's alignment, a transposed one, experts that lie apart, rows in turn with
  /// another weight's, and e4m3 with a scale a 128 x 128 block
  /// ("weight_scale_inv" beside "weight"), which becomes bf16. So does FP4 that is not kept: u8 codes "weight" with
  /// e4m3 "weight_scale" of 16 columns and one f32 "weight_scale_2", as ModelOpt writes NVFP4, or "weight_packed" and
  /// an f32 "weight_global_scale" that scales are divided by, as compressed-tensors does. Errors: NotFound names the
  /// tensor, InvalidShape both shapes, Unsupported a dtype no op multiplies, CorruptData scales that are no numbers.
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
  Result<Tensor> half(const WeightRule& rule, const std::string& name) const;
  Result<Tensor> gather(const WeightRule& rule, const std::string& name) const;
  Result<Tensor> unscale(const TensorEntry& weight) const;
  /// Checks codes and scales of the weight `name`; a view of the codes. `divides`: the whole scale is a divisor.
  Result<Tensor> fp4(const TensorEntry& codes, const std::string& name, const Shape& shape, bool divides) const;
  /// A dense tensor in memory of this object.
  Tensor own(DType dtype, const Shape& shape) const;
  Checkpoint checkpoint_;
  std::string prefix_;
  bool synthetic_ = false, keep_fp4_ = false;
  struct Fp4Scales {
    Scales scales;
    float divisor = 0;  // whose reciprocal scales.whole is, where the checkpoint divides
  };
  mutable std::map<const void*, Fp4Scales> scales_;  // of FP4 matrices, by where their codes are
  mutable int64_t copied_ = 0;
  mutable std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace vivace::engine
