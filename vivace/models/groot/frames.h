// FrameScaler: frames of any size as the vision tower takes them, the way the checkpoint's processor makes them.
#pragma once
#include <optional>
#include <string>

#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/models/groot/config.h"
#include "vivace/models/vision/resize.h"

namespace vivace::models::groot {

/// The multiple of a token's side that a processor scales a side to: the nearest, of two the even one; at least one.
int64_t nearest_multiple(int64_t pixels, int64_t side);

/// What processor_config.json says of frames.
struct FrameRules {
  /// none: frames come as the network takes them. area: albumentations' resize with OpenCV's INTER_AREA, shape kept.
  /// bicubic: lerobot's, bilinear: Isaac-GR00T's resize by torchvision, antialiased, shape not kept.
  enum class Kind : uint8_t { none, area, bicubic, bilinear } kind = Kind::none;
  bool letterbox = false;          // black beside or around the frame makes it a square first
  int64_t edge = 0;                // of area: the shorter side; of bicubic: both sides before the crop
  int64_t height = 0, width = 0;   // bicubic, bilinear: of the result
  double crop = 1;                 // area, bicubic: share of each side that stays, in the middle
  int64_t crop_height = 0, crop_width = 0;  // bilinear: what stays
  int64_t side = 32, least = 0;    // of a token; pixels that the language model's own processor wants at least
};

/// The rules of `resize`, PolicyOptions' (auto, none, area, bicubic, bilinear). auto: what processor_config.json says:
/// area with use_albumentations, else bicubic, of N1.6 bilinear; none where it says no sizes, or is not there. Errors:
/// InvalidArgument (another word), NotFound (a kind without the file or its sizes), CorruptData names the field.
Result<FrameRules> read_frame_rules(const engine::Checkpoint& checkpoint, const GrootConfig& config,
                                    const std::string& resize);

const char* name(FrameRules::Kind kind);

class FrameScaler {
 public:
  struct Size {
    int64_t height = 0, width = 0;
  };
  FrameScaler() = default;
  explicit FrameScaler(const FrameRules& rules) : rules_(rules) {}
  bool on() const { return rules_.kind != FrameRules::Kind::none; }
  const FrameRules& rules() const { return rules_; }
  /// Of the result, multiples of a token's side; none where a step of the way has more than `most` pixels.
  std::optional<Size> size(int64_t height, int64_t width, int64_t most) const;
  /// The result, until the next call. Allocates for sizes beyond those before. `from` is a frame whose size() is known.
  vision::Pixels scale(const vision::Pixels& from);

 private:
  /// The sizes of a frame on its way; `top`, `left`: of the crop.
  struct Way {
    Size square, first, crop, second, last;
    int64_t top = 0, left = 0;
  };
  Way way(int64_t height, int64_t width) const;
  vision::Filter filter() const;

  FrameRules rules_;
  vision::Resizer resizer_;
  std::vector<uint8_t> square_, first_, second_, last_;
};

}  // namespace vivace::models::groot
