// Images of a prompt: where they stand, which way their tokens' angles turn, and the numbers that tell their keys and
// values from those of other images.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vivace/base/siphash.h"
#include "vivace/engine/model.h"

namespace vivace::serve {

/// An image, and where its tokens stand in the prompt.
struct PromptImage {
  std::shared_ptr<const std::vector<uint8_t>> pixels;  // RGB in rows
  int32_t height = 0, width = 0;                       // multiples of engine::ImageLimits::side
  int32_t first = 0;                                   // of its tokens
  Hash128 content;  // of size and pixels, keyed: others cannot make two that are alike
};
/// Errors: InvalidShape where the pixels are not height x width x 3 values; IoError without the system's randomness.
Result<PromptImage> prompt_image(std::vector<uint8_t> pixels, int32_t height, int32_t width, int32_t first);
/// Errors: Unsupported for a model that takes none; InvalidShape for a size that it does not take; InvalidArgument
/// where images and the tokens that stand for them do not match.
Status check_images(std::span<const PromptImage> images, std::span<const int32_t> prompt,
                    const engine::ImageLimits& limits);

/// An image as the batcher feeds it.
struct ShownImage {
  int32_t first = 0, tokens = 0, columns = 0;
  int32_t turn = 0;    // what the angles of its first token add to its position, in all axes
  int32_t behind = 0;  // the same of the words behind it
  int32_t place = -1;  // of those that steps read
};
std::vector<ShownImage> shown(std::span<const PromptImage> images, int side);
/// What angles add to position `pos`, by time, line and column.
std::array<int32_t, 3> shift_at(std::span<const ShownImage> images, int32_t pos);
/// Which of `images` has a token at `pos`; their number: none.
size_t image_at(std::span<const ShownImage> images, int32_t pos);

/// Numbers of images, below 0, that no other image has had: what stands for an image's tokens where computed tokens are
/// found again. The least recently asked is forgotten first, and gets another number when it comes again.
class ImageNumbers {
 public:
  static constexpr size_t kKept = 1024;
  /// 0: none is left.
  int32_t of(const Hash128& content);

 private:
  struct Entry {
    Hash128 content;
    int32_t number = 0;
    uint64_t used = 0;
  };
  std::vector<Entry> entries_;
  int32_t last_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace vivace::serve
