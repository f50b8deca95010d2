#include "vivace/engine/policy.h"

namespace vivace::engine {

Status PolicyModel::generate(std::span<const Observation>) {
  return Status(Code::kUnsupported, "generate: this policy's actions are no tokens; use predict()");
}

Result<std::span<const int32_t>> PolicyModel::tokens(int) const {
  return Status(Code::kUnsupported, "tokens: this policy's actions are no tokens; use predict()");
}

Result<std::vector<float>> PolicyModel::calibrate(std::span<const Observation>, double) {
  return Status(Code::kUnsupported, "calibrate: this policy has no precision with fixed scales");
}

Status PolicyModel::set_act_scales(std::span<const float>) {
  return Status(Code::kUnsupported, "act_scales: this policy has no precision with fixed scales");
}

Result<WorkTimes> PolicyModel::place_gates() {
  return Status(Code::kUnsupported, "place_gates: calls of this policy are not divided");
}

Status PolicyModel::use_whole(bool) {
  return Status(Code::kUnsupported, "use_whole: this policy has graphs for one part of its device only");
}

}  // namespace vivace::engine
