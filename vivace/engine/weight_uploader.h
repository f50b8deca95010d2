// WeightUploader: weights copied to where a machine's ops read them, joined, converted, quantized, or drawn at random.
#pragma once
#include <initializer_list>
#include <vector>

#include "vivace/base/tensor.h"
#include "vivace/engine/runtime.h"

namespace vivace::engine {

/// What a quantized matrix [N, K] comes with, as gemm takes it. e4m3: `row`. FP4: `block` and `whole`.
struct Scales {
  Tensor row = {};    // [N] f32; of experts [E, N]
  Tensor block = {};  // [N, K/16] e4m3
  Tensor whole = {};  // [1] f32
  bool present() const { return row.present() || block.present(); }
};

/// Collects weights, then reserves one region for all of them and fills it. Tensors of the caller are
/// rewritten at commit() and must not move before it. A view without data (see
/// WeightSource::make_synthetic) is filled: vectors with 1, biases with 0, matrices with N(0, 0.02).
class WeightUploader {
 public:
  /// How the rows of joined matrices follow each other: all of one after all of another, in turn, or, of matrices of
  /// experts [E, M, K], all of one after all of another in each expert.
  enum class Rows : uint8_t { after, alternate, within };

  /// `t` keeps its elements' values in `dtype`; a block-quantized `t` may also keep its own format. Rows whose width
  /// is a multiple of 32 may become q4_0 or q8_0 here and in join().
  void add(Tensor* t, DType dtype, bool bias = false);
  /// `parts`, vectors or matrices with equal rows, become one; `whole` gets it, and the parts views of it.
  /// `whole` may be null.
  void join(std::initializer_list<Tensor*> parts, Tensor* whole, DType dtype, Rows rows = Rows::after,
            bool bias = false);
  /// Gates and ups of experts [E, M, K] within each, and behind them one more expert's, [M, K]: `gate` and `up` become
  /// views of E + 1.
  void join_experts(Tensor* gate, Tensor* up, const Tensor& last_gate, const Tensor& last_up, DType dtype);
  /// The same as e4m3 with a scale a row, [E, 2M], which `scale` gets; without the last two none lies behind them.
  void quantize_experts(Tensor* gate, Tensor* up, const Tensor& last_gate, const Tensor& last_up, Tensor* scale);
  /// The same as e4m3 with a scale a row, which `scale` gets; the parts stay as they were. One part will do.
  void quantize(std::initializer_list<Tensor*> parts, Tensor* whole, Tensor* scale, Rows rows = Rows::after);
  /// The same as FP4; rows are a multiple of 16 wide.
  void quantize_block_scaled(std::initializer_list<Tensor*> parts, Tensor* whole, Tensor* block_scale,
                             Tensor* whole_scale, Rows rows = Rows::after);
  /// The same of matrices that are FP4 already, with `scales` of each; they have one whole scale.
  void keep_block_scaled(std::initializer_list<Tensor*> parts, std::vector<Scales> scales, Tensor* whole,
                         Tensor* block_scale, Tensor* whole_scale, Rows rows = Rows::after);
  /// The same of matrices that are e4m3 already, each row with its scale.
  void keep_scaled(std::initializer_list<Tensor*> parts, std::vector<Scales> scales, Tensor* whole, Tensor* scale,
                   Rows rows = Rows::after);
  int64_t bytes() const { return bytes_; }
  /// Errors: OutOfMemory says how much is missing; Unsupported names a conversion that no op does.
  Status commit(Runtime& runtime);
  /// The same into memory of the caller's, bytes() of it, aligned as reserve() does.
  Status commit_at(Runtime& runtime, void* region);

 private:
  /// One matrix or vector of the region.
  struct Group {
    std::vector<Tensor*> parts;
    std::vector<Tensor> from;  // of each part: in host memory, or without data
    Tensor* whole;             // may be null
    std::vector<Tensor*> scale;  // row, or block and whole; none: not quantized
    Tensor to;                 // data: offset in the region until commit(); so in to_scale
    std::vector<Tensor> to_scale;
    Rows rows;
    bool bias;
    std::vector<Scales> given;  // of each part, in host memory, where parts are FP4 or e4m3 already
    std::vector<Tensor> behind;  // of each part within: one more expert's

    bool drawn() const { return from.front().data == nullptr; }
    /// Whether copying its parts is all there is to do.
    bool plain() const;
    /// Part i's rows in `all`, which has the group's shape.
    Tensor part_of(const Tensor& all, size_t i) const;
    struct Piece {
      Tensor from, to;
    };
    /// Whether a cast of each piece is all there is to do: another dtype, or rows that alternate. Blocks that stay what
    /// they are, are cast as the words they consist of.
    bool casts() const;
    /// What lies in one run on both sides, of those rows in `all`: each part, or each expert's share of it.
    std::vector<Piece> pieces(const Tensor& all) const;
    bool of_experts() const { return to.shape.rank == 3; }
  };
  struct Scratch;
  void declare(std::initializer_list<Tensor*> parts, Tensor* whole, std::vector<Tensor*> scale, DType dtype, Rows rows,
               bool bias, std::vector<Tensor> behind = {});
  Status fill(Runtime& runtime, const Group& g, Scratch& scratch) const;
  /// All groups that casts() holds for: a block of rows comes over while the one before is cast.
  Status cast_all(Runtime& runtime, Scratch& scratch) const;
  /// A group of parts that become blocks, or are some of no whole words: rows are laid out on the host.
  Status encode(Runtime& runtime, const Group& g) const;
  /// A group of FP4 or e4m3 parts, codes and scales as they are.
  Status keep(Runtime& runtime, const Group& g) const;
  Status keep_in_turn(Runtime& runtime, const Group& g, Scratch& scratch) const;
  Status quantize(Runtime& runtime, const Group& g, const Tensor& from, Scratch& scratch) const;
  /// Experts, one after the other: all at once would want as much memory again as their bf16.
  Status quantize_by_expert(Runtime& runtime, const Group& g, Scratch& scratch) const;
  Status draw(Runtime& runtime, const Group& g, const Tensor& to, Scratch& scratch) const;

  std::vector<Group> groups_;
  exec::Buffer region_;
  int64_t bytes_ = 0;
};

}  // namespace vivace::engine
