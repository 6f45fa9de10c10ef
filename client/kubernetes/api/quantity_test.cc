// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/quantity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/status/status.h"
#include "common/bytes.h"

namespace gpumem::kubernetes {
namespace quantity_test {

constexpr uint64_t kMost = 9223372036854775807u;

uint64_t Bytes(absl::string_view text) {
  const auto bytes = ParseQuantity(text);
  EXPECT_TRUE(bytes.ok()) << text << ": " << bytes.status();
  return bytes.value_or(12345);
}

TEST(QuantityTest, SuffixesAreRead) {
  EXPECT_EQ(Bytes("0"), 0u);
  EXPECT_EQ(Bytes("128974848"), 128974848u);
  EXPECT_EQ(Bytes("123Mi"), 123 * kMiB);
  EXPECT_EQ(Bytes("1Ki"), 1u << 10);
  EXPECT_EQ(Bytes("80Gi"), 80 * kGiB);
  EXPECT_EQ(Bytes("3Ti"), uint64_t{3} << 40);
  EXPECT_EQ(Bytes("3Pi"), uint64_t{3} << 50);
  EXPECT_EQ(Bytes("7Ei"), uint64_t{7} << 60);
  EXPECT_EQ(Bytes("2k"), 2000u);
  EXPECT_EQ(Bytes("129M"), 129000000u);
  EXPECT_EQ(Bytes("5G"), 5000000000u);
  EXPECT_EQ(Bytes("5T"), 5000000000000u);
  EXPECT_EQ(Bytes("5P"), 5000000000000000u);
  EXPECT_EQ(Bytes("5E"), 5000000000000000000u) << "exa, no exponent";
  EXPECT_EQ(Bytes("+5"), 5u);
}

TEST(QuantityTest, ExponentsAreRead) {
  EXPECT_EQ(Bytes("129e6"), 129000000u);
  EXPECT_EQ(Bytes("129E6"), 129000000u);
  EXPECT_EQ(Bytes("1.5e+3"), 1500u);
  EXPECT_EQ(Bytes("1500e-3"), 2u);
  EXPECT_EQ(Bytes("0e999999999999999999999"), 0u);
  EXPECT_EQ(Bytes("0.00000000001e20"), 1000000000u);
}

TEST(QuantityTest, FractionsAreRoundedUp) {
  EXPECT_EQ(Bytes("1.5Gi"), 3 * kGiB / 2);
  EXPECT_EQ(Bytes("0.1Ki"), 103u) << "102.4";
  EXPECT_EQ(Bytes("128974848000m"), 128974848u);
  EXPECT_EQ(Bytes("1m"), 1u);
  EXPECT_EQ(Bytes("1n"), 1u);
  EXPECT_EQ(Bytes("1000001u"), 2u);
  EXPECT_EQ(Bytes(".5"), 1u);
  EXPECT_EQ(Bytes("5."), 5u);
  EXPECT_EQ(Bytes("1e-999999999999999999"), 1u);
  EXPECT_EQ(Bytes("2.00000000000000000000000000000000000001"), 3u);
  EXPECT_EQ(Bytes("2.00000000000000000000000000000000000000Ki"), 2048u);
}

TEST(QuantityTest, OverflowIsAnError) {
  EXPECT_EQ(Bytes("9223372036854775807"), kMost);
  EXPECT_EQ(Bytes("9223372036854775806.5"), kMost);
  for (const char* text :
       {"9223372036854775808", "9223372036854775807.1", "8Ei", "10E", "1e19", "1E400",
        "99999999999999999999999999999999999999999999999999999999999999", "9e99999999999999999999",
        "18446744073709551616", "18446744073709551617Ki"}) {
    const auto bytes = ParseQuantity(text);
    EXPECT_FALSE(bytes.ok()) << text;
  }
  EXPECT_TRUE(absl::IsOutOfRange(ParseQuantity("8Ei").status()));
}

TEST(QuantityTest, OtherTextIsRefused) {
  for (const std::string& text : {std::string(),           std::string(" "),
                                  std::string("-1"),       std::string("-0"),
                                  std::string("1 Gi"),     std::string(" 1Gi"),
                                  std::string("1Gi "),     std::string("1gi"),
                                  std::string("1KiB"),     std::string("1K"),
                                  std::string("1Mi1"),     std::string("Gi"),
                                  std::string("."),        std::string(".e3"),
                                  std::string("1e"),       std::string("1e+"),
                                  std::string("1e3.5"),    std::string("1e3Ki"),
                                  std::string("0x10"),     std::string("1,5"),
                                  std::string("1..5"),     std::string("++1"),
                                  std::string("+-1"),      std::string("inf"),
                                  std::string("nan"),      std::string("1\0", 2),
                                  std::string("1Gi\n"),    std::string("\xef\xbc\x91"),
                                  std::string(100000, '1')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseQuantity(text).status())) << text;
  }
}

// Whatever the text is, the result is an error or a number that Kubernetes can write.
TEST(QuantityTest, RandomTextDoesNoHarm) {
  std::mt19937_64 random(7);
  const std::string characters("0123456789.+-eEKMGTPinumk \0\xff", 28);
  for (int i = 0; i < 200000; ++i) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += characters[random() % characters.size()];
    const auto bytes = ParseQuantity(text);
    if (bytes.ok()) {
      ASSERT_LE(*bytes, kMost) << text;
    }
  }
}

}  // namespace quantity_test
}  // namespace gpumem::kubernetes
