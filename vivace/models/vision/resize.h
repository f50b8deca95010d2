// Frames of another size, as image libraries make them: levels in, levels out.
#pragma once
#include <vector>

#include "vivace/models/vision/image_rows.h"

namespace vivace::models::vision {

/// area: OpenCV's INTER_AREA, the mean of what an output pixel covers; where one axis grows, its linear form for both.
/// bilinear, bicubic: Pillow's filters, as wide as an output pixel is in the frame, in fixed point and with levels
/// between columns and lines. smooth_bicubic: the same in f32, levels at the end alone, as torch has it.
enum class Filter : uint8_t { area, bilinear, bicubic, smooth_bicubic };

class Resizer {
 public:
  /// `from`, whose plane is 0, as height x width pixels of RGB, dense, at `to`, which it does not overlap. Allocates
  /// for sizes beyond those before.
  void run(const Pixels& from, int64_t height, int64_t width, Filter filter, uint8_t* to);

 private:
  /// Input pixels of an output pixel: `count` from `first` on; their weights lie from `at` on.
  struct Span {
    int64_t first, count;
    size_t at;
  };
  /// Of one axis.
  struct Taps {
    std::vector<Span> spans;
    std::vector<int32_t> fixed;   // of Pillow's filters: 22 bits; of linear: 11 bits, two a pixel
    std::vector<float> shares;    // of area, smooth_bicubic
  };
  static void filter_taps(int64_t from, int64_t to, Filter filter, Taps* taps);
  static void area_taps(int64_t from, int64_t to, Taps* taps);
  static void linear_taps(int64_t from, int64_t to, Taps* taps);
  static void narrow_line(const uint8_t* line, const Taps& columns, float* out);
  void filtered(const Pixels& from, int64_t height, int64_t width, Filter filter, uint8_t* to);
  void smooth(const Pixels& from, int64_t height, int64_t width, uint8_t* to);
  void whole_areas(const Pixels& from, int64_t height, int64_t width, uint8_t* to) const;
  void areas(const Pixels& from, int64_t height, int64_t width, uint8_t* to);
  void linear(const Pixels& from, int64_t height, int64_t width, uint8_t* to);

  Taps rows_, columns_;
  std::vector<uint8_t> narrow_;        // columns done, lines not
  std::vector<float> smooth_, line_, sum_;  // columns done; of area: of a line; sums of lines
  std::vector<int32_t> lines_[2];      // of linear: columns of two lines
};

}  // namespace vivace::models::vision
