// SPDX-License-Identifier: Apache-2.0
#include "client/session/ticket.h"

#include <string>

#include "gtest/gtest.h"

namespace gpumem::internal {
namespace ticket_test {

std::string SomeBytes() {
  std::string bytes;
  for (size_t i = 0; i < kTicketBytes; ++i) bytes.push_back(static_cast<char>(i * 37 + 200));
  return bytes;
}

TEST(TicketTest, TextAndBack) {
  const std::string text = FormatTicket(SomeBytes());
  EXPECT_EQ(text.size(), 47u);
  EXPECT_EQ(text.substr(0, 4), "gmt_");
  EXPECT_EQ(text.find_first_of("+/="), std::string::npos);
  ASSERT_TRUE(ParseTicket(text).ok());
  EXPECT_EQ(*ParseTicket(text), SomeBytes());
}

TEST(TicketTest, RefusesEverythingElse) {
  const std::string text = FormatTicket(SomeBytes());
  std::string stray_bits = text;  // the last letter stands for four bits and two that are zero
  ++stray_bits.back();
  for (const std::string& bad :
       {std::string(), std::string("gmt_"), text.substr(4), text.substr(0, 46), text + "A",
        text + "=", " " + text, text + "\n", "gmt_" + std::string(43, '!'), "GMT_" + text.substr(4),
        FormatTicket(SomeBytes().substr(1)), FormatTicket(SomeBytes() + "x"), stray_bits}) {
    EXPECT_EQ(ParseTicket(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(TicketTest, TheErrorKeepsTheSecret) {
  const std::string text = FormatTicket(SomeBytes());
  EXPECT_EQ(ParseTicket(text + "A").status().message().find(text.substr(8, 20)),
            absl::string_view::npos);
}

}  // namespace ticket_test
}  // namespace gpumem::internal
