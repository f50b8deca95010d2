// One tensor of many layers', where they lie: what ops that go through all layers read.
#pragma once
#include <vector>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"

namespace vivace::models {

/// [layers, ...]: a view of the layers' tensors `all`, which are alike and follow each other at one distance. Errors:
/// Unsupported names the layer whose tensor is unlike, or says that they do not.
Result<Tensor> stacked(const char* name, const std::vector<const Tensor*>& all);

}  // namespace vivace::models
