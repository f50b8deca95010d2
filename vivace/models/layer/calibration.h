// Calibration: the scale of each activation quantization point, from what observations bring there.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vivace/exec/stream.h"
#include "vivace/models/layer/precision_plan.h"

namespace vivace::engine {
class Runtime;
}

namespace vivace::models {

class Calibration {
 public:
  explicit Calibration(int64_t places) : largest_(static_cast<size_t>(places)) {}
  /// What is seen from here on belongs to one more observation.
  void begin() {
    for (auto& l : largest_) l.push_back(0);
  }
  /// The first `valid` rows of x, f32 or bf16, which `stream` writes. Errors: CorruptData for what is not finite.
  Status see(exec::Stream& stream, int64_t place, const Tensor& x, int64_t valid);
  /// So that the percentile over observations of each place's largest magnitude becomes e4m3's largest.
  std::vector<float> scales(double percentile);

 private:
  std::vector<std::vector<float>> largest_;  // of each place, an observation each
  std::vector<std::byte> copy_;
};

/// Errors: FailedPrecondition (the plan has no unrounded activations), InvalidArgument.
Status check_calibration(const PrecisionPlan& plan, size_t observations, double percentile);
/// Errors: InvalidArgument, of another count than `places` or of values that are no scales.
Status check_act_scales(const char* precision, bool fixed, std::span<const float> scales, int64_t places);
inline Status check_act_scales(const PrecisionPlan& plan, std::span<const float> scales, int64_t places) {
  return check_act_scales(plan.name, plan.fixed, scales, places);
}
/// Puts other scales [places] where a loaded policy reads them, behind what its stream has. Errors: FailedPrecondition
/// (the plan has none that are fixed), those of check_act_scales().
Status upload_act_scales(engine::Runtime& runtime, const PrecisionPlan& plan, std::span<const float> scales,
                         int64_t places, const Tensor& to);

}  // namespace vivace::models
