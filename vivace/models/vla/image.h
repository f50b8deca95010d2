// Pictures of any size as the network wants them: scaled to fit, centred, the rest black.
#pragma once
#include <vector>

#include "vivace/engine/policy.h"

namespace vivace::models::vla {

/// The two reference flavours. They differ by up to half of the range where pictures shrink: a policy must see the
/// one that it was trained with.
enum class Resize : uint8_t {
  openpi,   // antialiased triangle filter in fixed point, u8 between the two passes and after them
  lerobot,  // bilinear without antialiasing, in f32
};

/// Scales RGB frames of one size to `side` x `side`. Weights are made once a size.
class Resizer {
 public:
  Resizer(Resize kind, int64_t side) : kind_(kind), side_(side) {}
  /// The picture [side, side, 3]: openpi's in u8 ...
  void run(const engine::Frame& frame, uint8_t* out);
  /// ... lerobot's as f32 in [-1, 1].
  void run(const engine::Frame& frame, float* out);

 private:
  /// Of one axis: for each output the first input and the weights from there on.
  struct Axis {
    int64_t from = 0, to = 0, taps = 0, before = 0;  // sizes, weights an output, padding
    std::vector<int32_t> first, count, fixed;        // fixed: openpi's weights, 22 bits
    std::vector<float> share;                        // lerobot's weight of the second input
  };
  void prepare(const engine::Frame& frame);
  void prepare(Axis* axis, int64_t from, int64_t to) const;

  Resize kind_;
  int64_t side_;
  int64_t height_ = 0, width_ = 0;
  Axis x_, y_;
  std::vector<uint8_t> rows_;    // openpi: [height, to, 3] after the first pass
  std::vector<int32_t> sums_;    // of one row of the second pass
};

}  // namespace vivace::models::vla
