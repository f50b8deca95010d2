#include "vivace/engine/policy.h"

namespace vivace::engine {

Status PolicyModel::generate(std::span<const Observation>) {
  return Status(Code::kUnsupported, "generate: this policy's actions are no tokens; use predict()");
}

Result<std::span<const int32_t>> PolicyModel::tokens(int) const {
  return Status(Code::kUnsupported, "tokens: this policy's actions are no tokens; use predict()");
}

}  // namespace vivace::engine
