// Arena: every buffer of a model, sized first, then reserved once. Nothing grows after commit().
#pragma once
#include <string>
#include <vector>

#include "vivace/base/tensor.h"
#include "vivace/engine/runtime.h"
#include "vivace/engine/model.h"

namespace vivace::engine {

class Arena {
 public:
  explicit Arena(std::string name = "arena") : name_(std::move(name)) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Declares a dense tensor and returns where its view will be written at commit(). `view` must
  /// outlive the arena's commit.
  void declare(std::string name, DType dtype, Shape shape, Tensor* view);
  /// Reserves, zeroes and touches every byte (no page fault later) and fills in the views.
  /// Errors: OutOfMemory with the size; FailedPrecondition when already committed.
  Status commit(Runtime& runtime);
  int64_t bytes() const { return bytes_; }
  std::vector<MemoryLine> lines() const;

 private:
  struct Region {
    std::string name;
    Tensor view;
    Tensor* target;
    int64_t offset;
  };
  std::string name_;
  std::vector<Region> regions_;
  exec::Buffer buffer_;
  int64_t bytes_ = 0;
};

}  // namespace vivace::engine
