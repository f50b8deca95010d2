// What a file says, made fit for a terminal.
#include "vivace/base/printable.h"

#include <gtest/gtest.h>

namespace vivace {
namespace {

TEST(Printable, TextStaysAndControlsAreEscaped) {
  EXPECT_EQ(printable("a b\n\tc \xc3\xa9 \xf0\x9f\x98\x80"), "a b\n\tc \xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(printable("\xc2\x9b" "31m"), "\\x9b31m");                        // C1's CSI
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xff\xc0\x80\xed\xa0\x80\xe9"), "\\xff\\xc0\\x80\\xed\\xa0\\x80\\xe9");  // none of it UTF-8
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");                            // cut off
}

}  // namespace
}  // namespace vivace
