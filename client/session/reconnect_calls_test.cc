// SPDX-License-Identifier: Apache-2.0
// Calls whose daemon crashes, at each of their steps.
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
#include "common/failpoint.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace reconnect_calls_test {

using internal::FakeDaemon;

constexpr uint64_t kBytes = 64 * 1024;
using IsCancelled = std::function<bool()>;

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(60)})
      .value();
}

// A call that is never answered: its daemon crashes. Cancellation gives no notification.
grpc::Status AwaitCrash(const IsCancelled& is_cancelled) {
  while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
  return grpc::Status::CANCELLED;
}

void CrashAndComeBack(FakeDaemon& daemon) {
  daemon.Crash();
  daemon.ComeBack();
}

enum class Point { kBeforeGrant, kBeforeDelivery, kBeforeAnswer, kAnswerWithoutDelivery };

class CrashPointTest : public ::testing::TestWithParam<Point> {};

TEST_P(CrashPointTest, NothingIsGrantedTwice) {
  std::atomic<int> asked = 0;
  absl::Notification reached;
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon(
      {.acquire_waiting = [&](const IsCancelled& is_cancelled, uint64_t session,
                              const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        EXPECT_NE(request.request_id(), 0u);
        if (++asked > 1) return fake->Grant(session, request, response);
        if (GetParam() == Point::kBeforeAnswer) {
          fake->Grant(session, request, response);
        } else if (GetParam() != Point::kBeforeGrant) {
          fake->GrantSilently(session, request, response);
        }
        reached.Notify();
        return GetParam() == Point::kAnswerWithoutDelivery ? grpc::Status::OK
                                                           : AwaitCrash(is_cancelled);
      }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  std::thread operator_([&] {
    reached.WaitForNotification();
    CrashAndComeBack(daemon);
  });
  absl::StatusOr<std::vector<Segment>> segments = client->AcquireMany({.bytes = kBytes}, 3);
  operator_.join();
  ASSERT_TRUE(segments.ok()) << segments.status();
  for (Segment& segment : *segments) memset(segment.data(), 1, kBytes);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(daemon.granted(), 3u);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 3u);
  segments->clear();
  EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);
}

TEST_P(CrashPointTest, GrantsWithoutACallerAreReleased) {
  absl::Notification reached;
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon(
      {.acquire_waiting = [&](const IsCancelled& is_cancelled, uint64_t session,
                              const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        if (GetParam() == Point::kBeforeAnswer) {
          fake->Grant(session, request, response);
        } else if (GetParam() != Point::kBeforeGrant) {
          fake->GrantSilently(session, request, response);
        }
        if (!reached.HasBeenNotified()) reached.Notify();
        return GetParam() == Point::kAnswerWithoutDelivery ? grpc::Status::OK
                                                           : AwaitCrash(is_cancelled);
      }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  std::thread operator_([&] {
    reached.WaitForNotification();
    daemon.Crash();
  });
  EXPECT_FALSE(client->Acquire({.bytes = kBytes, .timeout = absl::Milliseconds(300)}).ok());
  operator_.join();
  daemon.ComeBack();
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, CrashPointTest,
                         ::testing::Values(Point::kBeforeGrant, Point::kBeforeDelivery,
                                           Point::kBeforeAnswer, Point::kAnswerWithoutDelivery));

TEST(ReconnectCallsTest, ARequestThatIsGivenUpAfterTheResumeIsGivenBack) {
  std::atomic<int> asked = 0;
  absl::Notification reached;
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon(
      {.acquire_waiting = [&](const IsCancelled& is_cancelled, uint64_t session,
                              const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        if (++asked == 1) {
          fake->Grant(session, request, response);
          reached.Notify();
        }
        return AwaitCrash(is_cancelled);  // the second time: until the client gives up
      }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  std::thread operator_([&] {
    reached.WaitForNotification();
    CrashAndComeBack(daemon);
  });
  EXPECT_EQ(client->Acquire({.bytes = kBytes, .timeout = absl::Seconds(2)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  operator_.join();
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(daemon.live_leases(), 1u);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

// Blocks the threads that have mapped memory ahead of the answer.
class Mapped {
 public:
  Mapped() {
    arrived_ = std::make_unique<absl::Notification>();
    go_on_ = std::make_unique<absl::Notification>();
    failpoint_hook = [](const char* name) {
      if (strcmp(name, "client-arrived") != 0 || go_on_->HasBeenNotified()) return;
      arrived_->Notify();
      go_on_->WaitForNotification();
    };
  }
  ~Mapped() { failpoint_hook = nullptr; }
  static void Await() { arrived_->WaitForNotification(); }
  static void GoOn() { go_on_->Notify(); }

 private:
  static inline std::unique_ptr<absl::Notification> arrived_, go_on_;
};

// To the daemon a segment that a statement does not name is not mapped, and may be given to others.
TEST(ReconnectCallsTest, NothingIsStatedWhileMemoryIsMappedAheadOfItsAnswer) {
  Mapped mapped;
  std::atomic<int> statements = 0, answers = 0;
  FakeDaemon daemon({.reconcile =
                         [&](const IsCancelled&, const v1::ReconcileRequest&) {
                           ++statements;
                           return grpc::Status::OK;
                         },
                     .answered =
                         [&](const IsCancelled& is_cancelled, v1::SessionResponse*) {
                           return answers++ == 0 ? AwaitCrash(is_cancelled) : grpc::Status::OK;
                         }});
  auto client =
      Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(2)}).value();
  std::thread caller([&] {
    absl::StatusOr<Segment> segment =
        client->Acquire({.bytes = kBytes, .timeout = absl::Seconds(60)});
    EXPECT_TRUE(segment.ok()) << segment.status();
  });
  Mapped::Await();
  CrashAndComeBack(daemon);
  EXPECT_EQ(client->GetUsage().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(statements, 0);
  Mapped::GoOn();
  caller.join();
  EXPECT_EQ(statements, 1);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);
}

TEST(ReconnectCallsTest, AReleaseUnderWayIsDoneByTheResume) {
  std::atomic<int> asked = 0;
  absl::Notification reached;
  FakeDaemon daemon({.release = [&](const v1::ReleaseRequest&) {
    if (++asked > 1) return grpc::Status::OK;
    reached.Notify();
    absl::SleepFor(absl::Milliseconds(50));  // mostly until it is cancelled
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "crashed");
  }});
  auto client = ConnectTo(daemon);
  Segment kept = client->Acquire({.bytes = kBytes}).value();
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  std::thread operator_([&] {
    reached.WaitForNotification();
    CrashAndComeBack(daemon);
  });
  EXPECT_TRUE(segment.Release().ok());
  operator_.join();
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 1u);
}

TEST(ReconnectCallsTest, ARequestThatWaitsGoesOnWithTheRestOfItsWait) {
  for (const absl::Duration wait : {absl::Hours(1), absl::InfiniteDuration()}) {
    std::vector<uint64_t> waits_ms;
    absl::Notification waits;
    FakeDaemon* fake = nullptr;
    FakeDaemon daemon(
        {.acquire_waiting = [&](const IsCancelled& is_cancelled, uint64_t session,
                                const v1::AcquireRequest& request, v1::AcquireResponse* response) {
          waits_ms.push_back(request.wait_ms());
          if (waits_ms.size() > 1) return fake->Grant(session, request, response);
          waits.Notify();
          return AwaitCrash(is_cancelled);
        }});
    fake = &daemon;
    auto client = ConnectTo(daemon);
    std::thread operator_([&] {
      waits.WaitForNotification();
      absl::SleepFor(absl::Milliseconds(20));  // the time that it has waited
      CrashAndComeBack(daemon);
    });
    const absl::StatusOr<Segment> segment = client->Acquire({.bytes = kBytes, .wait = wait});
    EXPECT_TRUE(segment.ok()) << segment.status();
    operator_.join();
    ASSERT_EQ(waits_ms.size(), 2u);
    if (wait == absl::InfiniteDuration()) {
      EXPECT_EQ(waits_ms[1], static_cast<uint64_t>(INT64_MAX));
    } else {
      EXPECT_LE(waits_ms[1], 3'600'000u - 20);
      EXPECT_GE(waits_ms[1], 3'000'000u);
    }
    EXPECT_EQ(daemon.granted(), 1u);
  }
}

TEST(ReconnectCallsTest, ARequestThatWaitsCanBeCancelledWhileTheDaemonIsAway) {
  absl::Notification waits;
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon(
      {.acquire_waiting = [&](const IsCancelled& is_cancelled, uint64_t session,
                              const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        fake->GrantSilently(session, request, response);
        waits.Notify();
        return AwaitCrash(is_cancelled);
      }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  const CancelToken cancel;
  std::thread operator_([&] {
    waits.WaitForNotification();
    daemon.Crash();
    cancel.Cancel();
  });
  EXPECT_EQ(
      client->Acquire({.bytes = kBytes, .wait = absl::Hours(1), .cancel = cancel}).status().code(),
      absl::StatusCode::kCancelled);
  operator_.join();
  daemon.ComeBack();
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

TEST(ReconnectCallsTest, AnEventIsNotRegisteredTwice) {
  std::atomic<int> registered = 0;
  absl::Notification reached;
  FakeDaemon daemon({.register_event = [&](const IsCancelled& is_cancelled) {
    if (++registered > 1) return grpc::Status::OK;
    reached.Notify();
    return AwaitCrash(is_cancelled);
  }});
  auto client = ConnectTo(daemon);
  std::thread operator_([&] {
    reached.WaitForNotification();
    CrashAndComeBack(daemon);
  });
  auto event = client->CreateEvent({.name = "batch"});
  operator_.join();
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(registered, 1);
  EXPECT_EQ(daemon.live_events(), 1u);
  EXPECT_EQ(client->CreateEvent({.name = "batch"}).status().code(),
            absl::StatusCode::kAlreadyExists);
  *event = Event();
  EXPECT_EQ(daemon.live_events(), 0u);
}

TEST(ReconnectCallsTest, AnEventsEndIsReportedToTheNextDaemon) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  auto event = client->CreateEvent({.name = "batch"});
  ASSERT_TRUE(event.ok()) << event.status();
  daemon.Crash();
  *event = Event();
  EXPECT_EQ(daemon.live_events(), 1u);
  daemon.ComeBack();
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_events(), 0u);
  EXPECT_TRUE(client->CreateEvent({.name = "batch"}).ok());
}

}  // namespace reconnect_calls_test
}  // namespace gpumem
