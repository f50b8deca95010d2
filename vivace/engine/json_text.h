// JSON of reports: values whatever a path or a file's words hold.
#pragma once
#include <string>
#include <string_view>

#include "vivace/engine/model.h"

namespace vivace::engine {

/// A JSON string in ASCII. What is no UTF-8 is U+FFFD.
std::string json_string(std::string_view text);
/// One object of the facts, whose values are JSON already.
std::string json_object(const Report& report);

}  // namespace vivace::engine
