// SPDX-License-Identifier: Apache-2.0
// Tables of soaks that did not take place: is a leak found in the part of the soak in which it is?
#include "tests/soak/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/expect_status.h"

namespace gpumem::soak {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kAnHour = 3600;  // in seconds
constexpr double kMiBytes = 1 << 20;

// Amounts lost in an hour.
struct Leaks {
  double memory = 0, descriptors = 0, threads = 0;  // of a daemon, while it lives
  double journal = 0;                               // that the next daemon takes over
  double keeper = 0;                                // descriptors
  double history = 0;                               // bytes that a daemon's first hour fills
  double leases = 0;                                // that no worker has, while a daemon lives
};

// The daemon is killed each half minute for two fifths of the time.
std::vector<Figures> Soak(const Leaks& leaks, int seconds = kAnHour) {
  const int storm = seconds * 2 / 5;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<Figures> rows;
  for (int second = 0; second < seconds; ++second) {
    const bool calm = second >= storm;
    const double age = calm ? second - storm : second % 30;
    const auto lost = [&](double an_hour, double since) { return an_hour * since / kAnHour; };
    const auto count = [&](double value) { return std::floor(value) + (random() % 3); };
    rows.push_back(
        {{"seconds", second},
         {"calm", calm},
         {"generation", calm ? 1000 : 1 + second / 30},
         {"daemon_heap", 12 * kMiBytes + 20e3 * normal(random) + lost(leaks.memory, age) +
                             lost(leaks.history, std::min<double>(age, kAnHour))},
         {"daemon_fds", count(60 + lost(leaks.descriptors, age))},
         {"daemon_threads", count(20 + lost(leaks.threads, age))},
         {"journal_bytes", 524288 + 4096 * (random() % 4) + lost(leaks.journal, second)},
         {"keeper_fds", count(30 + lost(leaks.keeper, second))},
         // Of a daemon that is killed there are fewer: workers wait for the next one.
         {"leases", count((calm ? 35 : 26) + lost(leaks.leases, age))}});
  }
  return rows;
}

std::vector<std::string> Growing(const std::vector<Figures>& rows) {
  std::vector<std::string> names;
  for (const Verdict& verdict : JudgeTable(rows)) {
    if (verdict.finding != Finding::kGrows) continue;
    names.push_back(
        absl::StrCat(verdict.series.column, verdict.series.part == Part::kLives ? "/lives" : ""));
  }
  return names;
}

TEST(Verdict, NothingGrowsWithoutALeak) {
  const std::vector<Verdict> verdicts = JudgeTable(Soak({}));
  EXPECT_EQ(verdicts.size(), 11u);  // of the figures in the table
  for (const Verdict& verdict : verdicts) {
    EXPECT_EQ(verdict.finding, Finding::kFlat) << TextOf({verdict});
  }
}

TEST(Verdict, LeaksOfADaemonAreFoundWhereItLives) {
  EXPECT_THAT(Growing(Soak({.memory = 2 * kMiBytes})), ElementsAre("daemon_heap"));
  EXPECT_THAT(Growing(Soak({.descriptors = 12})), ElementsAre("daemon_fds"));
  EXPECT_THAT(Growing(Soak({.threads = 12})), ElementsAre("daemon_threads"));
  EXPECT_THAT(Growing(Soak({.leases = 24})), ElementsAre("leases"));
}

// With a calm part of less than two hours that hour counts, and with a longer one it does not.
TEST(Verdict, ADaemonMayFillItsHistoryInItsFirstHour) {
  const Leaks history = {.history = kMiBytes / 2};
  for (int minutes : {60, 132, 180, 300}) {
    EXPECT_THAT(Growing(Soak(history, minutes * 60)), IsEmpty()) << minutes;
  }
  EXPECT_THAT(Growing(Soak({.memory = kMiBytes / 2}, 5 * kAnHour)), ElementsAre("daemon_heap"));
}

TEST(Verdict, WhatDaemonsHandOnIsFound) {
  EXPECT_THAT(Growing(Soak({.journal = kMiBytes})),
              ElementsAre("journal_bytes", "journal_bytes/lives"));
  EXPECT_THAT(Growing(Soak({.keeper = 12})), ElementsAre("keeper_fds", "keeper_fds/lives"));
}

// Long soaks take a sample each five or six seconds.
TEST(Verdict, DaemonsWithFewSamplesAreCompared) {
  for (const int distance : {5, 6}) {
    const auto some_of = [distance](const std::vector<Figures>& rows) {
      std::vector<Figures> some;
      for (size_t i = 0; i < rows.size(); i += distance) some.push_back(rows[i]);
      return some;
    };
    EXPECT_EQ(JudgeTable(some_of(Soak({}, 6 * kAnHour))).size(), 11u) << distance;
    EXPECT_THAT(Growing(some_of(Soak({.journal = kMiBytes}, 6 * kAnHour))),
                ElementsAre("journal_bytes", "journal_bytes/lives"))
        << distance;
  }
}

TEST(Verdict, ATableIsReadAsItWasWritten) {
  const std::vector<Figures> rows = {{{"seconds", 1}, {"daemon_rss", 12345678901}},
                                     {{"seconds", 2.5}, {"leases", 3}}};
  const std::string text =
      absl::StrCat(HeaderLine(), "\n", LineOf(rows[0]), "\n", LineOf(rows[1]), "\n");
  const auto read = ReadTable(text);
  ASSERT_OK(read);
  EXPECT_EQ(*read, rows);
  EXPECT_STATUS(ReadTable(""), kInvalidArgument, "empty");
  EXPECT_STATUS(ReadTable("seconds,leases\n1\n"), kInvalidArgument, "line 2");
  EXPECT_STATUS(ReadTable("seconds,leases\n1,many\n"), kInvalidArgument, "many");
  EXPECT_STATUS(ReadTable("seconds,leases\n,1\n"), kInvalidArgument, "time");
}

TEST(Verdict, AnEmptyTableShowsNothing) { EXPECT_THAT(JudgeTable({}), IsEmpty()); }

}  // namespace
}  // namespace gpumem::soak
