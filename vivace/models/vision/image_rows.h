// What the host writes of an image before the vision tower sees it.
#pragma once
#include <vector>

#include "vivace/models/vision/config.h"

namespace vivace::models::vision {

/// Lines and columns of patches.
struct Grid {
  int32_t lines = 0, columns = 0;
  int64_t patches() const { return int64_t{lines} * columns; }
  bool operator==(const Grid&) const = default;
};

/// RGB in rows; plane 0: the three values of a pixel lie together, else so many bytes apart.
struct Pixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0, stride = 0, plane = 0;
};
inline Grid grid_of(const Pixels& p, const VisionConfig& c) {
  return {static_cast<int32_t>(p.height / c.patch), static_cast<int32_t>(p.width / c.patch)};
}

/// Patches of a token side by side, tokens line by line: the pixels [patches, patch, patch, 3], and line and column of
/// each patch. Height and width are multiples of a token's side.
void write_patches(const Pixels& image, const VisionConfig& config, uint8_t* pixels, int32_t* line, int32_t* column);

/// The learned positions of a grid's patches in that order, [patches, width] of `dtype` (f32 or bf16): between the
/// four around where a patch lies, of a table that spans the image whatever its size; of SigLIP2 the table as an image
/// that is scaled to the grid's size, bilinear with antialiasing. Returns the end of what was written.
char* write_positions(const Grid& grid, const VisionConfig& config, const std::vector<float>& table, DType dtype,
                      char* to);

}  // namespace vivace::models::vision
