// SPDX-License-Identifier: Apache-2.0
// Segments that end without a wait for the daemon, against a daemon that is slow, refuses or dies.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace async_release_test {

using internal::FakeDaemon;

constexpr uint64_t kBytes = 64 * 1024;

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(60)})
      .value();
}

TEST(AsyncReleaseTest, TheDaemonHearsOfItWithoutAnotherCall) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  for (int round = 0; round < 3; ++round) {
    std::vector<Segment> segments = client->AcquireMany({.bytes = kBytes}, 20).value();
    segments.clear();
    EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);
  }
}

TEST(AsyncReleaseTest, EachCallSendsItFirst) {
  FakeDaemon* fake = nullptr;
  std::atomic<size_t> seen = 99;
  FakeDaemon daemon({.usage = [&] {
    seen = fake->live_leases();
    return grpc::Status::OK;
  }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  auto other = ConnectTo(daemon);  // of the same process
  for (int round = 0; round < 50; ++round) {
    Segment segment = client->Acquire({.bytes = kBytes}).value();
    segment = Segment();
    EXPECT_TRUE((round % 2 == 0 ? client : other)->GetUsage().ok());
    EXPECT_EQ(seen, 0u);
    segment = client->Acquire({.bytes = kBytes}).value();
    std::thread([ending = std::move(segment)] {}).join();
    EXPECT_TRUE(client->Devices().ok());
    EXPECT_EQ(daemon.live_leases(), 0u);
    segment = client->Acquire({.bytes = kBytes}).value();
    segment = Segment();
    Segment next = (round % 2 == 0 ? client : other)->Acquire({.bytes = kBytes}).value();
    EXPECT_EQ(daemon.live_leases(), 1u);
  }
}

TEST(AsyncReleaseTest, ManyAreSentTogetherAndCallsWaitForThem) {
  absl::Notification asked, go_on;
  std::atomic<int> asks = 0;
  FakeDaemon daemon({.release = [&](const v1::ReleaseRequest&) {
    if (asks++ == 0) {
      asked.Notify();
      go_on.WaitForNotification();
    }
    return grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  std::vector<Segment> segments = client->AcquireMany({.bytes = kBytes}, 250).value();
  segments.pop_back();
  asked.WaitForNotification();
  const absl::Time start = absl::Now();
  segments.clear();
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(900)) << "the daemon does not answer";
  std::thread call([&] {
    EXPECT_TRUE(client->GetUsage().ok());
    EXPECT_EQ(daemon.live_leases(), 0u);
  });
  go_on.Notify();
  call.join();
  EXPECT_LE(asks, 3);
}

TEST(AsyncReleaseTest, MuchMemoryIsSentAtOnceAndOneReleaseWithAStatusWaits) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment large = client->Acquire({.bytes = uint64_t{256} << 20}).value();
  Segment small = client->Acquire({.bytes = kBytes}).value();
  large = Segment();
  EXPECT_TRUE(small.Release().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

TEST(AsyncReleaseTest, ALeaseThatIsGoneKeepsNoOther) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  std::vector<Segment> segments = client->AcquireMany({.bytes = kBytes}, 33).value();
  daemon.LoseLease(segments[5].lease_id());
  daemon.LoseLease(segments[32].lease_id());
  segments.clear();
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

TEST(AsyncReleaseTest, ARefusedReleaseIsRepeated) {
  std::atomic<int> refusals = 2;
  FakeDaemon daemon({.release = [&](const v1::ReleaseRequest&) {
    return refusals-- > 0 ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "busy")
                          : grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  client->AcquireMany({.bytes = kBytes}, 20).value().clear();
  EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);  // by the thread: no call follows
}

TEST(AsyncReleaseTest, TheClientsEndWaitsForIt) {
  FakeDaemon daemon;
  Segment stays;  // and with it the session
  for (int round = 0; round < 20; ++round) {
    auto client = ConnectTo(daemon);
    stays = client->Acquire({.bytes = kBytes}).value();
    client->AcquireMany({.bytes = kBytes}, 20).value().clear();
    client.reset();
    EXPECT_EQ(daemon.live_leases(), 1u);
    stays = Segment();
    EXPECT_EQ(daemon.live_leases(), 0u) << "the session's end waits, too";
  }
}

TEST(AsyncReleaseTest, TheNextDaemonHearsOfItWithoutAnotherCall) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  std::vector<Segment> segments = client->AcquireMany({.bytes = kBytes}, 20).value();
  const Segment stays = std::move(segments.back());
  daemon.Crash();
  segments.clear();
  daemon.ComeBack();
  EXPECT_EQ(daemon.live_leases(/*awaited=*/1), 1u);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 1u);
}

TEST(AsyncReleaseTest, ADaemonThatDiesMeanwhileIsFollowedByOneThatKnows) {
  for (int round = 0; round < 4; ++round) {
    absl::Notification asked;
    std::atomic<int> asks = 0;
    FakeDaemon daemon({.release = [&](const v1::ReleaseRequest&) {
      if (asks++ > 0) return grpc::Status::OK;
      asked.Notify();
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "dying");
    }});
    auto client = ConnectTo(daemon);
    std::vector<Segment> segments = client->AcquireMany({.bytes = kBytes}, 20).value();
    segments.pop_back();
    asked.WaitForNotification();
    segments.resize(10);
    daemon.Crash();
    segments.clear();
    daemon.ComeBack();
    EXPECT_TRUE(client->GetUsage().ok());
    EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);
  }
}

TEST(AsyncReleaseTest, AForkedChildReleasesNothing) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  std::vector<Segment> segments = client->AcquireMany({.bytes = kBytes}, 20).value();
  segments.resize(10);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    segments.clear();
    const bool refused =
        client->GetUsage().status().code() == absl::StatusCode::kFailedPrecondition;
    client.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 10u);
}

// Threads acquire and drop segments of two sessions; nothing stays.
TEST(AsyncReleaseTest, ManyThreads) {
  FakeDaemon daemon;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 2; ++i) clients.push_back(ConnectTo(daemon));
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      Client& client = *clients[static_cast<size_t>(i) % 2];
      for (int round = 0; round < 40; ++round) {
        const std::vector<Segment> segments =
            client.AcquireMany({.bytes = kBytes}, 1 + round % 5).value();
        if (round % 8 == 0) {
          EXPECT_TRUE(client.GetUsage().ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(clients[0]->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

}  // namespace async_release_test
}  // namespace gpumem
