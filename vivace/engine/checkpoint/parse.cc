#include "vivace/engine/checkpoint/parse.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace vivace::engine {

bool is_utf8(std::string_view s) {
  const auto* p = reinterpret_cast<const unsigned char*>(s.data());
  const size_t n = s.size();
  const auto continues = [&](size_t i) { return i < n && (p[i] & 0xc0) == 0x80; };
  for (size_t i = 0; i < n;) {
    uint64_t eight;
    if (n - i >= 8 && (std::memcpy(&eight, p + i, 8), (eight & 0x8080808080808080ull) == 0)) {
      i += 8;
      continue;
    }
    const unsigned c = p[i];
    if (c < 0x80) {
      i += 1;
    } else if (c < 0xe0) {
      if (c < 0xc2 || !continues(i + 1)) return false;
      i += 2;
    } else if (c < 0xf0) {
      if (!continues(i + 1) || !continues(i + 2)) return false;
      // E0 80..9F would be overlong, ED A0..BF a surrogate.
      if ((c == 0xe0 && p[i + 1] < 0xa0) || (c == 0xed && p[i + 1] > 0x9f)) return false;
      i += 3;
    } else {
      if (c > 0xf4 || !continues(i + 1) || !continues(i + 2) || !continues(i + 3)) return false;
      if ((c == 0xf0 && p[i + 1] < 0x90) || (c == 0xf4 && p[i + 1] > 0x8f)) return false;
      i += 4;
    }
  }
  return true;
}

bool is_good_name(std::string_view s) {
  if (s.empty() || s.size() > kMaxNameBytes) return false;
  for (unsigned char c : s)
    if (c < 0x20 || c == 0x7f) return false;
  return is_utf8(s);
}

std::string quote(std::string_view s) {
  constexpr size_t kShown = 96;
  std::string r = "\"";
  for (unsigned char c : s.substr(0, kShown)) {
    if (c == '"' || c == '\\') r += '\\';
    if (c >= 0x20 && c < 0x7f)
      r += static_cast<char>(c);
    else
      r += strf("\\x%02x", c);
  }
  return r + (s.size() > kShown ? "\"..." : "\"");
}

std::optional<uint64_t> tensor_bytes(DType dtype, const Shape& shape) {
  const DTypeInfo unit = info(dtype);
  const int64_t n = shape.elements(), row = shape.rank > 0 ? shape.dim[shape.rank - 1] : 1;
  uint64_t bytes = 0;
  if (n < 0 || row % unit.block != 0) return std::nullopt;
  if (__builtin_mul_overflow(static_cast<uint64_t>(n / unit.block),
                             static_cast<uint64_t>(unit.bytes), &bytes))
    return std::nullopt;
  return bytes;
}

Result<std::vector<uint32_t>> index_by_name(const std::vector<TensorEntry>& tensors,
                                            const std::string& file) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  for (size_t i = 1; i < order.size(); ++i)
    if (tensors[order[i]].name == tensors[order[i - 1]].name)
      return Status(Code::kCorruptData,
                    file + ": duplicate tensor " + quote(tensors[order[i]].name));
  return order;
}

Status check_layout(const std::vector<TensorEntry>& tensors, uint64_t begin, uint64_t end,
                    bool gapless, const std::string& file) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  // Empty tensors sort before the one that starts where they lie, so they never look like an
  // overlap there.
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const TensorEntry &x = tensors[a], &y = tensors[b];
    return x.offset != y.offset ? x.offset < y.offset : x.bytes < y.bytes;
  });
  uint64_t at = begin;
  for (uint32_t i : order) {
    const TensorEntry& t = tensors[i];
    if (t.offset < at || (gapless && t.offset != at))
      return Status(Code::kCorruptData,
                    strf("%s: tensor %s starts at byte %llu, expected %s%llu: %s", file.c_str(),
                         quote(t.name).c_str(), static_cast<unsigned long long>(t.offset),
                         gapless ? "" : "at least ", static_cast<unsigned long long>(at),
                         t.offset < at ? "tensors overlap" : "bytes without a tensor"));
    at = t.offset + t.bytes;
  }
  if (gapless && at != end)
    return Status(Code::kCorruptData,
                  strf("%s: tensors end at byte %llu, the file at %llu", file.c_str(),
                       static_cast<unsigned long long>(at), static_cast<unsigned long long>(end)));
  return Status();
}

}  // namespace vivace::engine
