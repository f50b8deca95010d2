#include "vivace/serve/prompt_images.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "vivace/base/check.h"

namespace vivace::serve {
namespace {

/// This process's own.
const Result<Hash128>& content_key() {
  static const Result<Hash128> key = []() -> Result<Hash128> {
    Hash128 k;
    VV_TRY(random_bytes(&k, sizeof k));
    return k;
  }();
  return key;
}

}  // namespace

Result<PromptImage> prompt_image(std::vector<uint8_t> pixels, int32_t height, int32_t width, int32_t first) {
  if (height < 1 || width < 1 || pixels.size() != static_cast<size_t>(height) * static_cast<size_t>(width) * 3)
    return Status(Code::kInvalidShape, strf("image: %d x %d of RGB, got %zu bytes", height, width, pixels.size()));
  if (!content_key().ok()) return content_key().status();
  const Hash128 inner = siphash(*content_key(), pixels.data(), pixels.size());
  const uint64_t all[] = {inner.lo, inner.hi, static_cast<uint64_t>(height), static_cast<uint64_t>(width)};
  PromptImage image{nullptr, height, width, first, siphash(*content_key(), all, sizeof all)};
  image.pixels = std::make_shared<const std::vector<uint8_t>>(std::move(pixels));
  return image;
}

Status check_images(std::span<const PromptImage> images, std::span<const int32_t> prompt,
                    const engine::ImageLimits& limits) {
  if (images.empty() && limits.tokens == 0) return {};
  if (limits.tokens == 0)
    return Status(Code::kUnsupported, "generate: this model takes no images; its prompts are text");
  size_t at = 0;  // in the prompt
  const auto words = [&](size_t end) {
    for (; at < end; ++at)
      if (prompt[at] == limits.token)
        return Status(
            Code::kInvalidArgument,
            strf("generate: prompt token %d (at %zu) stands for an image, and none came for it", prompt[at], at));
    return Status();
  };
  for (size_t i = 0; i < images.size(); ++i) {
    const PromptImage& m = images[i];
    const int64_t lines = m.height / limits.side, columns = m.width / limits.side;
    if (m.pixels == nullptr || m.height < 1 || m.width < 1 || m.height % limits.side != 0 ||
        m.width % limits.side != 0 || lines * columns > limits.tokens)
      return Status(Code::kInvalidShape,
                    strf("generate: image %zu is %d x %d; wanted sides that are multiples of %d pixels, and at most %d "
                         "tokens of %d x %d",
                         i, m.height, m.width, limits.side, limits.tokens, limits.side, limits.side));
    const auto end = static_cast<size_t>(m.first) + static_cast<size_t>(lines * columns);
    if (m.first < 0 || static_cast<size_t>(m.first) < at || end > prompt.size() ||
        std::any_of(prompt.begin() + m.first, prompt.begin() + static_cast<std::ptrdiff_t>(end),
                    [&](int32_t t) { return t != limits.token; }))
      return Status(Code::kInvalidArgument,
                    strf("generate: image %zu wants %ld tokens %d in the prompt from %d on, behind the image before it",
                         i, static_cast<long>(lines * columns), limits.token, m.first));
    VV_TRY(words(static_cast<size_t>(m.first)));
    at = end;
  }
  return words(prompt.size());
}

std::vector<ShownImage> shown(std::span<const PromptImage> images, int side) {
  std::vector<ShownImage> all;
  int32_t turn = 0;
  for (const PromptImage& m : images) {
    const int32_t lines = m.height / side, columns = m.width / side;
    ShownImage s{m.first, lines * columns, columns, turn};
    turn += std::max(lines, columns) - s.tokens;
    s.behind = turn;
    all.push_back(s);
  }
  return all;
}

size_t image_at(std::span<const ShownImage> images, int32_t pos) {
  const auto next =
      std::upper_bound(images.begin(), images.end(), pos, [](int32_t p, const ShownImage& s) { return p < s.first; });
  if (next == images.begin()) return images.size();
  const auto i = static_cast<size_t>(next - images.begin()) - 1;
  return pos < images[i].first + images[i].tokens ? i : images.size();
}

std::array<int32_t, 3> shift_at(std::span<const ShownImage> images, int32_t pos) {
  const auto next =
      std::upper_bound(images.begin(), images.end(), pos, [](int32_t p, const ShownImage& s) { return p < s.first; });
  if (next == images.begin()) return {};
  const ShownImage& s = *(next - 1);
  const int32_t k = pos - s.first;
  if (k >= s.tokens) return {s.behind, s.behind, s.behind};
  const int32_t base = s.turn - k;  // of the image's first line and column, and of its time
  return {base, base + k / s.columns, base + k % s.columns};
}

int32_t ImageNumbers::of(const Hash128& content) {
  ++clock_;
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.content == content; });
  if (found != entries_.end()) {
    found->used = clock_;
    return found->number;
  }
  if (last_ == std::numeric_limits<int32_t>::min()) return 0;
  if (entries_.empty()) entries_.reserve(kKept);
  const Entry made{content, --last_, clock_};
  if (entries_.size() < kKept)
    entries_.push_back(made);
  else
    *std::min_element(entries_.begin(), entries_.end(),
                      [](const Entry& a, const Entry& b) { return a.used < b.used; }) = made;
  return made.number;
}

}  // namespace vivace::serve
