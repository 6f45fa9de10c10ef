// SPDX-License-Identifier: Apache-2.0
// Calls over the lane (Broker.Converse), with daemons that serve it in all ways.
#include "client/session/lane/lane.h"

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
#include "common/denial.h"
#include "common/failpoint.h"
#include "common/grpc_status.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace lane_test {

using internal::FakeDaemon;
using internal::OpenMemoryFds;
using ::testing::HasSubstr;
using IsCancelled = std::function<bool()>;

constexpr uint64_t kBytes = 64 * 1024;

// Lets a daemon answer only when the client has mapped what was delivered.
class Arrival {
 public:
  Arrival() {
    arrived = false;
    failpoint_hook = [](const char* name) {
      if (strcmp(name, "client-arrived") == 0) arrived = true;
    };
  }
  ~Arrival() { failpoint_hook = nullptr; }
  static void Await() {
    while (!arrived) absl::SleepFor(absl::Milliseconds(1));
  }

 private:
  static inline std::atomic<bool> arrived;
};

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(60)})
      .value();
}

TEST(LaneTest, AcquiresOpensAndReleases) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  {
    absl::StatusOr<Segment> segment = client->Acquire({.bytes = kBytes});
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_EQ(daemon.messages(), 1);
    memset(segment->data(), 7, kBytes);
    absl::StatusOr<Ticket> ticket = segment->Share();
    ASSERT_TRUE(ticket.ok());
    absl::StatusOr<Segment> same = client->Open(ticket->value);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(daemon.messages(), 2);
    EXPECT_EQ(static_cast<char*>(same->data())[kBytes - 1], 7);
    EXPECT_EQ(daemon.live_leases(), 2u);
  }
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

TEST(LaneTest, AnOlderDaemonGetsUnaryCalls) {
  FakeDaemon daemon({.older = true});
  auto client = ConnectTo(daemon);
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<std::vector<Segment>> segments = client->AcquireMany({.bytes = kBytes}, 3);
    ASSERT_TRUE(segments.ok()) << segments.status();
    EXPECT_EQ(daemon.live_leases(), 3u);
    segments->clear();
  }
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_EQ(daemon.messages(), 0);
}

TEST(LaneTest, ARefusalIsThatOfTheUnaryCall) {
  v1::Denial denial;
  denial.set_cause(v1::Denial::CAUSE_DEVICE_LIMIT);
  denial.set_tenant("testers");
  denial.set_asked(kBytes);
  std::vector<absl::Status> refusals;
  for (const bool older : {false, true}) {
    FakeDaemon daemon(
        {.acquire = [&](uint64_t, const v1::AcquireRequest&,
                        v1::AcquireResponse*) { return ToGrpcStatus(DenialError(denial)); },
         .older = older});
    auto client = ConnectTo(daemon);
    refusals.push_back(client->Acquire({.bytes = kBytes}).status());
    EXPECT_EQ(daemon.messages(), older ? 0 : 1);
  }
  EXPECT_EQ(refusals[0], refusals[1]);
  EXPECT_EQ(refusals[0].code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(GetDenial(refusals[0]).has_value());
  EXPECT_EQ(GetDenial(refusals[0])->asked, kBytes);
}

TEST(LaneTest, AnErrorAfterTheDeliveryUndoesTheMapping) {
  Arrival arrival;
  std::atomic<int> errors = 1;
  FakeDaemon daemon({.answered = [&](const IsCancelled&, v1::SessionResponse* answer) {
    if (!answer->has_acquire() || errors-- <= 0) return grpc::Status::OK;
    Arrival::Await();
    answer->clear_acquire();
    answer->mutable_status()->set_code(grpc::StatusCode::ABORTED);
    answer->mutable_status()->set_message("the session ended meanwhile");
    return grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  EXPECT_TRUE(client->GetUsage().ok());
  const size_t fds = OpenMemoryFds();
  absl::StatusOr<Segment> segment = client->Acquire({.bytes = kBytes});
  EXPECT_EQ(segment.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(segment.status().message()), HasSubstr("ended meanwhile"));
  EXPECT_EQ(OpenMemoryFds(), fds + 1);  // the daemon's
  EXPECT_EQ(daemon.live_leases(), 1u);
  // The daemon may hold it: the next call releases it.
  segment = client->Acquire({.bytes = kBytes});
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(daemon.live_leases(), 1u);
  memset(segment->data(), 1, kBytes);
}

TEST(LaneTest, AnAnswerOfOtherLeasesIsADefect) {
  Arrival arrival;
  FakeDaemon daemon({.answered = [&](const IsCancelled&, v1::SessionResponse* answer) {
    if (!answer->has_acquire()) return grpc::Status::OK;
    Arrival::Await();
    answer->mutable_acquire()->mutable_leases(0)->set_lease_id(4711);
    return grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  EXPECT_EQ(client->Acquire({.bytes = kBytes}).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

TEST(LaneTest, ACallWithoutAnAnswerEndsAtItsDeadline) {
  std::atomic<bool> answers = false;
  FakeDaemon daemon({.answered = [&](const IsCancelled& is_cancelled, v1::SessionResponse*) {
    // Cancellation gives no notification.
    while (!answers && !is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  for (int i = 0; i < 3; ++i) {
    const absl::Status late =
        client->Acquire({.bytes = kBytes, .timeout = absl::Milliseconds(100)}).status();
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  }
  answers = true;
  absl::StatusOr<Segment> segment = client->Acquire({.bytes = kBytes});
  ASSERT_TRUE(segment.ok()) << segment.status();
  // What the others may have got is released, after a pause.
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (daemon.live_leases() > 1 && absl::Now() < end) {
    EXPECT_TRUE(client->GetUsage().ok());
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(daemon.live_leases(), 1u);
}

TEST(LaneTest, OthersMakeUnaryCallsWhileItIsInUse) {
  absl::Notification entered, leave;
  FakeDaemon daemon({.answered = [&](const IsCancelled&, v1::SessionResponse*) {
    if (!entered.HasBeenNotified()) entered.Notify();
    leave.WaitForNotification();
    return grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  std::thread first([&] { EXPECT_TRUE(client->Acquire({.bytes = kBytes}).ok()); });
  entered.WaitForNotification();
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<Segment> segment = client->Acquire({.bytes = kBytes});
    EXPECT_TRUE(segment.ok()) << segment.status();
  }
  EXPECT_EQ(daemon.messages(), 1);
  leave.Notify();
  first.join();
}

// With such an end the daemon says that it carried nothing out.
TEST(LaneTest, AStreamThatIsRefusedIsReplacedByUnaryCalls) {
  std::atomic<int> refused = 0;
  FakeDaemon daemon({.message = [&](const v1::SessionRequest&) {
    ++refused;
    return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "there is one");
  }});
  auto client = ConnectTo(daemon);
  for (int i = 0; i < 10; ++i) {
    absl::StatusOr<Segment> segment = client->Acquire({.bytes = kBytes});
    ASSERT_TRUE(segment.ok()) << segment.status();
  }
  EXPECT_GE(refused, 1);
  EXPECT_EQ(daemon.granted(), 10u);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

TEST(LaneTest, ManyThreadsShareIt) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        absl::StatusOr<Segment> segment = client->Acquire({.bytes = kBytes});
        ASSERT_TRUE(segment.ok()) << segment.status();
        memset(segment->data(), j, 100);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_GT(daemon.messages(), 0);
  EXPECT_EQ(daemon.granted(), 400u);
}

}  // namespace lane_test
}  // namespace gpumem
