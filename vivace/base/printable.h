// Text of files and callers as a terminal, a log and Python may be given it.
#pragma once
#include <string>
#include <string_view>

namespace vivace {

/// Control characters (C0 but newline and tab, DEL, C1) and bytes that are no UTF-8 as \xNN; the rest as it is.
std::string printable(std::string_view text);

}  // namespace vivace
