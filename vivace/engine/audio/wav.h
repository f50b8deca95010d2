// WAV files: PCM of 8, 16, 24 and 32 bits and floats of 32 and 64, plain and extensible, as a view of bytes that stay
// where they are.
#pragma once
#include <cstdint>
#include <span>

#include "vivace/base/status.h"

namespace vivace::engine {

/// What a file may say of itself. Files beyond are refused before anything is made of them.
struct AudioLimits {
  int least_rate = 1000, most_rate = 384000;  // samples a second
  int most_channels = 32;
  double most_seconds = 4 * 3600;
};

enum class SampleForm : uint8_t { u8, i16, i24, i32, f32, f64 };

class Wav {
 public:
  /// `file` must outlive this. A data chunk that says 2^32 - 1 or 0x7ffff000 bytes, as writers to a pipe do, goes to
  /// the file's end. Errors: CorruptData (no WAV, chunks beyond the end, sizes that contradict each other), Unsupported
  /// names another coding, LimitExceeded names the limit.
  static Result<Wav> parse(std::span<const uint8_t> file, const AudioLimits& limits = {});

  int rate() const { return rate_; }
  int channels() const { return channels_; }
  int64_t frames() const { return frames_; }  // samples of each channel
  SampleForm form() const { return form_; }
  /// The mean of the channels of frames [first, first + out.size()), full scale 1: whole numbers over 2^(bits - 1).
  /// Errors: InvalidArgument beyond the last frame; CorruptData names a sample that is not finite.
  Status mono(int64_t first, std::span<float> out) const;

 private:
  int rate_ = 0, channels_ = 0;
  int64_t frames_ = 0;
  SampleForm form_ = SampleForm::i16;
  std::span<const uint8_t> data_;
};

}  // namespace vivace::engine
