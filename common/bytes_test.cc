// SPDX-License-Identifier: Apache-2.0
#include "common/bytes.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace bytes_test {

using ::testing::HasSubstr;

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

struct Amount {
  std::string text;
  uint64_t bytes;
};

class ParsesBytes : public testing::TestWithParam<Amount> {};

TEST_P(ParsesBytes, Exactly) {
  const absl::StatusOr<uint64_t> bytes = ParseBytes(GetParam().text);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, GetParam().bytes);
}

INSTANTIATE_TEST_SUITE_P(Plain, ParsesBytes,
                         testing::Values(Amount{"0", 0}, Amount{"1", 1}, Amount{"4096", 4096},
                                         Amount{"007", 7}, Amount{"512B", 512},
                                         Amount{"512 b", 512}, Amount{"  64  ", 64},
                                         Amount{"18446744073709551615", kMax}));

INSTANTIATE_TEST_SUITE_P(BinaryUnits, ParsesBytes,
                         testing::Values(Amount{"1K", kKiB}, Amount{"1KiB", kKiB},
                                         Amount{"64MiB", 64 * kMiB}, Amount{"64 mib", 64 * kMiB},
                                         Amount{"2G", 2 * kGiB}, Amount{"2g", 2 * kGiB},
                                         Amount{"2 GiB", 2 * kGiB}, Amount{"\t2  GiB\n", 2 * kGiB},
                                         Amount{"3TiB", 3 * 1024 * kGiB},
                                         Amount{"1P", uint64_t{1} << 50},
                                         Amount{"15EiB", uint64_t{15} << 60}));

INSTANTIATE_TEST_SUITE_P(DecimalUnits, ParsesBytes,
                         testing::Values(Amount{"1KB", 1000}, Amount{"1kb", 1000},
                                         Amount{"20MB", 20'000'000}, Amount{"1GB", 1'000'000'000},
                                         Amount{"2TB", 2'000'000'000'000},
                                         Amount{"18EB", 18'000'000'000'000'000'000u}));

INSTANTIATE_TEST_SUITE_P(
    Fractions, ParsesBytes,
    testing::Values(Amount{"1.5 GiB", kGiB + kGiB / 2}, Amount{"0.25K", 256},
                    Amount{"1.5GB", 1'500'000'000}, Amount{"2.000", 2}, Amount{"0.1KiB", 102},
                    Amount{"0.9", 0}, Amount{"1.999999999999999999999B", 1},
                    // One bit below 16 EiB, written in EiB.
                    Amount{"15.5E", (uint64_t{15} << 60) + (uint64_t{1} << 59)}));

class RejectsBytes : public testing::TestWithParam<std::string> {};

TEST_P(RejectsBytes, NamingTheTextAndWhatIsExpected) {
  const absl::Status status = ParseBytes(GetParam()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + GetParam() + "\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1.5 GiB"));
}

INSTANTIATE_TEST_SUITE_P(NoNumber, RejectsBytes,
                         testing::Values("", " ", "GiB", "B", ".5", ".", "NaN", "inf", "abc"));
INSTANTIATE_TEST_SUITE_P(NotQuiteANumber, RejectsBytes,
                         testing::Values("-1", "-1 GiB", "+1", "1.", "1.GiB", "1..5", "1.2.3",
                                         "1e9", "0x10", "1,5G", "1_000", "1 000"));
INSTANTIATE_TEST_SUITE_P(UnknownUnit, RejectsBytes,
                         testing::Values("1 Gi", "1 X", "1 XiB", "1 GiBs", "1 GiB 2", "1 Gbit",
                                         "1 iB", "1 BiB", "1 ZiB", "50%"));
INSTANTIATE_TEST_SUITE_P(TooLarge, RejectsBytes,
                         testing::Values("18446744073709551616", "16EiB", "18.5EB",
                                         "17179869184GiB", "18446744073709551615.0 K",
                                         "99999999999999999999999999999999999999999999"));

TEST(ParseBytes, EscapesWhatCannotBePrinted) {
  const absl::Status status = ParseBytes("1\x01G\n").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"1\\001G\\n\""));
}

TEST(ParseBytes, HoldsTheLastByteBelowTheLimit) {
  // 2^64 - 1024, the largest whole number of KiB; then one KiB more.
  EXPECT_EQ(*ParseBytes("18014398509481983KiB"), kMax - 1023);
  EXPECT_FALSE(ParseBytes("18014398509481984KiB").ok());
}

TEST(ParseBytesOrPercent, TakesBytesWhateverTheWhole) {
  EXPECT_EQ(*ParseBytesOrPercent("64MiB", 0), 64 * kMiB);
  EXPECT_EQ(*ParseBytesOrPercent("1.5G", kGiB), kGiB + kGiB / 2);
}

TEST(ParseBytesOrPercent, TakesAShareOfTheWhole) {
  EXPECT_EQ(*ParseBytesOrPercent("50%", 1000), 500u);
  EXPECT_EQ(*ParseBytesOrPercent(" 50 % ", 1000), 500u);
  EXPECT_EQ(*ParseBytesOrPercent("12.5%", 80 * kGiB), 10 * kGiB);
  EXPECT_EQ(*ParseBytesOrPercent("0%", kMax), 0u);
  EXPECT_EQ(*ParseBytesOrPercent("100%", kMax), kMax);
  EXPECT_EQ(*ParseBytesOrPercent("100.000%", kMax), kMax);
  EXPECT_EQ(*ParseBytesOrPercent("50%", 0), 0u);
}

TEST(ParseBytesOrPercent, RoundsDown) {
  EXPECT_EQ(*ParseBytesOrPercent("50%", 3), 1u);
  EXPECT_EQ(*ParseBytesOrPercent("99.99999999999999999%", 100), 99u);
  EXPECT_EQ(*ParseBytesOrPercent("33.333333333333333333333333%", 300), 99u);
}

TEST(ParseBytesOrPercent, RejectsWhatIsNeither) {
  for (const std::string text : {"", "%", "-1%", "101%", "100.1%", "50%%", "5 0%", "1G%", "x%",
                                 "1e1%", "99999999999999999999999999%", "16EiB"}) {
    const absl::Status status = ParseBytesOrPercent(text, kGiB).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + text + "\""));
    EXPECT_THAT(std::string(status.message()), HasSubstr("0% to 100%"));
  }
}

TEST(FormatBytes, NamesTheLargestUnitThatFits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(64 * kMiB), "64.00 MiB");
  EXPECT_EQ(FormatBytes(kGiB + kGiB / 2), "1.50 GiB");
  EXPECT_EQ(FormatBytes(143'771 * kMiB), "140.40 GiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 40), "3.00 TiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 50), "3.00 PiB");
  EXPECT_EQ(FormatBytes(kMax), "16.00 EiB");
}

TEST(FormatBytes, RoundsIntoTheNextUnit) {
  EXPECT_EQ(FormatBytes(kMiB - 5), "1.00 MiB");
  EXPECT_EQ(FormatBytes(kMiB - 1), "1.00 MiB");
  EXPECT_EQ(FormatBytes(kGiB - 1), "1.00 GiB");
  EXPECT_EQ(FormatBytes(kMiB - 6), "1023.99 KiB");
}

TEST(FormatBytes, ReadsBackAsAboutTheSame) {
  for (uint64_t bytes = 1; bytes < kMax / 3; bytes *= 3) {
    const absl::StatusOr<uint64_t> again = ParseBytes(FormatBytes(bytes));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_NEAR(static_cast<double>(*again), static_cast<double>(bytes),
                static_cast<double>(bytes) * 0.005);
  }
}

TEST(FormatGibHours, HasFourDigitsBelowOneAndTwoAbove) {
  EXPECT_EQ(FormatGibHours(0), "0");
  EXPECT_EQ(FormatGibHours(1), "<0.0001");
  EXPECT_EQ(FormatGibHours(kGiB), "0.0003");
  EXPECT_EQ(FormatGibHours(kGiB * 1800), "0.5000");
  EXPECT_EQ(FormatGibHours(kGiB * 5400), "1.50");
  EXPECT_EQ(FormatGibHours(UINT64_MAX), "4772185.88");
}

TEST(RoundUp, GoesToTheNextMultiple) {
  EXPECT_EQ(*RoundUp(0, 2 * kMiB), 0u);
  EXPECT_EQ(*RoundUp(1, 2 * kMiB), 2 * kMiB);
  EXPECT_EQ(*RoundUp(2 * kMiB - 1, 2 * kMiB), 2 * kMiB);
  EXPECT_EQ(*RoundUp(2 * kMiB, 2 * kMiB), 2 * kMiB);
  EXPECT_EQ(*RoundUp(2 * kMiB + 1, 2 * kMiB), 4 * kMiB);
  EXPECT_EQ(*RoundUp(10, 3), 12u);
  EXPECT_EQ(*RoundUp(7, 1), 7u);
}

TEST(RoundUp, NeverWrapsAround) {
  EXPECT_EQ(*RoundUp(kMax, 1), kMax);
  EXPECT_EQ(*RoundUp(kMax - 1, kMax), kMax);
  EXPECT_EQ(*RoundUp(kMax - 4095, 4096), kMax - 4095);
  EXPECT_EQ(RoundUp(kMax - 4094, 4096).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RoundUp(kMax, 2).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RoundUp, RejectsAGranularityOfZero) {
  EXPECT_EQ(RoundUp(5, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace bytes_test
}  // namespace gpumem
