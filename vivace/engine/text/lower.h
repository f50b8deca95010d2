// Small letters of a text, as Python's str.lower() has them.
#pragma once
#include <string>
#include <string_view>

#include "vivace/base/status.h"

namespace vivace::engine::text {

/// `s` in small letters, UTF-8 to UTF-8, of Unicode 14 (letters of newer versions stay as they are). Errors:
/// InvalidArgument where `s` is no UTF-8; Unsupported for U+03A3, whose small letter depends on what stands beside it.
Result<std::string> lower(std::string_view s);

}  // namespace vivace::engine::text
