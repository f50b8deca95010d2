// Values of a config.json that stay in bounds: counts and widths of networks.
#pragma once
#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/json.h"

namespace vivace::models {

constexpr int64_t kMostWidth = 1 << 20;  // of any width or count: products of two stay in range
constexpr int64_t kMostLayers = 512;
constexpr int64_t kMostSide = 4096;  // of an image, or of its patch

/// `key` of `object`, or *out where it has none. Errors: CorruptData, not 1 to `most`.
inline Status read_count(const engine::JsonValue& object, const char* key, int64_t* out, int64_t most = kMostWidth) {
  VV_ASSIGN(const int64_t v, object.get_int(key, *out));
  if (v < 1 || v > most)
    return object.error(Code::kCorruptData,
                        strf("%s: wanted 1 to %ld, got %ld", key, static_cast<long>(most), static_cast<long>(v)));
  *out = v;
  return {};
}

/// Errors: CorruptData names both where `a` does not divide `b`.
inline Status check_divides(const engine::JsonValue& object, const char* part, int64_t a, const char* of, int64_t b) {
  return b % a == 0 ? Status()
                    : object.error(Code::kCorruptData, strf("%s %ld does not divide %s %ld", part, static_cast<long>(a),
                                                            of, static_cast<long>(b)));
}

}  // namespace vivace::models
