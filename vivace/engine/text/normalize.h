// What SentencePiece does to a text before it cuts it: rules of replacement, spaces.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/base/status.h"
#include "vivace/engine/text/prefix_table.h"

namespace vivace::engine::text {

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581: a space within a piece

class Normalizer {
 public:
  bool prefix = true;    // a space before the text
  bool collapse = true;  // runs of spaces become one, those at the ends go

  /// A SentencePiece model's replacement rules: a trie of byte strings and what they become. Errors: CorruptData,
  /// LimitExceeded.
  Status set_rules(std::string_view map);
  /// Appends the text as it is cut; `kept` are strings that no rule changes. The text is valid UTF-8. Errors:
  /// LimitExceeded, where rules make far more of it than NFKC does of any text.
  Status run(std::string_view text, const PrefixTable& kept, std::string* out) const;

 private:
  /// The first piece of the text that a rule, or none, turns into something: its bytes and what it becomes.
  std::pair<size_t, std::string_view> next(std::string_view text, const PrefixTable& kept) const;

  std::vector<uint32_t> trie_;  // a double array
  std::string becomes_;         // strings that end with 0
};

}  // namespace vivace::engine::text
