#include "vivace/serve/text_search.h"

#include <algorithm>

namespace vivace::serve {

TextSearch::TextSearch(std::vector<std::string> wanted) {
  for (std::string& text : wanted) {
    Pattern p{std::move(text), {}, 0};
    p.shorter.resize(p.text.size());
    for (size_t i = 1, n = 0; i < p.text.size(); p.shorter[i++] = n) {
      while (n > 0 && p.text[i] != p.text[n]) n = p.shorter[n - 1];
      n += p.text[i] == p.text[n];
    }
    patterns_.push_back(std::move(p));
  }
}

size_t TextSearch::put(char c) {
  size_t found = kNone;
  held_ = 0;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& p = patterns_[i];
    if (p.at == p.text.size()) p.at = p.shorter.back();
    while (p.at > 0 && p.text[p.at] != c) p.at = p.shorter[p.at - 1];
    p.at += p.text[p.at] == c;
    held_ = std::max(held_, p.at);
    if (p.at == p.text.size() && (found == kNone || p.at > patterns_[found].at)) found = i;
  }
  return found;
}

void TextSearch::reset() {
  for (Pattern& p : patterns_) p.at = 0;
  held_ = 0;
}

bool StopStrings::feed(std::string_view bytes, std::string* text) {
  if (search_.empty()) {
    text->append(bytes);
    return false;
  }
  size_t known = 0;  // of held_: text already
  for (const char c : bytes) {
    if (met_) break;
    held_.push_back(c);
    if (const size_t stop = search_.put(c); stop != TextSearch::kNone) {
      met_ = true;
      which_ = stop;
      known = held_.size() - search_.wanted(stop).size();
    } else {
      known = held_.size() - search_.held();
    }
  }
  text->append(held_, 0, known);
  if (met_) held_.clear();
  else held_.erase(0, known);
  return met_;
}

void StopStrings::finish(std::string* text) {
  if (!met_) text->append(held_);
  held_.clear();
}

}  // namespace vivace::serve
