// How often text repeats itself.
#pragma once
#include <string_view>

namespace vivace::models::whisper {

/// Bytes of `text` over those that a zlib stream (RFC 1950, 1951) of it takes: Whisper's measure, beyond 2.4 of which a
/// text goes round in circles. What is counted is never written. 0 of no text.
double compression_ratio(std::string_view text);

}  // namespace vivace::models::whisper
