#include "vivace/engine/text/normalize.h"

#include <algorithm>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::engine::text {
namespace {

// A unit of the double array: the byte it stands for, whether a string ends there, where its children lie; or a value.
constexpr uint32_t label(uint32_t unit) { return unit & 0x800000ffu; }
constexpr bool ends(uint32_t unit) { return unit >> 8 & 1u; }
constexpr uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }
constexpr uint32_t value(uint32_t unit) { return unit & 0x7fffffffu; }

constexpr size_t kMostGrowth =
    16;  // bytes that rules make of one, on the average of a text: NFKC makes 39 of 3, spaces marked
constexpr size_t kMostRule = 64;       // bytes that a rule is about, where a hostile trie goes round
constexpr size_t kMostBecomes = 1024;  // bytes that a rule makes of them; NFKC's longest are 33

}  // namespace

Status Normalizer::set_rules(std::string_view map) {
  uint32_t bytes = 0;
  if (map.size() >= sizeof(bytes)) std::memcpy(&bytes, map.data(), sizeof(bytes));
  if (map.size() < sizeof(bytes) || bytes > map.size() - sizeof(bytes) || bytes == 0 || bytes % sizeof(uint32_t) != 0 ||
      map.back() != 0)
    return Status(Code::kCorruptData,
                  strf("tokenizer: normalisation rules of %zu bytes hold no trie of %u", map.size(), bytes));
  trie_.resize(bytes / sizeof(uint32_t));
  std::memcpy(trie_.data(), map.data() + sizeof(bytes), bytes);
  becomes_ = std::string(map.substr(sizeof(bytes) + bytes));
  for (size_t at = 0; at < becomes_.size();) {
    const size_t end = becomes_.find('\0', at);
    if (end - at > kMostBecomes)
      return Status(
          Code::kLimitExceeded,
          strf("tokenizer: a normalisation rule makes %zu bytes, at most %zu are accepted", end - at, kMostBecomes));
    at = end + 1;
  }
  return {};
}

std::pair<size_t, std::string_view> Normalizer::next(std::string_view text, const PrefixTable& kept) const {
  if (const size_t n = kept.longest(text).first; n > 0) return {n, text.substr(0, n)};
  if (!trie_.empty()) {
    size_t taken = 0;
    uint32_t becomes = 0, at = offset(trie_[0]);
    for (size_t i = 0; i < std::min(text.size(), kMostRule); ++i) {
      at ^= static_cast<uint8_t>(text[i]);
      if (at >= trie_.size() || label(trie_[at]) != static_cast<uint8_t>(text[i])) break;
      const uint32_t unit = trie_[at];
      at ^= offset(unit);
      if (at >= trie_.size()) break;
      if (ends(unit)) taken = i + 1, becomes = value(trie_[at]);
    }
    // What a hostile map points to beyond its strings is the empty string.
    if (taken > 0)
      return {taken, becomes < becomes_.size() ? std::string_view(becomes_.data() + becomes) : std::string_view()};
  }
  char32_t c = 0;
  const auto n = static_cast<size_t>(std::max(1, read_utf8(text, &c)));  // a rule may end within a character
  return {n, text.substr(0, n)};
}

Status Normalizer::run(std::string_view text, const PrefixTable& kept, std::string* out) const {
  if (collapse)
    while (!text.empty()) {
      const auto [n, becomes] = next(text, kept);
      if (becomes != " ") break;
      text.remove_prefix(n);
    }
  if (text.empty()) return {};
  const size_t begin = out->size(), most = kMostGrowth * text.size() + kMostBecomes;
  if (prefix) out->append(kSpaceMark);
  bool after_space = collapse;
  while (!text.empty()) {
    auto [n, becomes] = next(text, kept);
    text.remove_prefix(n);
    while (after_space && !becomes.empty() && becomes.front() == ' ') becomes.remove_prefix(1);
    if (becomes.empty()) continue;
    for (const char b : becomes)
      if (b == ' ') out->append(kSpaceMark);
      else out->push_back(b);
    after_space = collapse && becomes.back() == ' ';
    if (out->size() - begin > most)
      return Status(Code::kLimitExceeded,
                    strf("encode: the tokenizer's rules make more than %zu bytes of one", kMostGrowth));
  }
  if (collapse)
    while (out->size() - begin >= kSpaceMark.size() &&
           std::string_view(*out).substr(out->size() - kSpaceMark.size()) == kSpaceMark)
      out->resize(out->size() - kSpaceMark.size());
  return {};
}

}  // namespace vivace::engine::text
