// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/exposition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumemd {
namespace {

using ::testing::HasSubstr;

TEST(ExpositionTest, LabelValuesAreEscaped) {
  EXPECT_EQ(EscapeLabelValue(R"(plain {a="b"})"), R"(plain {a=\"b\"})");
  EXPECT_EQ(EscapeLabelValue(R"(C:\dir\)"), R"(C:\\dir\\)");
  EXPECT_EQ(EscapeLabelValue("two\nlines"), "two\\nlines");
  EXPECT_EQ(EscapeLabelValue("\"\n\\"), "\\\"\\n\\\\");
  EXPECT_EQ(EscapeLabelValue("\xff\x01\tz\xc3\xa4"), "???z??") << "or it might be no UTF-8";
  EXPECT_EQ(EscapeLabelValue(""), "");
}

TEST(ExpositionTest, AFamilyIsItsHelpItsTypeAndItsSamples) {
  Exposition page;
  page.Family("a_total", Exposition::Type::kCounter, "Help with a \\ and\na line.");
  page.Sample({}, 3);
  page.Sample({{"x", "1"}, {"y", "a\"b"}}, 18446744073709551615u);
  page.Family("b_seconds", Exposition::Type::kGauge, "B.");
  page.Seconds({}, absl::Milliseconds(1500));
  page.Seconds({}, absl::Seconds(1700000000) + absl::Nanoseconds(1));
  EXPECT_EQ(page.Take(),
            "# HELP a_total Help with a \\\\ and\\na line.\n"
            "# TYPE a_total counter\n"
            "a_total 3\n"
            "a_total{x=\"1\",y=\"a\\\"b\"} 18446744073709551615\n"
            "# HELP b_seconds B.\n"
            "# TYPE b_seconds gauge\n"
            "b_seconds 1.5\n"
            "b_seconds 1700000000.000000001\n");
  EXPECT_EQ(page.Take(), "");
}

TEST(ExpositionTest, BucketsOfAHistogramCountAllBelowThem) {
  LatencyHistogram histogram;
  histogram.Observe(absl::Microseconds(10));
  histogram.Observe(absl::Microseconds(25));
  histogram.Observe(absl::Microseconds(26));
  histogram.Observe(absl::Hours(1));
  Exposition page;
  page.Family("h_seconds", Exposition::Type::kHistogram, "H.");
  page.Histogram({{"kind", "vmm"}}, histogram.Read());
  const std::string text = page.Take();
  EXPECT_THAT(text, HasSubstr("# TYPE h_seconds histogram\n"
                              "h_seconds_bucket{kind=\"vmm\",le=\"0.000025\"} 2\n"
                              "h_seconds_bucket{kind=\"vmm\",le=\"0.00005\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_bucket{kind=\"vmm\",le=\"60\"} 3\n"
                              "h_seconds_bucket{kind=\"vmm\",le=\"+Inf\"} 4\n"
                              "h_seconds_sum{kind=\"vmm\"} 3600.000061\n"
                              "h_seconds_count{kind=\"vmm\"} 4\n"));
}

}  // namespace
}  // namespace gpumemd
