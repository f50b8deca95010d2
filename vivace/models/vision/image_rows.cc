#include "vivace/models/vision/image_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vivace/base/float_types.h"

namespace vivace::models::vision {
namespace {

/// f(line, column) of a grid's patches in their order.
template <class F>
void for_patches(const Grid& g, int64_t merge, F&& f) {
  for (int64_t token = 0; token < g.patches() / (merge * merge); ++token)
    for (int64_t k = 0; k < merge * merge; ++k)
      f(token / (g.columns / merge) * merge + k / merge, token % (g.columns / merge) * merge + k % merge);
}

/// Between which two of `count` learned positions place `i` of `places` lies, and how far.
struct Between {
  Between(int64_t i, int32_t places, int64_t count) {
    const float at =
        places > 1 ? static_cast<float>(i) * (static_cast<float>(count - 1) / static_cast<float>(places - 1)) : 0.0f;
    low = std::min<int64_t>(static_cast<int64_t>(at), count - 1);
    high = std::min<int64_t>(low + 1, count - 1);
    part = at - static_cast<float>(low);
  }
  int64_t low, high;
  float part;
};

/// Which of `count` learned positions make that of place `i` of `places`, and each one's share: a triangle around where
/// the place's middle lies in the table, as wide as the table shrinks.
struct Triangle {
  Triangle(int64_t i, int32_t places, int64_t count) {
    const float step = static_cast<float>(count) / static_cast<float>(places);
    wide = std::max(step, 1.0f), middle = step * (static_cast<float>(i) + 0.5f);
    low = std::max<int64_t>(static_cast<int64_t>(middle - wide + 0.5f), 0);
    high = std::min<int64_t>(static_cast<int64_t>(middle + wide + 0.5f), count);
    for (int64_t j = low; j < high; ++j) sum += part(j);
  }
  float part(int64_t j) const { return std::max(0.0f, 1 - std::fabs((static_cast<float>(j) - middle + 0.5f) / wide)); }
  float share(int64_t j) const { return part(j) / sum; }
  int64_t low, high;  // beyond the last
  float wide, middle, sum = 0;
};

}  // namespace

void write_patches(const Pixels& f, const VisionConfig& c, uint8_t* to, int32_t* line, int32_t* column) {
  const int64_t side = c.patch;
  for_patches(grid_of(f, c), c.merge, [&](int64_t r, int64_t col) {
    *line++ = static_cast<int32_t>(r);
    *column++ = static_cast<int32_t>(col);
    for (int64_t y = r * side; y < (r + 1) * side; ++y) {
      if (f.plane == 0) {
        std::memcpy(to, f.data + y * f.stride + col * side * 3, static_cast<size_t>(side * 3));
        to += side * 3;
        continue;
      }
      for (int64_t x = col * side; x < (col + 1) * side; ++x)
        for (int64_t channel = 0; channel < 3; ++channel) *to++ = f.data[channel * f.plane + y * f.stride + x];
    }
  });
}

char* write_positions(const Grid& g, const VisionConfig& c, const std::vector<float>& table, DType dtype, char* to) {
  const int64_t H = c.width, N = c.grid;
  for_patches(g, c.merge, [&](int64_t r, int64_t col) {
    const Triangle ys(r, g.lines, N), xs(col, g.columns, N);
    const Between y(r, g.lines, N), x(col, g.columns, N);
    const float dy = y.part, dx = x.part;
    for (int64_t h = 0; h < H; ++h) {
      const auto learned = [&](int64_t row, int64_t column) {
        return table.empty() ? 0.0f : table[static_cast<size_t>((row * N + column) * H + h)];
      };
      float v = 0;
      if (c.siglip2) {
        for (int64_t j = ys.low; j < ys.high; ++j) {
          float line = 0;
          for (int64_t k = xs.low; k < xs.high; ++k) line += learned(j, k) * xs.share(k);
          v += line * ys.share(j);
        }
      } else {
        v = learned(y.low, x.low) * ((1 - dy) * (1 - dx)) + learned(y.low, x.high) * ((1 - dy) * dx) +
            learned(y.high, x.low) * (dy * (1 - dx)) + learned(y.high, x.high) * (dy * dx);
      }
      if (dtype == DType::f32) {
        std::memcpy(to, &v, 4);
        to += 4;
      } else {
        const uint16_t bits = bf16_of_f32(v);
        std::memcpy(to, &bits, 2);
        to += 2;
      }
    }
  });
  return to;
}

}  // namespace vivace::models::vision
