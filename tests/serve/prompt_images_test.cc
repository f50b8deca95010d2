// Images of prompts: which way their tokens turn, which numbers tell them apart, what is refused.
#include "vivace/serve/prompt_images.h"

#include <gtest/gtest.h>

#include <set>

#include "vivace/serve/batcher.h"

namespace vivace::serve {
namespace {

constexpr engine::ImageLimits kLimits{.token = 7, .side = 8, .tokens = 10, .places = 2};

PromptImage image(int lines, int columns, int first, uint8_t value = 0) {
  auto made = prompt_image(std::vector<uint8_t>(static_cast<size_t>(lines * columns * 64 * 3), value), lines * 8,
                           columns * 8, first);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

TEST(PromptImages, TokensTurnByLineAndColumnAndWordsBehindTheLargerOfBoth) {
  const PromptImage images[] = {image(2, 3, 4), image(1, 1, 12), image(3, 2, 13)};
  const auto all = shown(images, 8);
  using Shift = std::array<int32_t, 3>;
  // Angles: words 0 to 3; from 4 on time 4, lines 4 and 5, columns 4 to 6; words behind from 7 on.
  const int32_t pos[] = {0, 3, 4, 6, 7, 9, 10, 11, 12, 13, 18, 19};
  const Shift want[] = {{0, 0, 0}, {3, 3, 3}, {4, 4, 4}, {4, 4, 6},    {4, 5, 4},    {4, 5, 6},
                        {7, 7, 7}, {8, 8, 8}, {9, 9, 9}, {10, 10, 10}, {10, 12, 11}, {13, 13, 13}};
  for (size_t i = 0; i < std::size(pos); ++i) {
    const Shift s = shift_at(all, pos[i]);
    EXPECT_EQ((Shift{s[0] + pos[i], s[1] + pos[i], s[2] + pos[i]}), want[i]) << pos[i];
  }
  EXPECT_EQ(image_at(all, 3), all.size());
  EXPECT_EQ(image_at(all, 9), 0u);
  EXPECT_EQ(image_at(all, 10), all.size());
  EXPECT_EQ(image_at(all, 12), 1u);
  EXPECT_EQ(image_at(all, 18), 2u);
  EXPECT_EQ(image_at(all, 19), all.size());
  EXPECT_EQ(shift_at({}, 5), Shift{});
}

TEST(PromptImages, NumbersAreOfSizeAndPixelsAndNeverGivenTwice) {
  ImageNumbers numbers;
  const int32_t a = numbers.of(image(1, 2, 0).content);
  EXPECT_LT(a, 0);
  EXPECT_EQ(numbers.of(image(1, 2, 5).content), a);  // where it stands is no part of it
  EXPECT_NE(numbers.of(image(2, 1, 0).content), a);  // the same bytes in another shape
  EXPECT_NE(numbers.of(image(1, 2, 0, 1).content), a);
  std::set<int32_t> given{a, numbers.of(image(2, 1, 0).content), numbers.of(image(1, 2, 0, 1).content)};
  for (uint64_t i = 0; i < 2 * ImageNumbers::kKept; ++i) EXPECT_TRUE(given.insert(numbers.of(Hash128{i, 1})).second);
  EXPECT_TRUE(given.insert(numbers.of(image(1, 2, 0).content)).second);  // forgotten: another number
  const uint64_t kept = 2 * ImageNumbers::kKept - 1;
  EXPECT_FALSE(given.insert(numbers.of(Hash128{kept, 1})).second);
}

TEST(PromptImages, WhatDoesNotMatchIsRefused) {
  const std::vector<int32_t> prompt{1, 7, 7, 2, 7, 3};
  const auto code = [&](std::vector<PromptImage> images, const engine::ImageLimits& limits = kLimits) {
    return check_images(images, prompt, limits).code();
  };
  EXPECT_EQ(code({image(1, 2, 1), image(1, 1, 4)}), Code::kOk);
  EXPECT_EQ(code({image(1, 2, 1)}), Code::kInvalidArgument);                  // a token without an image
  EXPECT_EQ(code({image(1, 1, 4)}), Code::kInvalidArgument);                  // the same before it
  EXPECT_EQ(code({image(1, 1, 4), image(1, 2, 1)}), Code::kInvalidArgument);  // in another order
  EXPECT_EQ(code({image(1, 2, 1), image(1, 2, 4)}), Code::kInvalidArgument);  // beyond its tokens
  EXPECT_EQ(code({image(1, 2, 1), image(1, 1, 2)}), Code::kInvalidArgument);  // one in the other
  EXPECT_EQ(code({image(1, 2, -1), image(1, 1, 4)}), Code::kInvalidArgument);
  EXPECT_EQ(code({image(1, 2, 1), image(1, 1, 1 << 30)}), Code::kInvalidArgument);
  EXPECT_EQ(code({image(11, 1, 1)}), Code::kInvalidShape);  // more tokens than are taken
  EXPECT_EQ(code({PromptImage{nullptr, 8, 16, 1, {}}}), Code::kInvalidShape);
  EXPECT_EQ(code({image(1, 2, 1)}, {}), Code::kUnsupported);  // a model of text
  EXPECT_EQ(code({}, {}), Code::kOk);
  EXPECT_EQ(prompt_image(std::vector<uint8_t>(5), 8, 8, 0).status().code(), Code::kInvalidShape);
  EXPECT_EQ(prompt_image({}, 0, 8, 0).status().code(), Code::kInvalidShape);
}

}  // namespace
}  // namespace vivace::serve
