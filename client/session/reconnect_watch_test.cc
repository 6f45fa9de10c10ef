// SPDX-License-Identifier: Apache-2.0
// What a program hears of a daemon that crashes: lost leases, and a Watch that continues.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace reconnect_watch_test {

using internal::FakeDaemon;
using ::testing::ElementsAre;

constexpr uint64_t kBytes = 64 * 1024;

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(60)})
      .value();
}

// Blocks until the condition of another thread is true.
void Await(const std::function<bool()>& happened) {
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (!happened() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(happened());
}

TEST(ReconnectTest, LostLeasesAreReportedAndCannotBeShared) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment lost = client->Acquire({.bytes = kBytes}).value();
  Segment kept = client->Acquire({.bytes = kBytes}).value();
  absl::Mutex mutex;
  std::vector<uint64_t> told, told_later;
  const auto tell = [&mutex](std::vector<uint64_t>* to) {
    return [&mutex, to](const SegmentsLost& which) {
      absl::MutexLock lock(&mutex);
      *to = which.lease_ids;
    };
  };
  const auto heard = [&](const std::vector<uint64_t>& of) {
    absl::MutexLock lock(&mutex);
    return of;
  };
  auto watch = client->StartWatch({.segments_lost = tell(&told)}).value();
  daemon.AwaitWatches(1);
  daemon.Crash();
  daemon.LoseLease(lost.lease_id());
  daemon.ComeBack();
  Await([&] { return !heard(told).empty(); });
  EXPECT_THAT(heard(told), ElementsAre(lost.lease_id()));
  auto late = client->StartWatch({.segments_lost = tell(&told_later)}).value();
  Await([&] { return !heard(told_later).empty(); });
  EXPECT_THAT(heard(told_later), ElementsAre(lost.lease_id()));
  // Together with those that the daemon reports itself.
  v1::Event event;
  event.mutable_segments_lost()->add_lease_ids(kept.lease_id());
  daemon.Tell(event);
  Await([&] { return heard(told).size() == 2; });
  EXPECT_THAT(heard(told), ElementsAre(lost.lease_id(), kept.lease_id()));

  memset(lost.data(), 1, lost.size());
  EXPECT_EQ(lost.Share().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(kept.Share().ok());
  const int releases = daemon.release_calls();
  EXPECT_TRUE(lost.Release().ok());
  EXPECT_EQ(daemon.release_calls(), releases);
  EXPECT_TRUE(kept.Release().ok());
}

TEST(ReconnectTest, AWatchGoesOnByItself) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  absl::Mutex mutex;
  std::vector<std::string> words;
  const auto add = [&](std::string word) {
    absl::MutexLock lock(&mutex);
    words.push_back(std::move(word));
  };
  const auto await = [&](size_t count) {
    Await([&] {
      absl::MutexLock lock(&mutex);
      return words.size() >= count;
    });
    absl::MutexLock lock(&mutex);
    return words;
  };
  auto watch =
      client
          ->StartWatch(
              {.draining = [&](bool on) { add(on ? "draining" : "admitting"); },
               .pressure = [&](const Pressure& pressure) { add(std::to_string(pressure.bytes)); },
               .ended =
                   [&](const absl::Status& status) {
                     add(std::string(absl::StatusCodeToString(status.code())));
                   }})
          .value();
  daemon.AwaitWatches(1);
  v1::Event draining;
  draining.mutable_draining()->set_draining(true);
  daemon.Tell(draining);
  EXPECT_THAT(await(1), ElementsAre("draining"));
  daemon.Crash();
  daemon.ForgetEvents();
  draining.mutable_draining()->set_draining(false);
  daemon.Tell(draining);  // as the first event of a Watch
  daemon.ComeBack();
  daemon.AwaitWatches(1);  // without any call
  v1::Event pressure;
  pressure.mutable_pressure()->set_bytes(5);
  daemon.Tell(pressure);
  EXPECT_THAT(await(3), ElementsAre("draining", "admitting", "5"));
  daemon.Crash();
  daemon.ComeBack(/*remembers=*/false);
  EXPECT_EQ(await(4).back(), "UNAVAILABLE");
  watch.reset();
  EXPECT_EQ(await(4).size(), 4u);
}

TEST(ReconnectTest, AWatchMayBeginWhileTheDaemonIsAway) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  daemon.Crash();
  absl::Notification told;
  auto watch = client->StartWatch({.pressure = [&](const Pressure&) { told.Notify(); }});
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon.ComeBack();
  v1::Event pressure;
  pressure.mutable_pressure()->set_bytes(5);
  daemon.Tell(pressure);
  EXPECT_TRUE(told.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

}  // namespace reconnect_watch_test
}  // namespace gpumem
