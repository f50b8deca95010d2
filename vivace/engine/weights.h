// WeightSource: tensors of a checkpoint by declared names, checked, zero-copy where alignment allows.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/model.h"

namespace vivace::engine {

/// Where one weight comes from. "{}" in a name stands for the layer's number; an empty name means that
/// the format does not carry this weight.
struct WeightRule {
  const char* gguf;
  const char* hf;
  Shape shape;
};

/// Owns the checkpoint's mapping for as long as views of it live.
class WeightSource {
 public:
  explicit WeightSource(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  const Checkpoint& checkpoint() const { return checkpoint_; }
  bool has(const WeightRule& rule, int layer = -1) const;
  /// A view of the mapped file; a tensor whose address breaks its dtype's alignment is copied once.
  /// Errors: NotFound names the tensor, InvalidShape both shapes, Unsupported a dtype no op multiplies.
  Result<Tensor> get(const WeightRule& rule, int layer = -1) const;
  /// Bytes of the mapped files.
  int64_t bytes() const;
  /// Reads every page of the files once, so that no step faults.
  void touch() const;

 private:
  std::string name_of(const WeightRule& rule, int layer) const;
  Checkpoint checkpoint_;
  mutable std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace vivace::engine
