// SPDX-License-Identifier: Apache-2.0
// Calls that wait for memory, against a daemon that lets them wait, and revocable memory.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/denial.h"
#include "common/grpc_status.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace waiting_test {

using internal::FakeDaemon;
using internal::OpenMemoryFds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 64 * 1024;

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon,
                                  absl::Duration timeout = absl::Seconds(20)) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = timeout}).value();
}

grpc::Status Denied() {
  v1::Denial denial;
  denial.set_cause(v1::Denial::CAUSE_QUEUE);
  denial.set_tenant("testers");
  denial.set_asked(kBytes);
  return ToGrpcStatus(DenialError(denial));
}

// A daemon whose memory another session holds: requests wait until Free(), or until the daemon
// ends. It grants requests that do not wait.
class QueueingDaemon {
 public:
  void Free() { free_.Notify(); }
  // Grants it after the client has gone, once that is allowed.
  void GrantLate() { grants_late_ = true; }
  void AwaitWaiters(int count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return waiters_ == count; };
    mutex_.Await(absl::Condition(&there));
  }
  std::vector<uint64_t> waits_ms() {
    absl::MutexLock lock(&mutex_);
    return waits_ms_;
  }
  FakeDaemon& fake() { return fake_; }

 private:
  grpc::Status Acquire(const std::function<bool()>& is_cancelled, uint64_t session,
                       const v1::AcquireRequest& request, v1::AcquireResponse* response) {
    if (request.wait_ms() == 0) return fake_.Grant(session, request, response);
    const absl::Time end = request.wait_ms() < 1000000
                               ? absl::Now() + absl::Milliseconds(request.wait_ms())
                               : absl::InfiniteFuture();
    Count(request.wait_ms());
    // Cancellation gives no notification.
    while (!free_.WaitForNotificationWithTimeout(absl::Milliseconds(5)) && !is_cancelled() &&
           absl::Now() < end) {
    }
    const bool cancelled = is_cancelled();
    grpc::Status status = cancelled ? grpc::Status::CANCELLED : Denied();
    if (free_.HasBeenNotified() || (cancelled && grants_late_)) {
      status = fake_.Grant(session, request, response);
    }
    absl::MutexLock lock(&mutex_);
    --waiters_;
    return status;
  }
  void Count(uint64_t wait_ms) {
    absl::MutexLock lock(&mutex_);
    ++waiters_;
    waits_ms_.push_back(wait_ms);
  }

  absl::Notification free_;
  std::atomic<bool> grants_late_ = false;
  absl::Mutex mutex_;
  int waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> waits_ms_ ABSL_GUARDED_BY(mutex_);
  FakeDaemon fake_{
      {.acquire_waiting = [this](const auto& is_cancelled, uint64_t session,
                                 const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        return Acquire(is_cancelled, session, request, response);
      }}};
};

TEST(WaitingTest, IsServedWhenThereIsMemory) {
  QueueingDaemon daemon;
  auto client = ConnectTo(daemon.fake());
  std::thread other([&] {
    daemon.AwaitWaiters(1);
    daemon.Free();
  });
  absl::StatusOr<Segment> segment = client->Acquire({.bytes = kBytes, .wait = absl::Seconds(60)});
  EXPECT_TRUE(segment.ok()) << segment.status();
  other.join();
  EXPECT_THAT(daemon.waits_ms(), ElementsAre(60000));
  memset(segment->data(), 1, segment->size());
}

TEST(WaitingTest, MayWaitForEver) {
  QueueingDaemon daemon;
  // The connection's timeout does not limit the wait.
  auto client = ConnectTo(daemon.fake(), absl::Milliseconds(300));
  absl::Notification granted;
  std::thread waiter([&] {
    absl::StatusOr<Segment> segment =
        client->Acquire({.bytes = kBytes, .wait = absl::InfiniteDuration()});
    EXPECT_TRUE(segment.ok()) << segment.status();
    granted.Notify();
  });
  daemon.AwaitWaiters(1);
  EXPECT_FALSE(granted.WaitForNotificationWithTimeout(absl::Milliseconds(600)));
  daemon.Free();
  waiter.join();
  EXPECT_THAT(daemon.waits_ms(), ElementsAre(static_cast<uint64_t>(INT64_MAX)));
}

TEST(WaitingTest, AnExpiredWaitIsADenial) {
  QueueingDaemon daemon;
  auto client = ConnectTo(daemon.fake());
  const absl::Status status =
      client->Acquire({.bytes = kBytes, .wait = absl::Microseconds(19'500)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(GetDenial(status).value().cause, Denial::Cause::kQueue);
  EXPECT_THAT(daemon.waits_ms(), ElementsAre(20));
  EXPECT_EQ(client->Acquire({.bytes = kBytes, .wait = -absl::Seconds(1)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(WaitingTest, TheClientsOtherCallsGoOnBesideIt) {
  QueueingDaemon daemon;
  auto client = ConnectTo(daemon.fake());
  ASSERT_TRUE(client->GetUsage().ok());
  const size_t before = OpenMemoryFds();
  std::thread waiter(
      [&] { EXPECT_TRUE(client->Acquire({.bytes = kBytes, .wait = absl::Hours(1)}).ok()); });
  daemon.AwaitWaiters(1);
  for (int i = 0; i < 20; ++i) {
    Segment segment = client->Acquire({.bytes = kBytes}).value();
    Segment same = client->Open(segment.Share().value().value).value();
    memset(same.data(), i, same.size());
    EXPECT_TRUE(segment.Release().ok());
  }
  EXPECT_EQ(daemon.fake().live_leases(/*awaited=*/0), 0u);
  daemon.Free();
  waiter.join();
  EXPECT_EQ(daemon.fake().live_leases(/*awaited=*/0), 0u);
  EXPECT_EQ(OpenMemoryFds(), before);
}

// A waiting thread still does the session's work: it retries a release that the daemon did not
// answer, without any other call.
TEST(WaitingTest, PendingReleasesAreSentDuringAWait) {
  std::atomic<bool> busy = true;
  absl::Notification released;
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon(
      {.acquire =
           [&](uint64_t session, const v1::AcquireRequest& request, v1::AcquireResponse* response) {
             if (request.wait_ms() > 0) released.WaitForNotification();
             return fake->Grant(session, request, response);
           },
       .release =
           [&](const v1::ReleaseRequest&) {
             if (busy) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "busy");
             if (!released.HasBeenNotified()) released.Notify();
             return grpc::Status::OK;
           }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  { Segment segment = client->Acquire({.bytes = kBytes}).value(); }
  EXPECT_EQ(daemon.live_leases(), 1u);
  busy = false;
  EXPECT_TRUE(client->Acquire({.bytes = kBytes, .wait = absl::Hours(1)}).ok());
}

TEST(WaitingTest, CanBeCancelled) {
  QueueingDaemon daemon;
  auto client = ConnectTo(daemon.fake());
  ASSERT_TRUE(client->GetUsage().ok());
  const size_t before = OpenMemoryFds();
  const CancelToken cancel;
  std::thread other([&, copy = cancel] {
    daemon.AwaitWaiters(2);
    copy.Cancel();
  });
  std::thread second([&] {
    EXPECT_EQ(client->AcquireMany({.bytes = kBytes, .wait = absl::Hours(1), .cancel = cancel}, 3)
                  .status()
                  .code(),
              absl::StatusCode::kCancelled);
  });
  const absl::Status status =
      client->Acquire({.bytes = kBytes, .wait = absl::Hours(1), .cancel = cancel}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  other.join();
  second.join();
  EXPECT_TRUE(cancel.cancelled());
  // The daemon is notified.
  daemon.AwaitWaiters(0);
  EXPECT_EQ(daemon.fake().live_leases(), 0u);
  EXPECT_EQ(OpenMemoryFds(), before);
  // The cancellation is permanent, and the session is unaffected.
  EXPECT_EQ(client->Acquire({.bytes = kBytes, .cancel = cancel}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(daemon.waits_ms().size(), 2u);
  EXPECT_TRUE(client->Acquire({.bytes = kBytes, .cancel = CancelToken()}).ok());
}

TEST(WaitingTest, AGrantThatCameWithTheCancelIsGivenBack) {
  QueueingDaemon daemon;
  daemon.GrantLate();
  auto client = ConnectTo(daemon.fake());
  ASSERT_TRUE(client->GetUsage().ok());
  const size_t before = OpenMemoryFds();
  const CancelToken cancel;
  std::thread other([&] {
    daemon.AwaitWaiters(1);
    cancel.Cancel();
  });
  EXPECT_EQ(
      client->Acquire({.bytes = kBytes, .wait = absl::Hours(1), .cancel = cancel}).status().code(),
      absl::StatusCode::kCancelled);
  other.join();
  // It is granted after the client has gone; the next call at the latest gives it back.
  daemon.AwaitWaiters(0);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.fake().live_leases(), 0u);
  EXPECT_EQ(OpenMemoryFds(), before);
}

// The daemon sends the memory and is cancelled before it answers: no other call is needed to give
// it back.
TEST(WaitingTest, MemoryThatWasSentBeforeTheCancelIsGivenBackAtOnce) {
  FakeDaemon* fake = nullptr;
  const CancelToken cancel;
  FakeDaemon daemon(
      {.acquire_waiting = [&](const std::function<bool()>& is_cancelled, uint64_t session,
                              const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        grpc::Status granted = fake->Grant(session, request, response);
        cancel.Cancel();
        while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
        return granted;
      }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  ASSERT_TRUE(client->GetUsage().ok());
  const size_t before = OpenMemoryFds();
  EXPECT_EQ(
      client->Acquire({.bytes = kBytes, .wait = absl::Hours(1), .cancel = cancel}).status().code(),
      absl::StatusCode::kCancelled);
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_EQ(OpenMemoryFds(), before);
}

TEST(WaitingTest, EndsWithTheSession) {
  absl::Notification over;
  FakeDaemon daemon({.acquire = [&](uint64_t, const v1::AcquireRequest&, v1::AcquireResponse*) {
    over.WaitForNotification();
    return grpc::Status(grpc::StatusCode::ABORTED, "too late");
  }});
  auto client = ConnectTo(daemon);
  daemon.Goodbye(1, "the node is going down");
  const absl::Status status =
      client->Acquire({.bytes = kBytes, .wait = absl::InfiniteDuration()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  over.Notify();
}

TEST(WaitingTest, EndsWithTheSessionThoughTheDaemonDoesNotAnswerTheCall) {
  absl::Notification asked, over;
  FakeDaemon daemon({.acquire = [&](uint64_t, const v1::AcquireRequest&, v1::AcquireResponse*) {
    asked.Notify();
    over.WaitForNotification();
    return grpc::Status(grpc::StatusCode::ABORTED, "too late");
  }});
  auto client = ConnectTo(daemon);
  std::thread operator_([&] {
    asked.WaitForNotification();
    daemon.Goodbye(1, "the node is going down");
  });
  const absl::Status status =
      client->Acquire({.bytes = kBytes, .wait = absl::InfiniteDuration()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the node is going down"));
  operator_.join();
  over.Notify();
}

TEST(RevocableTest, TheRequestAndTheSegmentSayRevocable) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  EXPECT_FALSE(client->Acquire({.bytes = kBytes}).value().revocable());
  Segment segment = client->Acquire({.bytes = kBytes, .revocable = true}).value();
  EXPECT_TRUE(segment.revocable());
  // Another lease of the same kind fetches its descriptor.
  EXPECT_TRUE(segment.fd().ok());
  const std::string ticket = segment.Share().value().value;
  EXPECT_EQ(client->Open(ticket).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client->Open(ticket, {.revocable = true}).value().revocable());
  EXPECT_FALSE(Segment().revocable());
}

}  // namespace waiting_test
}  // namespace gpumem
