// TokenBytes: what each token of a vocabulary adds to a text, as bytes: a token may end in the middle of a character.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vivace::serve {

class TokenBytes {
 public:
  /// `drop_space`: a text does not begin with the space that its first token has.
  TokenBytes(const std::vector<std::string>& tokens, bool drop_space) : drop_space_(drop_space) {
    ends_.reserve(tokens.size());
    for (const std::string& t : tokens) ends_.push_back((all_ += t).size());
  }
  bool drop_space() const { return drop_space_; }
  /// Nothing for a token that is none.
  std::string_view of(int32_t token) const {
    const auto i = static_cast<size_t>(token);
    if (token < 0 || i >= ends_.size()) return {};
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(all_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string all_;
  std::vector<size_t> ends_;
  const bool drop_space_;
};

}  // namespace vivace::serve
