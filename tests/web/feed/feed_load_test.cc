// SPDX-License-Identifier: Apache-2.0
// The feed beside a daemon with 10,000 segments and 1,000 tenants: what a look costs.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gpumem/client.h"
#include "tests/web/feed/feed_fixture.h"

namespace gpumem {
namespace {

using testing::FeedTest;
using testing::Json;
using testing::Reader;

constexpr int kTenants = 1'000, kSessions = 100, kSegmentsOfSession = 100;

absl::Duration CpuTime() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

class FeedUnderLoad : public FeedTest {
 protected:
  void SetUp() override {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    constexpr rlim_t kNeeded = 12'000;  // of the daemon: one for each segment
    if (files.rlim_max < kNeeded || setrlimit(RLIMIT_NOFILE, &files) != 0) {
      GTEST_SKIP() << "needs " << kNeeded << " descriptors";
    }
    std::string config;
    for (int i = 0; i < kTenants; ++i) {
      absl::StrAppend(&config, "[[tenant]]\nname = \"tenant-", i, "\"\n");
    }
    for (int i = 0; i < kTenants; ++i) {
      absl::StrAppend(&config, "[[rule]]\ntenant = \"tenant-", i, "\"\ndefault = true\n");
    }
    Start(config, {"--host-devices", "4", "--host-device-bytes", "16GiB"});
    for (int i = 0; i < kSessions; ++i) {
      clients_.push_back(Connect(absl::StrCat("tenant-", 10 * i)));
      ASSERT_NE(clients_.back(), nullptr);
      auto segments = clients_.back()->AcquireMany(
          {.bytes = 2 << 20, .device = absl::StrCat(i % 4)}, kSegmentsOfSession);
      ASSERT_TRUE(segments.ok()) << segments.status();
      for (Segment& each : *segments) segments_.push_back(std::move(each));
    }
  }

  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Segment> segments_;
};

TEST_F(FeedUnderLoad, IsQuickAndQuiet) {
  absl::Time begin = absl::Now();
  const auto text = feed_->Snapshot(kOperator);
  const absl::Duration first = absl::Now() - begin;
  ASSERT_TRUE(text.ok()) << text.status();
  const Json document = Json::parse(**text);
  EXPECT_EQ(document["segments"].size(), 10'000u);
  EXPECT_EQ(document["leases"].size(), 10'000u);
  EXPECT_GE(document["tenants"].size(), 1'000u);

  absl::Duration cpu = CpuTime();
  begin = absl::Now();
  constexpr int kRounds = 5;
  for (int i = 0; i < kRounds; ++i) {
    absl::SleepFor(absl::Milliseconds(110));  // each is a query
    ASSERT_TRUE(feed_->Snapshot(kOperator).ok());
  }
  const absl::Duration again = (absl::Now() - begin) / kRounds - absl::Milliseconds(110);
  const absl::Duration cpu_of_query = (CpuTime() - cpu) / kRounds;

  Reader reader(*feed_, kOperator);
  reader.Await("snapshot");
  reader.Await("event");
  const auto tick = reader.Await("tick", reader.size());
  cpu = CpuTime();
  begin = absl::Now();
  const size_t quiet = reader.size();
  reader.Await("tick", quiet);
  const double load = absl::FDivDuration(CpuTime() - cpu, absl::Now() - begin);
  for (const auto& event : reader.events(quiet)) EXPECT_EQ(event.name, "tick") << event.data;

  segments_.pop_back();
  const size_t before = reader.size();
  begin = absl::Now();
  const auto change = reader.Await("change", before);
  const absl::Duration seen = absl::Now() - begin;
  EXPECT_LT(change.bytes, (*text)->size() / 10) << "idle tenants do not change";

  begin = absl::Now();
  const auto own = feed_->Snapshot({.uid = 54321});
  const absl::Duration of_others = absl::Now() - begin;
  ASSERT_TRUE(own.ok());

  std::printf(
      "document %zu bytes: first %s, again %s, CPU %s; idle poll: %zu bytes each 5 s, %.1f %% CPU; "
      "change %zu bytes after %s; view of a stranger %zu bytes in %s\n",
      (*text)->size(), absl::FormatDuration(first).c_str(), absl::FormatDuration(again).c_str(),
      absl::FormatDuration(cpu_of_query).c_str(), tick.bytes, load * 100, change.bytes,
      absl::FormatDuration(seen).c_str(), (*own)->size(), absl::FormatDuration(of_others).c_str());
  // Far above the usual time: the test's machine may be busy.
  EXPECT_LT(first, absl::Seconds(10));
}

}  // namespace
}  // namespace gpumem
