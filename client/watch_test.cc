// Watches, against a daemon that says what it is told to.
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/client.h"
#include "client/fake_daemon.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem {
namespace {

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

v1::Event Quota() {
  v1::Event event;
  event.mutable_quota_changed();
  return event;
}

v1::Event PressureOf(uint64_t bytes) {
  v1::Event event;
  event.mutable_pressure()->set_device_uuid("GPU-7");
  event.mutable_pressure()->set_bytes(bytes);
  return event;
}

// What the handlers were told, one word each.
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

TEST(WatchTest, HandlersHearWhatTheDaemonSays) {
  FakeDaemon daemon;
  daemon.Tell(Quota());
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

TEST(WatchTest, ItsEndEndsTheCallsWithoutAWord) {
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
  // Nor does it end the session, nor another Watch.
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

TEST(WatchTest, ACrashOfTheDaemonEndsIt) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
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

}  // namespace
}  // namespace gpumem
