#include "vivace/models/whisper/repeats.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <queue>
#include <vector>

namespace vivace::models::whisper {
namespace {

constexpr size_t kShortest = 3, kLongest = 258, kFarthest = 32768;
constexpr size_t kTried = 128;  // earlier places of three bytes that are looked at
constexpr size_t kEnough = 16;  // bytes of a run behind which no longer one is looked for at the next byte

/// A value's code by the table of RFC 1951: the first code of each number of extra bits.
struct Coded {
  size_t code;
  int extra;
};

Coded length_code(size_t length) {
  if (length == kLongest) return {285, 0};
  const size_t v = length - kShortest;
  if (v < 8) return {257 + v, 0};
  int extra = 1;
  while ((v >> (extra + 3)) != 0) ++extra;
  return {257 + 4 * static_cast<size_t>(extra) + (v >> extra), extra};
}

Coded distance_code(size_t distance) {
  const size_t v = distance - 1;
  if (v < 4) return {v, 0};
  int extra = 1;
  while ((v >> (extra + 2)) != 0) ++extra;
  return {2 * static_cast<size_t>(extra) + (v >> extra), extra};
}

/// Bits of each symbol's Huffman code, 0 of those that do not come; a single one has 1.
std::vector<int> code_lengths(const std::vector<int64_t>& counts) {
  struct Node {
    int64_t count;
    size_t id;
    bool operator>(const Node& o) const { return count != o.count ? count > o.count : id > o.id; }
  };
  std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) open.push({counts[i], i});
  std::vector<int> bits(counts.size());
  if (open.size() == 1) bits[open.top().id] = 1;
  if (open.size() < 2) return bits;
  std::vector<size_t> parent(2 * counts.size());
  size_t next = counts.size();
  for (; open.size() > 1; ++next) {
    const Node a = open.top();
    open.pop();
    const Node b = open.top();
    open.pop();
    parent[a.id] = parent[b.id] = next;
    open.push({a.count + b.count, next});
  }
  std::vector<int> depth(next);
  for (size_t i = next - 1; i-- > 0;)
    if (i >= counts.size() || counts[i] > 0) depth[i] = depth[parent[i]] + 1;
  std::copy_n(depth.begin(), counts.size(), bits.begin());
  return bits;
}

int64_t cost(const std::vector<int64_t>& counts, const std::vector<int>& bits) {
  int64_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) sum += counts[i] * bits[i];
  return sum;
}

/// Bits of a dynamic block's head: both tables' lengths, run-length coded.
int64_t head(const std::vector<int>& literals, const std::vector<int>& distances) {
  const auto used = [](const std::vector<int>& bits, size_t least) {
    size_t n = bits.size();
    while (n > least && bits[n - 1] == 0) --n;
    return n;
  };
  std::vector<int> all(literals.begin(), literals.begin() + static_cast<int64_t>(used(literals, 257)));
  all.insert(all.end(), distances.begin(), distances.begin() + static_cast<int64_t>(used(distances, 1)));
  std::vector<int64_t> counts(19);
  int64_t extra = 0;
  for (size_t i = 0; i < all.size();) {
    size_t run = 1;
    while (i + run < all.size() && all[i + run] == all[i]) ++run;
    size_t left = run;
    if (all[i] != 0) ++counts[static_cast<size_t>(std::min(all[i], 15))], --left;
    while (left >= 3) {
      const size_t taken = std::min<size_t>(left, all[i] != 0 ? 6 : left > 10 ? 138 : 10);
      ++counts[all[i] != 0 ? 16 : taken > 10 ? 18 : 17];
      extra += all[i] != 0 ? 2 : taken > 10 ? 7 : 3;
      left -= taken;
    }
    counts[static_cast<size_t>(std::min(all[i], 15))] += static_cast<int64_t>(left);
    i += run;
  }
  constexpr std::array<size_t, 19> kOrder{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  const std::vector<int> bits = code_lengths(counts);
  size_t told = 19;
  while (told > 4 && bits[kOrder[told - 1]] == 0) --told;
  return 14 + 3 * static_cast<int64_t>(told) + cost(counts, bits) + extra;
}

/// Where bytes came before: the newest place of each three, and the one before each.
class Earlier {
 public:
  explicit Earlier(std::string_view text) : text_(text), newest_(1 << 15, kNone), before_(text.size(), kNone) {}

  void add(size_t at) {
    if (at + kShortest > text_.size()) return;
    size_t& last = newest_[hash(at)];
    before_[at] = last;
    last = at;
  }
  /// The longest run that begins at `at` as one before did: its length and how far back.
  std::pair<size_t, size_t> longest(size_t at) const {
    std::pair<size_t, size_t> best{0, 0};
    if (at + kShortest > text_.size()) return best;
    const size_t most = std::min(kLongest, text_.size() - at);
    size_t tried = 0;
    for (size_t from = newest_[hash(at)]; from != kNone && at - from <= kFarthest && tried < kTried;
         from = before_[from], ++tried) {
      size_t n = 0;
      while (n < most && text_[from + n] == text_[at + n]) ++n;
      if (n >= kShortest && n > best.first) best = {n, at - from};
    }
    return best;
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  size_t hash(size_t at) const {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(text_[at + i])); };
    return (byte(0) << 10 ^ byte(1) << 5 ^ byte(2)) & 0x7fff;
  }
  std::string_view text_;
  std::vector<size_t> newest_, before_;
};

}  // namespace

double compression_ratio(std::string_view text) {
  if (text.empty()) return 0;
  std::vector<int64_t> literals(286), distances(30);
  int64_t extra = 0, fixed = 7;
  const auto literal = [&](uint8_t byte) { ++literals[byte], fixed += byte < 144 ? 8 : 9; };
  Earlier earlier(text);
  std::pair<size_t, size_t> found = earlier.longest(0);
  for (size_t at = 0; at < text.size();) {
    earlier.add(at);
    const std::pair<size_t, size_t> next =
        found.first < kEnough ? earlier.longest(at + 1) : std::pair<size_t, size_t>{};
    if (found.first < kShortest || next.first > found.first) {
      literal(static_cast<uint8_t>(text[at++]));
      found = next;
      continue;
    }
    const Coded length = length_code(found.first), distance = distance_code(found.second);
    ++literals[length.code], ++distances[distance.code];
    extra += length.extra + distance.extra;
    fixed += (length.code < 280 ? 7 : 8) + 5;
    for (size_t i = 1; i < found.first; ++i) earlier.add(at + i);
    at += found.first;
    found = earlier.longest(at);
  }
  ++literals[256];
  const std::vector<int> of_literals = code_lengths(literals), of_distances = code_lengths(distances);
  const int64_t dynamic = head(of_literals, of_distances) + cost(literals, of_literals) + cost(distances, of_distances);
  const int64_t bits = 3 + std::min(fixed, dynamic) + extra, stored = static_cast<int64_t>(text.size()) + 5;
  constexpr int64_t kEnds = 6;  // of the stream: its head, and a sum
  return static_cast<double>(text.size()) / static_cast<double>(std::min((bits + 7) / 8, stored) + kEnds);
}

}  // namespace vivace::models::whisper
