// Forms: in which dtypes a model holds the matrices of its products, for reports.
#pragma once
#include <string>
#include <vector>

#include "vivace/base/tensor.h"

namespace vivace::engine {

/// Parts, and what they hold, in the order in which they came first.
class Forms {
 public:
  /// A part that is one matrix, or a product of each of its layers. An absent matrix is left out.
  void add(const std::string& part, const Tensor& w) { add(part, "", w); }
  void add(const std::string& part, const std::string& product, const Tensor& w);
  /// {"part": "bf16", "part of layers": {"product": "e4m3", "another": "q4_0, q8_0"}}
  std::string json() const;

 private:
  struct Form {
    std::string part, product;
    std::vector<DType> dtypes;  // each once
  };
  std::vector<Form> forms_;
};

}  // namespace vivace::engine
