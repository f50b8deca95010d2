// The little of HTTP/1.1 that a websocket begins with: one request or response head, bounded.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::serve::wire {

inline constexpr size_t kMostHead = 16 << 10;
inline constexpr size_t kMostHeaders = 64;

/// A head's first line and headers; all of it points into the bytes that were read.
struct Head {
  std::string_view method, target;  // of a request
  int status = 0;                   // of a response
  std::vector<std::pair<std::string_view, std::string_view>> headers;
  /// The value of a header, its name in any case; null where it is missing. A header that comes twice is its first.
  const std::string_view* find(std::string_view name) const;
  /// Whether the header's list, separated by commas, has the word, in any case.
  bool lists(std::string_view name, std::string_view word) const;
};

/// Bytes of the head at the start of `bytes`, with its empty line; 0 where more must come. Errors: LimitExceeded.
Result<size_t> head_length(std::string_view bytes);
/// Errors: CorruptData, LimitExceeded, Unsupported (other versions of HTTP).
Result<Head> read_request(std::string_view head);
Result<Head> read_response(std::string_view head);

/// Whether two secrets are the same, in a time that tells nothing of where they differ.
bool same_secret(std::string_view a, std::string_view b);
/// What a server answers to a client's Sec-WebSocket-Key (RFC 6455, 4.2.2).
std::string accept_of(std::string_view key);
std::string base64(std::span<const uint8_t> bytes);
/// Whether `key` is 16 bytes in base64.
bool is_websocket_key(std::string_view key);

}  // namespace vivace::serve::wire
