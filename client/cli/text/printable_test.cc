// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace gpumem::cli {
namespace {

TEST(PrintableTest, LeavesTextAsItIs) {
  for (const char* text : {"", "model-1.bin", "größer", "日本語", "\xF0\x9F\x98\x80"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(PrintableTest, ReplacesWhatATerminalActsOn) {
  EXPECT_EQ(Printable("a\x1b[31mb\x07\r\n\t\x7f"), "a?[31mb?????");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a?b");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "31m"),
            "?31m")
      << "CSI of C1, as UTF-8";
  EXPECT_EQ(Printable("\x9B"
                      "31m"),
            "?31m")
      << "and as a byte";
  EXPECT_EQ(Printable("\xE2\x80\xAE"
                      "gpj.exe"),
            "?gpj.exe")
      << "right-to-left override";
  EXPECT_EQ(Printable("a\xE2\x80\xA8"
                      "b"),
            "a?b")
      << "line separator";
}

TEST(PrintableTest, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(Printable("\xff.bin"), "?.bin");
  EXPECT_EQ(Printable("\xC3"), "?") << "cut off";
  EXPECT_EQ(Printable("\xC3("), "?(");
  EXPECT_EQ(Printable("\xC0\x9B"), "??") << "longer than it need be";
  EXPECT_EQ(Printable("\xE0\x82\x9B"), "???");
  EXPECT_EQ(Printable("\xED\xA0\x80"), "???") << "a surrogate";
  EXPECT_EQ(Printable("\xF5\x80\x80\x80"), "????");
}

TEST(PrintableTest, MessagesKeepTheirLines) {
  EXPECT_EQ(PrintableLines("one\ntwo\x1b]0;\r"), "one\ntwo?]0;?");
}

TEST(PrintableTest, JsonStaysTheSameDocument) {
  EXPECT_EQ(EscapedJson("{\n  \"a\": \"\\u001b gr\u00f6\u00df\"\n}\n"),
            "{\n  \"a\": \"\\u001b gr\u00f6\u00df\"\n}\n");
  EXPECT_EQ(EscapedJson("\"\x7f\xC2\x9B\xE2\x80\xAE\""), "\"\\u007f\\u009b\\u202e\"");
}

}  // namespace
}  // namespace gpumem::cli
