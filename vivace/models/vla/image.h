// ImagePreprocessor of any size as the network wants them: scaled to fit, centred, the rest black.
#pragma once
#include <vector>

#include "vivace/engine/runtime.h"
#include "vivace/engine/policy.h"
#include "vivace/ops/registry.h"

namespace vivace::models::vla {

/// The two reference flavours. They differ by up to half of the range where images shrink: a policy must see the
/// one that it was trained with.
enum class Resize : uint8_t {
  openpi,   // antialiased triangle filter in fixed point, u8 between the two passes and after them
  lerobot,  // bilinear without antialiasing, in f32
  smolvla,  // the same with all padding before the image
};

/// Moves RGB frames to where the policy runs, as they are, and scales them there. Frames of one size that follow each
/// other are one launch; u8 frames of the network's own size need none.
class ImagePreprocessor {
 public:
  /// `pixels` [n, side, side, 3], u8 or [-1, 1], where ops run; it and `machine` must outlive this. Makes room for
  /// `frames` of 480 x 640 and loads the kernel. Errors: OutOfMemory, and the op's.
  Status open(engine::Runtime& runtime, const Tensor& pixels, Resize kind, int64_t frames);
  /// A call's frames begin. Errors: OutOfMemory where they take `bytes` and no call before took so many.
  Status begin(size_t bytes);
  /// Sends the frame, which is the next image, off from a copy; one that is page-locked and packed from where it lies,
  /// where it must stay until the stream is synchronized.
  Status add(const engine::Frame& frame);
  /// The frames are all there. What is allocated, is for a size that was not seen before.
  Status scale();
  size_t bytes() const { return staging_.bytes() + raw_.bytes(); }

 private:
  /// Neighbours of one size.
  struct Run {
    int64_t height, width, first, count;
    size_t at;  // in staging_ and in raw_
    bool operator==(const Run&) const = default;
  };
  struct Prepared {
    Run run;
    exec::Launch launch;
  };
  Result<const exec::Launch*> launch_of(const Run& run);
  bool as_they_are(const Run& run) const {
    return pixels_.dtype == DType::u8 && run.height == pixels_.shape[1] && run.width == pixels_.shape[2];
  }
  char* source() const { return static_cast<char*>(raw_.data() != nullptr ? raw_.data() : staging_.data()); }

  engine::Runtime* runtime_ = nullptr;
  Tensor pixels_;
  Resize kind_ = Resize::openpi;
  exec::Buffer staging_, raw_;  // frames where the host writes them and, on a device, where ops read them
  size_t used_ = 0;
  int64_t images_ = 0;
  std::vector<Run> runs_;
  std::vector<Prepared> prepared_;
};

}  // namespace vivace::models::vla
