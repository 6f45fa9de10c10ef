// SPDX-License-Identifier: Apache-2.0
// Sessions that outlive their daemon, against a daemon that crashes at a given step.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace reconnect_test {

using internal::FakeDaemon;
using internal::OpenFds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kBytes = 64 * 1024;
using IsCancelled = std::function<bool()>;

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon,
                                  absl::Duration timeout = absl::Seconds(60)) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = timeout}).value();
}

// A call that is never answered: its daemon crashes. Cancellation gives no notification.
grpc::Status AwaitCrash(const IsCancelled& is_cancelled) {
  while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
  return grpc::Status::CANCELLED;
}

void CrashAndComeBack(FakeDaemon& daemon, bool remembers = true) {
  daemon.Crash();
  daemon.ComeBack(remembers);
}

v1::ServerMessage Refusal(grpc::StatusCode code, const std::string& message) {
  v1::ServerMessage refusal;
  refusal.mutable_refusal()->set_code(static_cast<int>(code));
  refusal.mutable_refusal()->set_message(message);
  return refusal;
}

// Blocks until the condition of another thread is true.
void Await(const std::function<bool()>& happened) {
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (!happened() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(happened());
}

TEST(ReconnectTest, TheSessionGoesOnWithTheNextDaemon) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  strcpy(static_cast<char*>(segment.data()), "still here");
  const void* const data = segment.data();
  for (int i = 1; i <= 4; ++i) {
    CrashAndComeBack(daemon);
    EXPECT_TRUE(client->GetUsage().ok());
    EXPECT_EQ(client->session_id(), 1u);
    EXPECT_EQ(daemon.resumes(), i);
    EXPECT_EQ(segment.data(), data);
    const absl::StatusOr<Ticket> ticket = segment.Share();
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_STREQ(static_cast<char*>(client->Open(ticket->value).value().data()), "still here");
    EXPECT_TRUE(client->Acquire({.bytes = kBytes}).ok());
    EXPECT_EQ(daemon.live_leases(/*awaited=*/1), 1u);
  }
  CrashAndComeBack(daemon);
  EXPECT_TRUE(segment.Release().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_EQ(daemon.early_calls(), 0);
}

TEST(ReconnectTest, LeavesNoDescriptors) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  const auto fds = [&] {
    EXPECT_TRUE(client->GetUsage().ok());
    return OpenFds();
  };
  CrashAndComeBack(daemon);
  const size_t before = fds();
  for (int i = 0; i < 5; ++i) {
    CrashAndComeBack(daemon);
    // gRPC's server may notice only later that the earlier connection has ended.
    EXPECT_LE(fds(), before + 1);
  }
}

TEST(ReconnectTest, AGoodbyeOfAStoppingDaemonLeadsToAReconnect) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  daemon.Goodbye(1, "the daemon is stopping", /*stopping=*/true);
  CrashAndComeBack(daemon);
  EXPECT_TRUE(segment.Release().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

TEST(ReconnectTest, AGoodbyeToThisClientIsFinal) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  daemon.Goodbye(1, "you do not read");
  CrashAndComeBack(daemon);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = client->GetUsage().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("you do not read"));
  }
  EXPECT_EQ(daemon.resumes(), 0);
}

TEST(ReconnectTest, ADaemonWithoutTheSessionEndsItForGood) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  CrashAndComeBack(daemon, /*remembers=*/false);
  // At once, whatever the deadline.
  for (const absl::Status& status :
       {client->GetUsage().status(), client->Acquire({.bytes = kBytes}).status(),
        client->Acquire({.bytes = kBytes, .wait = absl::InfiniteDuration()}).status(),
        segment.Share().status(), client->StartWatch({}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    // As opposed to a daemon that is away for a while, which is UNAVAILABLE too.
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not know the session"));
  }
  memset(segment.data(), 1, segment.size());
  EXPECT_EQ(segment.Release().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(ConnectTo(daemon)->Acquire({.bytes = kBytes}).ok());
}

TEST(ReconnectTest, ADaemonThatBeginsANewSessionEndsTheOldOneForGood) {
  std::atomic<int> tries = 0;
  FakeDaemon daemon({.resume = [&](int socket, const v1::Hello&) {
    ++tries;
    FakeDaemon::Send(socket, FakeDaemon::WelcomeTo(1));  // as a daemon that cannot resume
    return false;
  }});
  auto client = ConnectTo(daemon);
  CrashAndComeBack(daemon);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(client->GetUsage().status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(tries, 1);
}

TEST(ReconnectTest, WithoutADaemonACallWaitsForItsTimeAndTheNextGoesOn) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon, absl::Milliseconds(200));
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  daemon.Crash();
  const absl::Time start = absl::Now();
  EXPECT_EQ(client->GetUsage().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(200));
  daemon.ComeBack();
  Await([&] { return client->GetUsage().ok(); });
  EXPECT_EQ(daemon.live_leases(), 1u);
}

TEST(ReconnectTest, ACallWaitsUntilTheDaemonIsBack) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  daemon.Crash();
  absl::Notification begun;
  std::thread caller([&] {
    begun.Notify();
    const absl::Status status = client->GetUsage().status();
    EXPECT_TRUE(status.ok()) << status;
  });
  begun.WaitForNotification();
  absl::SleepFor(absl::Milliseconds(20));  // so that it mostly finds no daemon at first
  daemon.ComeBack();
  caller.join();
}

TEST(ReconnectTest, RetriesADaemonThatCannotResumeTheSessionYet) {
  int tries = 0;
  FakeDaemon daemon({.resume = [&](int socket, const v1::Hello& hello) {
    EXPECT_EQ(hello.client_name(), "trainer-3");
    EXPECT_EQ(hello.tenant(), "testers");
    switch (++tries) {
      case 1:
        return false;
      case 2:
        FakeDaemon::Send(socket, Refusal(grpc::StatusCode::UNAVAILABLE, "still reading"));
        return false;
      case 3:
        FakeDaemon::Send(socket, Refusal(grpc::StatusCode::RESOURCE_EXHAUSTED, "crowded"));
        return false;
      default:
        return true;
    }
  }});
  auto client = Client::Connect(
                    {.runtime_dir = daemon.runtime_dir(), .tenant = "testers", .name = "trainer-3"})
                    .value();
  CrashAndComeBack(daemon);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(tries, 4);
}

TEST(ReconnectTest, AnotherRefusalIsFinal) {
  int tries = 0;
  FakeDaemon daemon({.resume = [&](int socket, const v1::Hello&) {
    ++tries;
    FakeDaemon::Send(socket, Refusal(grpc::StatusCode::PERMISSION_DENIED, "you are another"));
    return false;
  }});
  auto client = ConnectTo(daemon);
  CrashAndComeBack(daemon);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = client->GetUsage().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("you are another"));
  }
  EXPECT_EQ(tries, 1);
}

// Closing a socket that the daemon may have welcomed would end the session.
TEST(ReconnectTest, ACallWhoseTimeIsOverLeavesWhatItHasBegunToTheNext) {
  absl::Notification speak;
  std::atomic<int> tries = 0;
  FakeDaemon daemon({.resume = [&](int, const v1::Hello&) {
    ++tries;
    speak.WaitForNotification();
    return true;
  }});
  auto client = ConnectTo(daemon, absl::Milliseconds(100));
  CrashAndComeBack(daemon);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(client->GetUsage().status().code(), absl::StatusCode::kUnavailable);
  }
  speak.Notify();
  Await([&] { return client->GetUsage().ok(); });
  EXPECT_EQ(tries, 1);
  EXPECT_EQ(daemon.resumes(), 1);
}

TEST(ReconnectTest, ADaemonMayCrashDuringReconcile) {
  std::atomic<int> told = 0;
  absl::Notification first, second;
  FakeDaemon daemon(
      {.reconcile = [&](const IsCancelled& is_cancelled, const v1::ReconcileRequest& request) {
        EXPECT_THAT(request.lease_ids(), ElementsAre(1));
        EXPECT_THAT(request.request_ids(), IsEmpty());
        const int number = ++told;
        if (number == 3) return grpc::Status::OK;
        (number == 1 ? first : second).Notify();
        return AwaitCrash(is_cancelled);
      }});
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  std::thread operator_([&] {
    CrashAndComeBack(daemon);
    first.WaitForNotification();
    CrashAndComeBack(daemon);
    second.WaitForNotification();
    CrashAndComeBack(daemon);
  });
  while (told < 3) EXPECT_TRUE(client->GetUsage().ok());
  operator_.join();
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 1u);
}

TEST(ReconnectTest, WithoutReconnectTheSessionEndsWithItsDaemon) {
  FakeDaemon daemon;
  auto client = Client::Connect({.runtime_dir = daemon.runtime_dir(), .reconnect = false}).value();
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  CrashAndComeBack(daemon);
  EXPECT_EQ(client->GetUsage().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(segment.Release().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(daemon.resumes(), 0);
}

TEST(ReconnectTest, DestructorsDoNotWaitForADaemonThatIsAway) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  std::vector<Segment> segments = client->AcquireMany({.bytes = kBytes}, 100).value();
  Segment kept = client->Acquire({.bytes = kBytes}).value();
  daemon.Crash();
  const absl::Time start = absl::Now();
  segments.clear();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  daemon.ComeBack();
  // The one statement of the held leases releases all of them.
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 1u);
  EXPECT_EQ(daemon.release_calls(), 0);
  // The same holds for leases dropped when no call follows.
  daemon.Crash();
  daemon.ComeBack();
  Await([&] {
    kept = Segment();
    return daemon.live_leases() == 0;
  });
}

TEST(ReconnectTest, AClientMayEndWhileTheDaemonIsAway) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  auto watch = client->StartWatch({}).value();
  auto event = client->CreateEvent({.name = "batch"});
  ASSERT_TRUE(event.ok()) << event.status();
  daemon.Crash();
  const absl::Time start = absl::Now();
  *event = Event();
  watch.reset();
  client.reset();
  segment = Segment();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(ReconnectTest, AForkedChildGetsAnErrorWhileTheDaemonIsAway) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  daemon.Crash();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool refused =
        client->GetUsage().status().code() == absl::StatusCode::kFailedPrecondition;
    segment = Segment();
    client.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  daemon.ComeBack();
  EXPECT_TRUE(segment.Release().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

}  // namespace reconnect_test
}  // namespace gpumem
