// TextSearch: finds strings in bytes that come one by one, so that nothing depends on how a text was cut.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace vivace::serve {

/// Knuth-Morris-Pratt, side by side for a few strings, none of them empty.
class TextSearch {
 public:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  explicit TextSearch(std::vector<std::string> wanted);
  /// Which string ends with this byte, the longest where several do; kNone.
  size_t put(char c);
  /// Bytes at the end of the text so far that may begin one of the strings.
  size_t held() const { return held_; }
  const std::string& wanted(size_t i) const { return patterns_[i].text; }
  bool empty() const { return patterns_.empty(); }
  void reset();

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> shorter;  // of the first i + 1 bytes: the longest proper beginning that is their end too
    size_t at = 0;
  };
  std::vector<Pattern> patterns_;
  size_t held_ = 0;
};

/// Text up to the first of some strings: the one that ends first, and of those that end together the longest.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : search_(std::move(stops)) {}
  /// Appends what is known to be text. Whether a stop string was met, here or before: what follows it is dropped.
  bool feed(std::string_view bytes, std::string* text);
  /// Nothing follows: what was held back is text.
  void finish(std::string* text);
  bool met() const { return met_; }
  /// Once one was met: its place among `stops`.
  size_t which() const { return which_; }

 private:
  TextSearch search_;
  std::string held_;
  bool met_ = false;
  size_t which_ = 0;
};

}  // namespace vivace::serve
