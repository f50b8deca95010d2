#include "vivace/engine/text/pieces.h"

#include <algorithm>
#include <cstdio>
#include <queue>
#include <unordered_set>

#include "vivace/base/check.h"
#include "vivace/engine/text/control.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::engine::text {
namespace {

constexpr float kUnknownPenalty = 10;  // below the worst piece of a unigram model
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// Bytes of the first character; a model's rules may make bytes that are none.
size_t width_of(std::string_view s) {
  char32_t c = 0;
  return static_cast<size_t>(std::max(1, read_utf8(s, &c)));
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Status Pieces::finish(std::string_view chat_template) {
  std::vector<PrefixTable::Entry> kept, row, names, added;
  std::unordered_set<int32_t> control;
  std::fill(std::begin(of_byte_), std::end(of_byte_), -1);
  ids_.reserve(tokens_.size());
  bool first = true;
  for (int32_t id = 0; id < size(); ++id) {
    const Token& t = tokens_[static_cast<size_t>(id)];
    if (!t.known) continue;
    const bool marker = t.kind == Kind::user && is_control(t.text, false, chat_template);
    // A name is no part of a longer piece, but for single characters.
    char32_t c = 0;
    const bool name =
        marker || (named_ && t.kind == Kind::user && static_cast<size_t>(read_utf8(t.text, &c)) < t.text.size());
    const bool joins = t.kind == Kind::normal || (t.kind == Kind::user && !name) || t.kind == Kind::unused;
    if (joins) longest_ = std::max(longest_, t.text.size());
    if (joins && !ids_.emplace(t.text, id).second)
      return Status(Code::kCorruptData, "tokenizer: two pieces are '" + t.text + "'");
    if (joins && t.kind != Kind::unused) row.emplace_back(t.text, id);
    if (t.kind == Kind::user && !marker) (named_ ? added : kept).emplace_back(t.text, id);
    if (marker || (t.kind == Kind::control && !t.text.empty())) names.emplace_back(t.text, id);
    if (marker || t.kind == Kind::control) control.insert(id);
    if (t.kind == Kind::unknown) unknown_ = unknown_ < 0 ? id : unknown_;
    if (t.kind == Kind::normal) {
      least_ = first ? t.score : std::min(least_, t.score);
      most_ = std::max(most_, t.score);
      first = false;
    }
    unsigned b = 0;
    if (t.kind == Kind::byte && t.text.size() == 6 && std::sscanf(t.text.c_str(), "<0x%2X>", &b) == 1)
      of_byte_[b & 255u] = id;
  }
  // Plain text never becomes a control token, not by merging either.
  std::erase_if(merges_, [&](const auto& entry) { return control.count(entry.second.to) > 0; });
  bytes_ = std::all_of(std::begin(of_byte_), std::end(of_byte_), [](int32_t id) { return id >= 0; });
  VV_ASSIGN(kept_, PrefixTable::of(std::move(kept)));
  VV_ASSIGN(names_, PrefixTable::of(std::move(names)));
  VV_ASSIGN(added_, PrefixTable::of(std::move(added)));
  if (unigram_) {
    VV_ASSIGN(row_, PrefixTable::of(std::move(row)));
  }
  return {};
}

int32_t Pieces::piece(std::string_view text) const {
  if (text.size() > longest_) return -1;  // not hashed for nothing
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

int32_t Pieces::find(std::string_view token) const {
  for (int32_t id = 0; id < size(); ++id)
    if (tokens_[static_cast<size_t>(id)].known && tokens_[static_cast<size_t>(id)].text == token) return id;
  return -1;
}

Status Pieces::encode(std::string_view text, bool special, std::vector<int32_t>* ids) const {
  if (text.size() > kMostText)
    return Status(Code::kLimitExceeded,
                  strf("encode: a text of %zu bytes, at most %zu are encoded", text.size(), kMostText));
  char32_t c = 0;
  for (size_t at = 0; at < text.size();) {
    const int n = read_utf8(text.substr(at), &c);
    if (n == 0)
      return Status(Code::kInvalidArgument, strf("encode: byte %zu of the text does not begin a UTF-8 character", at));
    at += static_cast<size_t>(n);
  }
  // Names cut the text: at each place the longest that fits.
  size_t plain = 0, at = 0;
  while (at < text.size() && (special || !added_.empty())) {
    auto match = added_.longest(text.substr(at));
    if (special) match = std::max(match, names_.longest(text.substr(at)));
    if (match.first == 0) {
      ++at;
      continue;
    }
    VV_TRY(encode_plain(text.substr(plain, at - plain), ids));
    ids->push_back(match.second);
    plain = at += match.first;
  }
  return encode_plain(text.substr(plain), ids);
}

Status Pieces::encode_plain(std::string_view text, std::vector<int32_t>* ids) const {
  std::string normal;
  VV_TRY(normalizer_.run(text, kept_, &normal));
  const size_t begin = ids->size();
  if (unigram_) best_row(normal, ids);
  else join(normal, ids);
  // A row of unknown pieces is one.
  if (unknown_ >= 0 && !bytes_)
    ids->erase(std::unique(ids->begin() + static_cast<long>(begin), ids->end(),
                           [this](int32_t a, int32_t b) { return a == unknown_ && b == unknown_; }),
               ids->end());
  return {};
}

void Pieces::put(std::string_view piece, int32_t id, std::vector<int32_t>* ids) const {
  if (id >= 0) ids->push_back(id);
  else if (bytes_)
    for (const char b : piece) ids->push_back(of_byte_[static_cast<uint8_t>(b)]);
  else if (unknown_ >= 0) ids->push_back(unknown_);
}

void Pieces::join(std::string_view text, std::vector<int32_t>* ids) const {
  // A chain of stretches of the text; the best union goes first, of equals the leftmost.
  struct Symbol {
    uint32_t begin, end;  // empty: joined to the one before
    int32_t id, before, after;
    bool fixed;
  };
  struct Candidate {
    double worth;
    int32_t at;
    uint32_t begin, end;
    int32_t to;
    bool operator<(const Candidate& o) const { return worth != o.worth ? worth < o.worth : at > o.at; }
  };
  std::vector<Symbol> chain;
  for (size_t at = 0; at < text.size();) {
    auto [n, id] = kept_.longest(text.substr(at));
    const bool fixed = n > 0;
    if (!fixed) n = width_of(text.substr(at)), id = piece(text.substr(at, n));
    const auto i = static_cast<int32_t>(chain.size());
    chain.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + n), id, i - 1, i + 1, fixed});
    at += n;
  }
  if (chain.empty()) return;
  chain.back().after = -1;
  const auto symbol = [&](int32_t i) -> Symbol& { return chain[static_cast<size_t>(i)]; };
  std::priority_queue<Candidate> queue;
  std::unordered_map<std::string_view, size_t> cut;  // how a union was made that may not appear in the result
  const auto consider = [&](int32_t at) {
    if (at < 0 || symbol(at).after < 0) return;
    const Symbol &left = symbol(at), &right = symbol(left.after);
    if (left.fixed || right.fixed) return;
    if (listed_) {
      if (const auto found = merges_.find(pair_of(left.id, right.id));
          left.id >= 0 && right.id >= 0 && found != merges_.end())
        queue.push({-static_cast<double>(found->second.rank), at, left.begin, right.end, found->second.to});
    } else if (const int32_t to = piece(text.substr(left.begin, right.end - left.begin)); to >= 0) {
      queue.push({tokens_[static_cast<size_t>(to)].score, at, left.begin, right.end, to});
    }
  };
  for (int32_t i = 0; i >= 0; i = symbol(i).after) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.at);
    // Joined meanwhile, on either side.
    if (left.begin == left.end || left.begin != best.begin || left.after < 0 || symbol(left.after).end != best.end)
      continue;
    Symbol& right = symbol(left.after);
    if (tokens_[static_cast<size_t>(best.to)].kind == Kind::unused)
      cut[text.substr(left.begin, best.end - best.begin)] = left.end - left.begin;
    left.end = right.end;
    left.id = best.to;
    right.begin = right.end;
    left.after = right.after;
    if (left.after >= 0) symbol(left.after).before = best.at;
    consider(left.before);
    consider(best.at);
  }
  const auto give = [&](const auto& self, std::string_view part, int32_t id) -> void {
    if (id >= 0 && tokens_[static_cast<size_t>(id)].kind == Kind::unused)
      if (const auto at = cut.find(part); at != cut.end()) {
        self(self, part.substr(0, at->second), piece(part.substr(0, at->second)));
        return self(self, part.substr(at->second), piece(part.substr(at->second)));
      }
    put(part, id, ids);
  };
  for (int32_t i = 0; i >= 0; i = symbol(i).after)
    give(give, text.substr(symbol(i).begin, symbol(i).end - symbol(i).begin), symbol(i).id);
}

void Pieces::best_row(std::string_view text, std::vector<int32_t>* ids) const {
  struct End {
    int32_t id = -1;
    float sum = 0;
    int64_t from = -1;
  };
  std::vector<End> ends(text.size() + 1);
  const float unknown = least_ - kUnknownPenalty;
  for (size_t at = 0; at < text.size();) {
    const size_t width = width_of(text.substr(at));
    const float before = ends[at].sum;
    bool alone = false;  // the character is a piece
    const auto offer = [&](size_t n, float score, int32_t id) {
      const float sum = score + before;
      End& end = ends[at + n];
      if (end.from < 0 || sum > end.sum) end = {id, sum, static_cast<int64_t>(at)};
    };
    row_.walk(text.substr(at), [&](size_t n, int32_t id) {
      const Token& t = tokens_[static_cast<size_t>(id)];
      // A user's own piece beats every row of pieces as long: log probabilities, which are below 0.
      offer(
          n,
          t.kind == Kind::user ? static_cast<float>(static_cast<double>(static_cast<float>(n) * most_) - 0.1) : t.score,
          id);
      alone |= n == width;
    });
    if (!alone) offer(width, unknown, -1);
    at += width;
  }
  std::vector<std::pair<size_t, size_t>> row;  // from, to: backwards
  for (size_t at = text.size(); at > 0; at = static_cast<size_t>(ends[at].from))
    row.emplace_back(static_cast<size_t>(ends[at].from), at);
  for (auto r = row.rbegin(); r != row.rend(); ++r)
    put(text.substr(r->first, r->second - r->first), ends[r->second].id, ids);
}

Status Pieces::decode(std::span<const int32_t> ids, std::string* text) const {
  for (const int32_t id : ids)
    if (id < 0 || id >= size())
      return Status(Code::kInvalidArgument, strf("decode: token %d is outside [0, %d)", id, size()));
  const size_t begin = text->size();
  bool first = true;  // a mark of a space is still the one that was put before the text
  std::string held;   // bytes in a row
  const auto flush = [&] {
    char32_t c = 0;
    for (std::string_view s = held; !s.empty();) {
      const auto n = static_cast<size_t>(read_utf8(s, &c));
      text->append(n > 0 ? s.substr(0, n) : kReplacement);
      s.remove_prefix(std::max<size_t>(n, 1));
    }
    held.clear();
  };
  for (const int32_t id : ids) {
    const Token& t = tokens_[static_cast<size_t>(id)];
    if (t.known && t.kind == Kind::byte) {
      held.push_back(static_cast<char>(std::find(std::begin(of_byte_), std::end(of_byte_), id) - std::begin(of_byte_)));
      continue;
    }
    flush();  // a control token ends a row of bytes too
    if (!t.known || t.kind == Kind::control) continue;
    if (t.kind == Kind::unknown) {
      text->append(unknown_surface_);
      continue;
    }
    std::string_view rest = t.text;
    if (first && text->size() == begin && (normalizer_.prefix || normalizer_.collapse) &&
        rest.substr(0, kSpaceMark.size()) == kSpaceMark) {
      rest.remove_prefix(kSpaceMark.size());
      if (!normalizer_.collapse) first = false;
    }
    while (!rest.empty())
      if (rest.substr(0, kSpaceMark.size()) == kSpaceMark) {
        text->push_back(' ');
        rest.remove_prefix(kSpaceMark.size());
      } else {
        text->push_back(rest.front());
        rest.remove_prefix(1);
      }
  }
  flush();
  return {};
}

}  // namespace vivace::engine::text
