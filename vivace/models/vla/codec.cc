#include "vivace/models/vla/codec.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::models::vla {
namespace {

using engine::Json;
using engine::JsonValue;

constexpr size_t kMostCodes = 1 << 20;
constexpr uint32_t kUnknown = 0xfffd;

/// The next code point of UTF-8 at `*at`, which moves on; malformed bytes count as Python's "replace" counts them.
uint32_t code_point(std::string_view s, size_t* at) {
  char32_t c = kUnknown;
  const std::string_view rest = s.substr(*at);
  const int n = engine::text::read_utf8(rest, &c);
  *at += static_cast<size_t>(n > 0 ? n : engine::text::malformed_utf8(rest));
  return c;
}

/// GPT-2's stand-ins: bytes that print are themselves, the others follow from 256 on.
std::map<uint32_t, char> byte_of_characters() {
  std::map<uint32_t, char> bytes;
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    bytes[prints ? b : next++] = static_cast<char>(b);
  }
  return bytes;
}

/// The bytes that a piece stands for: by its characters, or, if one stands for no byte, as it is.
std::string bytes_of(std::string_view piece, const std::map<uint32_t, char>& table) {
  std::string out;
  for (size_t at = 0; at < piece.size();) {
    const auto found = table.find(code_point(piece, &at));
    if (found == table.end()) return std::string(piece);
    out += found->second;
  }
  return out;
}

}  // namespace

Result<ActionCodec> ActionCodec::open(const std::string& folder) {
  VV_ASSIGN(const Json config, Json::parse_file(folder + "/processor_config.json"));
  VV_ASSIGN(const double scale, config.root().get_double("scale"));
  VV_ASSIGN(const int64_t min_token, config.root().get_int("min_token"));
  if (min_token < INT32_MIN / 2 || min_token > INT32_MAX / 2)
    return config.root().error(Code::kCorruptData, "min_token is out of range");
  return open(folder + "/tokenizer.json", scale, static_cast<int>(min_token));
}

Result<ActionCodec> ActionCodec::open(const std::string& tokenizer, double scale, int min_token) {
  if (!(scale > 0 && std::isfinite(scale)))
    return Status(Code::kInvalidArgument, strf("scale: wanted a positive number, got %g", scale));
  // Of a chunk's transform the largest sum that there may be: f32 must hold it.
  constexpr double kMost = 1e30;
  if ((0x10ffff + std::fabs(static_cast<double>(min_token))) / scale > kMost)
    return Status(Code::kInvalidArgument, strf("scale: %g makes actions that f32 does not hold", scale));
  VV_ASSIGN(const Json json, Json::parse_file(tokenizer));
  VV_ASSIGN(const JsonValue model, json.root().at("model"));
  VV_ASSIGN(const JsonValue entry, model.at("vocab"));
  VV_ASSIGN(const JsonValue vocab, entry.as_object());
  ActionCodec codec;
  codec.scale_ = scale;
  codec.min_token_ = min_token;
  codec.pieces_.resize(vocab.size());
  if (codec.pieces_.size() > kMostCodes)
    return vocab.error(Code::kLimitExceeded, strf("%zu codes, at most %zu", codec.pieces_.size(), kMostCodes));
  const std::map<uint32_t, char> table = byte_of_characters();
  std::vector<bool> seen(codec.pieces_.size());
  for (const JsonValue v : vocab) {
    VV_ASSIGN(const int64_t id, v.as_int());
    if (id < 0 || id >= static_cast<int64_t>(seen.size()) || seen[static_cast<size_t>(id)])
      return v.error(Code::kCorruptData, strf("wanted each number below %zu once", seen.size()));
    seen[static_cast<size_t>(id)] = true;
    codec.pieces_[static_cast<size_t>(id)] = bytes_of(v.key(), table);
  }
  return codec;
}

Status ActionCodec::decode(std::span<const int32_t> codes, int64_t horizon, int64_t dims, bool strict,
                           std::span<float> out) const {
  if (horizon < 1 || dims < 1 || static_cast<int64_t>(out.size()) != horizon * dims)
    return Status(Code::kInvalidShape, strf("decode: wanted room for %ld x %ld actions, got %zu",
                                            static_cast<long>(horizon), static_cast<long>(dims), out.size()));
  std::string text;
  for (const int32_t c : codes) {
    if (c < 0 || c >= static_cast<int32_t>(pieces_.size()))
      return Status(Code::kInvalidArgument, strf("decode: code %d is outside [0, %zu)", c, pieces_.size()));
    text += pieces_[static_cast<size_t>(c)];
  }
  std::vector<double> coefficients;
  for (size_t at = 0; at < text.size();)
    coefficients.push_back((static_cast<double>(code_point(text, &at)) + min_token_) / scale_);
  if (strict && coefficients.size() != out.size()) coefficients.clear();
  coefficients.resize(out.size(), 0.0);
  // The inverse of the orthonormal DCT-II over time; rows are frequencies.
  const double n = static_cast<double>(horizon);
  for (int64_t t = 0; t < horizon; ++t)
    for (int64_t d = 0; d < dims; ++d) {
      double sum = coefficients[static_cast<size_t>(d)] * std::sqrt(1 / n);
      for (int64_t k = 1; k < horizon; ++k)
        sum += coefficients[static_cast<size_t>(k * dims + d)] * std::sqrt(2 / n) *
               std::cos(M_PI * static_cast<double>(k) * (2 * static_cast<double>(t) + 1) / (2 * n));
      out[static_cast<size_t>(t * dims + d)] = static_cast<float>(sum);
    }
  return {};
}

}  // namespace vivace::models::vla
