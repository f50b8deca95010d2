// Which added tokens steer a model: plain text never becomes one.
#pragma once
#include <string>
#include <string_view>

#include "vivace/base/status.h"

namespace vivace::engine::text {

/// Those that the file calls special, those of the form <|...|>, and markers that the chat template writes. Other added
/// tokens (runs of spaces, HTML tags) are parts of text, as models were trained. Python: encoder.is_control.
bool is_control(std::string_view name, bool special, std::string_view chat_template);

/// The chat template of a hub folder, of chat_template.jinja or tokenizer_config.json; empty: there is none.
Result<std::string> chat_template_of(const std::string& folder);

}  // namespace vivace::engine::text
