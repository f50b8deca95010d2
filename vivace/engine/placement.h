// Placement: weights copied to where a machine's ops read them, joined, converted, or drawn at random.
#pragma once
#include <initializer_list>
#include <vector>

#include "vivace/base/tensor.h"
#include "vivace/engine/machine.h"

namespace vivace::engine {

/// Collects weights, then reserves one region for all of them and fills it. Views in the caller's
/// structures are rewritten at commit() and must not move before it. A view without data (see
/// WeightSource::synthetic) is filled: vectors with 1, biases with 0, matrices with N(0, 0.02).
class Placement {
 public:
  /// `t` keeps its elements' values in `dtype`; a block-quantised `t` may also keep its own format.
  void add(Tensor* t, DType dtype, bool bias = false);
  /// The rows of `parts`, one after the other, become `whole` (may be null), and the parts views of it.
  void join(std::initializer_list<Tensor*> parts, Tensor* whole, DType dtype, bool bias = false);
  int64_t bytes() const { return bytes_; }
  /// Errors: OutOfMemory says how much is missing; Unsupported names a conversion that no op does.
  Status commit(Machine& machine);

 private:
  struct Item {
    Tensor* target;
    Tensor from;  // in host memory, or without data
    Tensor to;    // data: offset in the region until commit()
    bool bias;
  };
  Status convert(Machine& machine) const;
  Status draw(Machine& machine) const;

  std::vector<Item> items_;
  struct Joined {
    Tensor* whole;
    size_t first, count;  // in items_
  };
  std::vector<Joined> joined_;
  exec::Buffer region_;
  int64_t bytes_ = 0;
};

}  // namespace vivace::engine
