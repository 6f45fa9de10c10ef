// SPDX-License-Identifier: Apache-2.0
#include "common/http2_refusal.h"

#include <gtest/gtest.h>

namespace gpumem {
namespace http2_refusal_test {

TEST(Http2RefusalTest, IsReadAsItWasSaid) {
  for (const absl::Status& why :
       {absl::PermissionDeniedError("not you"), absl::ResourceExhaustedError("too many of uid 5"),
        absl::ResourceExhaustedError("")}) {
    const std::optional<absl::Status> read = ParseHttp2Refusal(Http2Refusal(why));
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(*read, why);
  }
  EXPECT_EQ(ParseHttp2Refusal(Http2Refusal(absl::FailedPreconditionError("elsewhere"))),
            absl::PermissionDeniedError("elsewhere"));
  const auto long_one = ParseHttp2Refusal(
      Http2Refusal(absl::ResourceExhaustedError("\x1b[2J" + std::string(5000, 'x'))));
  ASSERT_TRUE(long_one.has_value());
  EXPECT_EQ(long_one->message(), "?[2J" + std::string(496, 'x'));
}

TEST(Http2RefusalTest, OtherBytesAreNone) {
  const std::string refusal = Http2Refusal(absl::ResourceExhaustedError("full"));
  for (size_t i = 0; i < refusal.size(); ++i) {
    EXPECT_FALSE(ParseHttp2Refusal(refusal.substr(0, i)).has_value()) << i;
  }
  EXPECT_FALSE(ParseHttp2Refusal("HTTP/1.1 400 Bad Request\r\n\r\n").has_value());
  // What a server says first: SETTINGS, and then it waits; or goes on with WINDOW_UPDATE.
  EXPECT_FALSE(ParseHttp2Refusal(std::string("\0\0\0\x04\0\0\0\0\0", 9)).has_value());
  EXPECT_FALSE(
      ParseHttp2Refusal(std::string("\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\0\0\0\1", 22))
          .has_value());
  EXPECT_FALSE(ParseHttp2Refusal(std::string("\0\0\x02\x07\0\0\0\0\0\0\0", 11)).has_value());
}

}  // namespace http2_refusal_test
}  // namespace gpumem
