// Frames on their way to a policy: those in page-locked memory go from where they lie, with the same result.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "vivace/models/vla/image.h"

namespace vivace::models::vla {
namespace {

constexpr int64_t kSide = 32;

struct Target {
  explicit Target(DType dtype) : dtype(dtype), memory(static_cast<size_t>(2 * kSide * kSide * 3) * 4) {
    runtime = std::move(engine::Runtime::open("cpu", 1)).value();
    pixels = tensor(memory.data(), dtype, Shape(2, kSide, kSide, 3));
    const Status opened = images.open(*runtime, pixels, Resize::lerobot, 2);
    EXPECT_TRUE(opened.ok()) << opened.to_string();
  }
  std::vector<char> of(const std::vector<engine::Frame>& frames) {
    std::fill(memory.begin(), memory.end(), char(0x5a));
    size_t bytes = 0;
    for (const auto& f : frames) bytes += static_cast<size_t>(f.height * f.width * 3);
    EXPECT_TRUE(images.begin(bytes).ok());
    for (const auto& f : frames) EXPECT_TRUE(images.add(f).ok());
    EXPECT_TRUE(images.scale().ok());
    EXPECT_TRUE(runtime->stream().synchronize().ok());
    return memory;
  }
  DType dtype;
  std::vector<char> memory;
  std::unique_ptr<engine::Runtime> runtime;
  Tensor pixels;
  ImagePreprocessor images;
};

TEST(Frames, PageLockedOnesHaveTheSameResult) {
  std::mt19937 random(3);
  std::vector<uint8_t> bytes(60 * 50 * 3 + 7);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  for (const DType dtype : {DType::u8, DType::f32}) {
    Target target(dtype);
    for (const auto& [height, width] : {std::pair<int64_t, int64_t>{kSide, kSide}, {40, 50}}) {
      const uint8_t* const at = bytes.data() + 7;  // as in a message: at any byte
      const engine::Frame packed{at, height, width, width * 3, 0}, planes{at, height, width, width, height * width},
          wider{at, height, width - 4, width * 3, 0};
      for (const engine::Frame& f : {packed, planes, wider}) {
        engine::Frame locked = f;
        locked.page_locked = true;
        const std::vector<char> plain = target.of({f, packed});
        EXPECT_EQ(target.of({locked, packed}), plain);
        EXPECT_EQ(target.of({packed, locked}), target.of({packed, f}));
      }
    }
  }
}

}  // namespace
}  // namespace vivace::models::vla
