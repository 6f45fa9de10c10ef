// SPDX-License-Identifier: Apache-2.0
#include "daemon/log/log_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumemd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kKind[] = "refused sessions";

class LogLimitTest : public ::testing::Test {
 protected:
  LogLimiter Limiter(LogLimitOptions options) {
    options.now = [this] { return now_; };
    return LogLimiter(std::move(options));
  }
  static int Admitted(LogLimiter& limiter, int lines, std::optional<uid_t> uid,
                      absl::string_view kind = kKind) {
    int admitted = 0;
    for (int i = 0; i < lines; ++i) admitted += limiter.Admit(kind, uid) ? 1 : 0;
    return admitted;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(LogLimitTest, AFewLinesOfEachSourcePassAndTheOthersAreCounted) {
  LogLimiter limiter = Limiter({.per_source = 5, .per_kind = 50});
  EXPECT_EQ(Admitted(limiter, 3117, 1234), 5);
  EXPECT_EQ(limiter.suppressed(), 3112);
  EXPECT_THAT(limiter.TakeEnded(), IsEmpty()) << "the window has not ended";

  now_ += absl::Seconds(10);
  const auto ended = limiter.TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].kind, kKind);
  EXPECT_EQ(ended[0].uid, 1234);
  EXPECT_EQ(ended[0].lines, 3112);
  EXPECT_EQ(ended[0].over, absl::Seconds(10));
  EXPECT_THAT(limiter.TakeEnded(), IsEmpty()) << "each count is told once";
  EXPECT_EQ(limiter.sources(), 0);
}

TEST_F(LogLimitTest, OneSourceDoesNotSilenceAnother) {
  LogLimiter limiter = Limiter({.per_source = 5, .per_kind = 50});
  EXPECT_EQ(Admitted(limiter, 1000, 1), 5);
  EXPECT_EQ(Admitted(limiter, 1000, 2), 5);
  EXPECT_EQ(Admitted(limiter, 1000, 1, "refused connections"), 5);
  EXPECT_EQ(Admitted(limiter, 1000, std::nullopt), 5);
}

TEST_F(LogLimitTest, LinesPassAgainInTheNextWindow) {
  LogLimiter limiter = Limiter({.per_source = 2, .window = absl::Seconds(10)});
  EXPECT_EQ(Admitted(limiter, 10, 1), 2);
  now_ += absl::Seconds(9);
  EXPECT_EQ(Admitted(limiter, 10, 1), 0);
  now_ += absl::Seconds(1);
  EXPECT_EQ(Admitted(limiter, 10, 1), 2);
  // What was not taken yet is not lost.
  EXPECT_EQ(limiter.suppressed(), 26);
  now_ += absl::Seconds(10);
  const auto ended = limiter.TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].lines, 26);
}

TEST_F(LogLimitTest, AFloodThatGoesOnIsToldOfEachWindow) {
  LogLimiter limiter = Limiter({.per_source = 2, .window = absl::Seconds(10)});
  EXPECT_EQ(Admitted(limiter, 10, 1), 2);
  for (int window = 0; window < 3; ++window) {
    now_ += absl::Seconds(10);
    // Before the counts of the last window are taken.
    EXPECT_EQ(Admitted(limiter, 10, 1), 2);
    const auto ended = limiter.TakeEnded();
    ASSERT_THAT(ended, SizeIs(1));
    EXPECT_EQ(ended[0].lines, 8);
    EXPECT_EQ(ended[0].over, absl::Seconds(10));
  }
}

TEST_F(LogLimitTest, AllSourcesOfAKindTogetherAreBounded) {
  LogLimiter limiter = Limiter({.per_source = 5, .per_kind = 50, .max_sources = 100'000});
  int admitted = 0;
  for (uid_t uid = 0; uid < 1000; ++uid) admitted += Admitted(limiter, 5, uid);
  EXPECT_EQ(admitted, 50);
}

TEST_F(LogLimitTest, MemoryIsBoundedForAnyNumberOfUids) {
  constexpr uid_t kUids = 200'000;
  LogLimiter limiter = Limiter({.per_source = 5, .per_kind = 1'000'000, .max_sources = 1024});
  uint64_t admitted = 0;
  for (uid_t uid = 0; uid < kUids; ++uid) {
    admitted += limiter.Admit(kKind, uid) ? 1 : 0;
    ASSERT_LE(limiter.sources(), 1024);
  }
  // Those beyond it share one source.
  EXPECT_EQ(admitted, 1024 + 5);
  now_ += absl::Seconds(10);
  const auto ended = limiter.TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].uid, std::nullopt);
  EXPECT_EQ(ended[0].lines, kUids - 1024 - 5);
  EXPECT_EQ(limiter.sources(), 0);
}

TEST_F(LogLimitTest, NextEndIsThatOfTheFirstWindow) {
  LogLimiter limiter = Limiter({.window = absl::Seconds(10)});
  EXPECT_EQ(limiter.NextEnd(), absl::InfiniteFuture());
  const absl::Time first = now_;
  limiter.Admit(kKind, 1);
  now_ += absl::Seconds(4);
  limiter.Admit(kKind, 2);
  EXPECT_EQ(limiter.NextEnd(), first + absl::Seconds(10));
  now_ = first + absl::Seconds(10);
  EXPECT_THAT(limiter.TakeEnded(), IsEmpty());
  EXPECT_EQ(limiter.NextEnd(), first + absl::Seconds(14));
  now_ = first + absl::Seconds(14);
  EXPECT_THAT(limiter.TakeEnded(), IsEmpty());
  EXPECT_EQ(limiter.NextEnd(), absl::InfiniteFuture());
}

TEST_F(LogLimitTest, AClockThatIsSetBackSilencesNothing) {
  LogLimiter limiter = Limiter({.per_source = 2});
  EXPECT_EQ(Admitted(limiter, 10, 1), 2);
  now_ -= absl::Hours(24);
  EXPECT_EQ(Admitted(limiter, 10, 1), 2);
  now_ += absl::Seconds(10);
  EXPECT_THAT(limiter.TakeEnded(), SizeIs(1));
}

}  // namespace
}  // namespace gpumemd
