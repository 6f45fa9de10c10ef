// SPDX-License-Identifier: Apache-2.0
// Watches, against a daemon that sends given events.
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/testing/fake_daemon.h"
#include "common/node_clock.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem {
namespace watch_test {

using internal::FakeDaemon;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(20)})
      .value();
}

v1::Event Lost(uint64_t lease_id) {
  v1::Event event;
  event.mutable_segments_lost()->add_lease_ids(lease_id);
  return event;
}

v1::Event Draining(bool draining) {
  v1::Event event;
  event.mutable_draining()->set_draining(draining);
  return event;
}

v1::Event QuotaOf(uint64_t limit) {
  v1::Event event;
  event.mutable_quota_changed()->mutable_quota()->set_limit_bytes(limit);
  return event;
}

v1::Event PressureOf(uint64_t bytes) {
  v1::Event event;
  event.mutable_pressure()->set_device_uuid("GPU-7");
  event.mutable_pressure()->set_bytes(bytes);
  return event;
}

// Returns a time of the node's clock before now.
uint64_t Ago(absl::Duration time) {
  return NodeClockNs() - static_cast<uint64_t>(absl::ToInt64Nanoseconds(time));
}

v1::Event PressureUntil(uint64_t bytes, uint64_t deadline_ms, uint64_t sent_ns) {
  v1::Event event = PressureOf(bytes);
  event.mutable_pressure()->set_deadline_ms(deadline_ms);
  event.set_sent_ns(sent_ns);
  return event;
}

v1::Event RevocationOf(uint64_t lease_id, uint64_t deadline_ms, uint64_t sent_ns) {
  v1::Event event;
  event.mutable_revocation()->add_lease_ids(lease_id);
  event.mutable_revocation()->set_deadline_ms(deadline_ms);
  event.set_sent_ns(sent_ns);
  return event;
}

// The calls of the handlers, one word each.
class Heard {
 public:
  WatchHandlers Handlers() {
    return {.segments_lost =
                [this](const SegmentsLost& lost) {
                  for (uint64_t id : lost.lease_ids) Add("lost " + std::to_string(id));
                },
            .draining = [this](bool draining) { Add(draining ? "draining" : "admitting"); },
            .pressure =
                [this](const Pressure& pressure) {
                  Add(pressure.device_uuid + " wants " + std::to_string(pressure.bytes));
                },
            .ended = [this](const absl::Status& status) { Add(status.ToString()); }};
  }

  std::vector<std::string> Await(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] { return words_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(20)));
    return words_;
  }

 private:
  void Add(std::string word) {
    absl::MutexLock lock(&mutex_);
    words_.push_back(std::move(word));
  }

  absl::Mutex mutex_;
  std::vector<std::string> words_;
};

TEST(WatchTest, HandlersGetTheDaemonsEvents) {
  FakeDaemon daemon;
  daemon.Tell({});  // of a newer daemon, of a kind not known here
  daemon.Tell(Lost(7));
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers());
  ASSERT_TRUE(watch.ok()) << watch.status();
  EXPECT_THAT(heard.Await(1), ElementsAre("lost 7"));
  daemon.Tell(Draining(true));
  daemon.Tell(Draining(false));
  daemon.Tell(PressureOf(5));
  EXPECT_THAT(heard.Await(4), ElementsAre("lost 7", "draining", "admitting", "GPU-7 wants 5"));
}

TEST(WatchTest, SaysHowLongThereIs) {
  FakeDaemon daemon;
  daemon.Tell(PressureUntil(1, 0, Ago(absl::Hours(9))));  // no deadline
  daemon.Tell(PressureUntil(2, 60000, Ago(absl::ZeroDuration())));
  daemon.Tell(PressureUntil(3, 60000, Ago(absl::Seconds(30))));
  daemon.Tell(PressureUntil(4, 60000, Ago(absl::Seconds(61))));  // over: this process was stopped
  daemon.Tell(PressureUntil(5, 60000, Ago(-absl::Hours(1))));    // another clock
  daemon.Tell(PressureUntil(6, 60000, 0));                       // an older daemon
  daemon.Tell(RevocationOf(7, 30000, Ago(absl::Seconds(10))));
  daemon.Tell(RevocationOf(8, 30000, Ago(absl::Seconds(40))));  // over, but still reported
  daemon.Tell(RevocationOf(9, UINT64_MAX, 0));
  absl::Mutex mutex;
  std::vector<std::pair<uint64_t, absl::Duration>> heard;  // bytes or lease, and the rest
  const auto add = [&](uint64_t number, absl::Duration left) {
    absl::MutexLock lock(&mutex);
    heard.emplace_back(number, left);
  };
  auto client = ConnectTo(daemon);
  auto watch = client->StartWatch(
      {.pressure = [&](const Pressure& pressure) { add(pressure.bytes, pressure.deadline); },
       .revocation =
           [&](const Revocation& revocation) {
             for (uint64_t id : revocation.lease_ids) add(id, revocation.until_end);
           }});
  ASSERT_TRUE(watch.ok()) << watch.status();
  const auto all = [&] { return heard.size() >= 8; };
  absl::MutexLock lock(&mutex);
  ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(20)));
  std::vector<uint64_t> numbers;
  for (const auto& [number, left] : heard) numbers.push_back(number);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3, 5, 6, 7, 8, 9));
  // It may have taken some seconds to arrive.
  const auto between = [&](size_t i, int64_t least, int64_t most) {
    EXPECT_GE(heard[i].second, absl::Seconds(least)) << heard[i].first;
    EXPECT_LE(heard[i].second, absl::Seconds(most)) << heard[i].first;
  };
  between(0, 0, 0);
  between(1, 35, 60);
  between(2, 5, 30);
  between(3, 60, 60);
  between(4, 60, 60);
  between(5, 1, 20);
  between(6, 0, 0);
  EXPECT_GT(heard[7].second, absl::Hours(24 * 365));
}

TEST(WatchTest, TellsOfTheQuotaThatWasChanged) {
  FakeDaemon daemon;
  v1::Event event = QuotaOf(5);
  v1::Quota& sent = *event.mutable_quota_changed()->mutable_quota();
  sent.set_total_limit_bytes(6);
  sent.set_guarantee_bytes(2);
  sent.set_pinned_limit_bytes(0);
  sent.set_max_waiting(3);
  sent.set_priority(-4);
  sent.set_revocable(true);
  sent.set_parent("ml");
  v1::DeviceLimit* const limit = sent.add_devices();
  limit->set_device_uuid("GPU-1");
  limit->set_limit_bytes(7);
  for (const char* uuid : {"GPU-1", "GPU-2"}) {
    v1::DeviceGuarantee* const guarantee = sent.add_guarantees();
    guarantee->set_device_uuid(uuid);
    guarantee->set_guarantee_bytes(1);
  }
  daemon.Tell(event);
  auto client = ConnectTo(daemon);
  Quota quota;
  absl::Notification told;
  auto watch = client->StartWatch({.quota_changed = [&](const Quota& changed) {
    quota = changed;
    told.Notify();
  }});
  ASSERT_TRUE(watch.ok()) << watch.status();
  ASSERT_TRUE(told.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(quota.limit_bytes, 5u);
  EXPECT_EQ(quota.total_limit_bytes, 6u);
  EXPECT_EQ(quota.guarantee_bytes, 2u);
  EXPECT_EQ(quota.pinned_limit_bytes, 0u);
  EXPECT_EQ(quota.max_segments, std::nullopt);
  EXPECT_EQ(quota.max_waiting, 3u);
  EXPECT_EQ(quota.priority, -4);
  EXPECT_TRUE(quota.revocable);
  EXPECT_EQ(quota.parent, "ml");
  ASSERT_EQ(quota.devices.size(), 2u);
  EXPECT_EQ(quota.devices[0].device_uuid, "GPU-1");
  EXPECT_EQ(quota.devices[0].limit_bytes, 7u);
  EXPECT_EQ(quota.devices[0].guarantee_bytes, 1u);
  EXPECT_EQ(quota.devices[1].limit_bytes, std::nullopt);
  EXPECT_EQ(quota.devices[1].guarantee_bytes, 1u);
}

TEST(WatchTest, TheEndOfTheStreamIsToldOnceAndLast) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  daemon.AwaitWatches(1);
  daemon.Tell(Draining(true));
  EXPECT_THAT(heard.Await(1), ElementsAre("draining"));
  daemon.EndWatches({grpc::StatusCode::RESOURCE_EXHAUSTED, "you read too slowly"});
  EXPECT_THAT(heard.Await(2), ElementsAre("draining", "RESOURCE_EXHAUSTED: you read too slowly"));
  watch.reset();
  EXPECT_EQ(heard.Await(2).size(), 2u);
}

TEST(WatchTest, AStreamThatEndsWellIsTheEndOfTheSession) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  daemon.AwaitWatches(1);
  daemon.Goodbye(1, "the node is going down");
  daemon.EndWatches(grpc::Status::OK);
  const std::vector<std::string> words = heard.Await(1);
  EXPECT_THAT(words, ElementsAre(HasSubstr("UNAVAILABLE")));
  EXPECT_THAT(words, ElementsAre(HasSubstr("the node is going down")));
}

TEST(WatchTest, AStreamThatTheDaemonCancelsIsUnavailable) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  daemon.AwaitWatches(1);
  daemon.EndWatches({grpc::StatusCode::CANCELLED, "the watch has ended"});
  const std::vector<std::string> words = heard.Await(1);
  EXPECT_THAT(words, ElementsAre(HasSubstr("UNAVAILABLE")));
  EXPECT_THAT(words, ElementsAre(HasSubstr("the watch has ended")));
}

// As with a daemon that is stopped for a restart: gRPC reports it before the session's socket does.
TEST(WatchTest, AStreamThatTheServerCutsOffBeginsAgain) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  daemon.AwaitWatches(1);
  daemon.EndWatches({grpc::StatusCode::CANCELLED, "Cancelled on the server side"});
  daemon.AwaitWatches(0);
  daemon.KeepWatches();
  daemon.AwaitWatches(1);
  daemon.Tell(Draining(true));
  EXPECT_THAT(heard.Await(1), ElementsAre("draining"));
}

// As a daemon does with a stream that is not read for 10 s. It is the same daemon, which drains all
// the time and tells each new Watch so.
TEST(WatchTest, EventsOfACutOffStreamAreNotUndone) {
  FakeDaemon daemon;
  daemon.Tell(Draining(true));
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  EXPECT_THAT(heard.Await(1), ElementsAre("draining"));
  daemon.EndWatches({grpc::StatusCode::CANCELLED, "CANCELLED"});
  daemon.AwaitWatches(0);
  daemon.KeepWatches();
  daemon.AwaitWatches(1);
  daemon.Tell(PressureOf(5));
  EXPECT_THAT(heard.Await(2), ElementsAre("draining", "GPU-7 wants 5"));
  daemon.Tell(Draining(false));
  EXPECT_THAT(heard.Await(3), ElementsAre("draining", "GPU-7 wants 5", "admitting"));
}

TEST(WatchTest, AdmittingAtTheStartIsNotAnEvent) {
  FakeDaemon daemon;
  daemon.Tell(Draining(false));
  daemon.Tell(PressureOf(5));
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  EXPECT_THAT(heard.Await(1), ElementsAre("GPU-7 wants 5"));
}

TEST(WatchTest, DestructionEndsTheCallsWithoutCallingEnded) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  bool called = false;
  WatchHandlers handlers;
  handlers.ended = [&](const absl::Status&) { called = true; };
  auto watch = client->StartWatch(handlers).value();
  daemon.AwaitWatches(1);
  watch.reset();
  EXPECT_FALSE(called);
  daemon.AwaitWatches(0);
  // It ends neither the session nor another Watch.
  EXPECT_TRUE(client->GetUsage().ok());
  Heard heard;
  auto other = client->StartWatch(heard.Handlers()).value();
  daemon.Tell(Draining(true));
  EXPECT_THAT(heard.Await(1), ElementsAre("draining"));
}

TEST(WatchTest, AHandlerMayEndItsOwnWatch) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  std::unique_ptr<Watch> watch;
  absl::Notification started, ended;
  int calls = 0;
  watch = client
              ->StartWatch({.draining =
                                [&](bool) {
                                  started.WaitForNotification();
                                  ++calls;
                                  watch.reset();
                                  ended.Notify();
                                }})
              .value();
  started.Notify();
  daemon.Tell(Draining(true));
  daemon.Tell(Draining(false));
  ended.WaitForNotification();
  daemon.AwaitWatches(0);
  EXPECT_EQ(calls, 1);
}

TEST(WatchTest, OutlivesItsClient) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  client.reset();
  daemon.Tell(Lost(9));
  EXPECT_THAT(heard.Await(1), ElementsAre("lost 9"));
  watch.reset();
  daemon.AwaitWatches(0);
}

TEST(WatchTest, ACrashOfTheDaemonEndsItWhereTheSessionEndsWithIt) {
  FakeDaemon daemon;
  auto client = Client::Connect({.runtime_dir = daemon.runtime_dir(), .reconnect = false}).value();
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  daemon.AwaitWatches(1);
  daemon.Crash();
  EXPECT_THAT(heard.Await(1), ElementsAre(HasSubstr("UNAVAILABLE")));
  EXPECT_EQ(client->StartWatch({}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(WatchTest, AForkedChildHasNone) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Heard heard;
  auto watch = client->StartWatch(heard.Handlers()).value();
  daemon.AwaitWatches(1);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        client->StartWatch({}).status().code() == absl::StatusCode::kFailedPrecondition;
    watch.reset();
    client.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  daemon.Tell(Draining(true));
  EXPECT_THAT(heard.Await(1), ElementsAre("draining"));
}

}  // namespace watch_test
}  // namespace gpumem
