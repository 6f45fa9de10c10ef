// SPDX-License-Identifier: Apache-2.0
// The library's calls, against a daemon that can misbehave.
#include "gpumem/client.h"

#include <string.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/denial.h"
#include "common/grpc_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace {

using internal::FakeDaemon;
using internal::OpenMemoryFds;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 64 * 1024;

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon,
                                  absl::Duration timeout = absl::Seconds(20)) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = timeout}).value();
}

TEST(ClientTest, AcquiresMappedMemory) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  absl::StatusOr<Segment> segment = client->Acquire({.bytes = 5000});
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_TRUE(segment->valid());
  EXPECT_EQ(segment->size(), 8192u);
  EXPECT_EQ(segment->device_uuid(), FakeDaemon::kDevice);
  EXPECT_EQ(segment->kind(), Kind::kVmm);
  EXPECT_EQ(segment->backend(), Backend::kHost);
  EXPECT_EQ(segment->lease_id(), 1u);
  EXPECT_EQ(segment->segment_id(), 1001u);
  EXPECT_FALSE(segment->reused());
  memset(segment->data(), 7, segment->size());

  EXPECT_TRUE(segment->Release().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_FALSE(segment->valid());
  EXPECT_EQ(segment->data(), nullptr);
  EXPECT_EQ(segment->size(), 0u);
  EXPECT_EQ(segment->Release().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(segment->Share().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ClientTest, ManySegmentsLieOneAfterAnother) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  absl::StatusOr<std::vector<Segment>> segments = client->AcquireMany({.bytes = kBytes}, 253);
  ASSERT_TRUE(segments.ok()) << segments.status();
  ASSERT_EQ(segments->size(), 253u);
  char* const begin = static_cast<char*>(segments->front().data());
  for (size_t i = 0; i < segments->size(); ++i) {
    EXPECT_EQ((*segments)[i].data(), begin + i * kBytes);
  }
  memset(begin, 1, 253 * kBytes);
  segments->clear();
  EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);
}

TEST(ClientTest, ASharedSegmentIsTheSameMemory) {
  FakeDaemon daemon;
  auto giver = ConnectTo(daemon);
  auto taker = ConnectTo(daemon);
  Segment mine = giver->Acquire({.bytes = kBytes}).value();
  strcpy(static_cast<char*>(mine.data()), "handed over");
  absl::StatusOr<Ticket> ticket = mine.Share();
  ASSERT_TRUE(ticket.ok()) << ticket.status();

  absl::StatusOr<Segment> theirs = taker->Open(ticket->value);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_NE(theirs->data(), mine.data());
  EXPECT_STREQ(static_cast<char*>(theirs->data()), "handed over");

  absl::StatusOr<std::vector<Segment>> both =
      taker->OpenMany({ticket->value, ticket->value}, {.read_only = true});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_STREQ(static_cast<char*>((*both)[1].data()), "handed over");
}

TEST(ClientTest, BadArgumentsAreToldWithoutTheDaemon) {
  FakeDaemon daemon({.acquire = [](uint64_t, const v1::AcquireRequest&, v1::AcquireResponse*) {
    ADD_FAILURE() << "the daemon was asked";
    return grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  EXPECT_EQ(client->Acquire({.bytes = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  for (int count : {-1, 0, 254}) {
    EXPECT_EQ(client->AcquireMany({.bytes = 1}, count).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(client->Open("gmt_short").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->OpenMany({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->OpenMany(std::vector<std::string>(254)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ClientTest, AskingForUsageAndDevices) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  absl::StatusOr<Usage> usage = client->GetUsage();
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_EQ(usage->tenant, "testers");
  EXPECT_EQ(usage->charged_bytes, 12u);
  EXPECT_EQ(usage->segments, 3u);
  EXPECT_EQ(usage->sessions, 2u);
  ASSERT_EQ(usage->devices.size(), 1u);
  EXPECT_EQ(usage->devices[0].device_uuid, FakeDaemon::kDevice);
  EXPECT_EQ(usage->devices[0].leased_bytes, 5u);
  EXPECT_EQ(usage->devices[0].retained_bytes, 4u);
  EXPECT_EQ(usage->devices[0].lingering_bytes, 3u);
  EXPECT_EQ(usage->devices[0].charged_bytes, 12u);
  EXPECT_EQ(usage->devices[0].limit_bytes, 100u);
  EXPECT_EQ(usage->devices[0].peak_bytes, 50u);

  absl::StatusOr<std::vector<DeviceInfo>> devices = client->Devices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ(devices->front().uuid, FakeDaemon::kDevice);
  EXPECT_EQ(devices->front().backend, Backend::kHost);
  EXPECT_EQ(devices->front().granularity_bytes, FakeDaemon::kGranularity);
  EXPECT_THAT(devices->front().kinds,
              ::testing::ElementsAre(Kind::kVmm, Kind::kMempool, Kind::kIpc));
  EXPECT_THAT(devices->back().kinds, ::testing::ElementsAre(Kind::kPinned, Kind::kHost));
}

TEST(ClientTest, ADenialComesWithItsData) {
  FakeDaemon daemon({.acquire = [](uint64_t, const v1::AcquireRequest&, v1::AcquireResponse*) {
    v1::Denial denial;
    denial.set_cause(v1::Denial::CAUSE_DEVICE_LIMIT);
    denial.set_tenant("testers");
    denial.set_device_uuid("GPU-1");
    denial.set_asked(4096);
    denial.set_used(8192);
    denial.set_limit(8192);
    return ToGrpcStatus(DenialError(denial));
  }});
  auto client = ConnectTo(daemon);
  const absl::Status status = client->Acquire({.bytes = 4096}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::optional<Denial> denial = GetDenial(status);
  ASSERT_TRUE(denial.has_value());
  EXPECT_EQ(denial->cause, Denial::Cause::kDeviceLimit);
  EXPECT_EQ(denial->device_uuid, "GPU-1");
  EXPECT_EQ(denial->asked, 4096u);
  EXPECT_EQ(denial->used, 8192u);
  EXPECT_EQ(denial->limit, 8192u);
  EXPECT_EQ(denial->tenant, "testers");
  EXPECT_NE(denial->help, "");
  EXPECT_FALSE(GetDenial(absl::NotFoundError("")).has_value());
}

TEST(ClientTest, TheDaemonsWordsAreKept) {
  grpc::Status answer;
  FakeDaemon daemon({.usage = [&] { return answer; }});
  auto client = ConnectTo(daemon);
  for (int code = 1; code <= 16; ++code) {
    answer = grpc::Status(static_cast<grpc::StatusCode>(code), "in its own words");
    EXPECT_EQ(client->GetUsage().status(),
              absl::Status(static_cast<absl::StatusCode>(code), "in its own words"));
  }
}

TEST(ClientTest, TooFewDescriptorsAreRefusedAndTheLeasesReleased) {
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon({.acquire = [&](uint64_t session, const v1::AcquireRequest& request,
                                    v1::AcquireResponse* response) {
    std::vector<v1::Lease> leases = {fake->NewLease(request.bytes()),
                                     fake->NewLease(request.bytes())};
    response->set_delivery_id(fake->NewDeliveryId());
    for (const v1::Lease& lease : leases) *response->add_leases() = lease;
    fake->Deliver(session, response->delivery_id(), leases, {fake->Memory(leases[0])});
    return grpc::Status::OK;
  }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  ASSERT_TRUE(client->GetUsage().ok());
  const size_t before = OpenMemoryFds();
  EXPECT_EQ(client->AcquireMany({.bytes = kBytes}, 2).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_EQ(OpenMemoryFds(), before);
}

TEST(ClientTest, AFailedMappingReleasesTheLeases) {
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon({.acquire = [&](uint64_t session, const v1::AcquireRequest& request,
                                    v1::AcquireResponse* response) {
    std::vector<v1::Lease> leases = {fake->NewLease(request.bytes()),
                                     fake->NewLease(request.bytes() / 2)};
    response->set_delivery_id(fake->NewDeliveryId());
    const std::vector<int> fds = {fake->Memory(leases[0]), fake->Memory(leases[1])};
    leases[1].set_size_bytes(request.bytes());  // more than its memory
    for (const v1::Lease& lease : leases) *response->add_leases() = lease;
    fake->Deliver(session, response->delivery_id(), leases, fds);
    return grpc::Status::OK;
  }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  ASSERT_TRUE(client->GetUsage().ok());
  const size_t before = OpenMemoryFds();
  EXPECT_EQ(client->AcquireMany({.bytes = kBytes}, 2).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_EQ(OpenMemoryFds(), before);
}

TEST(ClientTest, AGrantThatCameTooLateIsGivenBackByTheNextCall) {
  FakeDaemon* fake = nullptr;
  absl::Notification gave_up, granted;
  FakeDaemon daemon({.acquire = [&](uint64_t session, const v1::AcquireRequest& request,
                                    v1::AcquireResponse* response) {
    gave_up.WaitForNotification();
    grpc::Status status = fake->Grant(session, request, response);
    granted.Notify();
    return status;
  }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  ASSERT_TRUE(client->GetUsage().ok());
  const size_t before = OpenMemoryFds();
  EXPECT_EQ(client->Acquire({.bytes = kBytes, .timeout = absl::Milliseconds(50)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  gave_up.Notify();
  granted.WaitForNotification();
  EXPECT_EQ(daemon.live_leases(), 1u);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_EQ(OpenMemoryFds(), before);
}

TEST(ClientTest, AReleaseThatFailedIsTriedAgain) {
  std::atomic<bool> busy = true;
  FakeDaemon daemon({.release = [&](const v1::ReleaseRequest&) {
    return busy ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls in flight")
                : grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  Segment by_hand = client->Acquire({.bytes = kBytes}).value();
  { Segment by_itself = client->Acquire({.bytes = kBytes}).value(); }
  EXPECT_EQ(by_hand.Release().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(by_hand.valid());
  EXPECT_EQ(daemon.live_leases(), 2u);
  busy = false;
  // Retries with a delay, to leave a daemon in trouble alone for a while.
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (daemon.live_leases() > 0 && absl::Now() < give_up) EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.live_leases(), 0u);
}

TEST(ClientTest, ManyDestructorsDoNotWaitForADaemonThatHangs) {
  absl::Notification test_over;
  FakeDaemon daemon({.release = [&](const v1::ReleaseRequest&) {
    test_over.WaitForNotification();
    return grpc::Status::OK;
  }});
  auto client = ConnectTo(daemon);
  std::vector<Segment> segments = client->AcquireMany({.bytes = kBytes}, 100).value();
  const absl::Time start = absl::Now();
  segments.clear();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_LT(daemon.release_calls(), 10);
  test_over.Notify();
}

TEST(ClientTest, ADaemonThatHangsUpInTheMiddleOfACall) {
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon({.acquire = [&](uint64_t session, const v1::AcquireRequest& request,
                                    v1::AcquireResponse* response) {
    fake->Hangup(session);
    *response->add_leases() = fake->NewLease(request.bytes());
    response->set_delivery_id(fake->NewDeliveryId());
    return grpc::Status::OK;
  }});
  fake = &daemon;
  auto client = ConnectTo(daemon);
  EXPECT_EQ(client->Acquire({.bytes = kBytes}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->GetUsage().status().code(), absl::StatusCode::kUnavailable);
}

TEST(ClientTest, AfterAGoodbyeEveryCallSaysWhy) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  daemon.Goodbye(1, "the node is going down");
  for (const absl::Status& status :
       {client->GetUsage().status(), client->Devices().status(), segment.Share().status(),
        client->Acquire({.bytes = kBytes}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("the node is going down"));
  }
  memset(segment.data(), 1, segment.size());
  EXPECT_EQ(segment.Release().code(), absl::StatusCode::kUnavailable);
}

TEST(ClientTest, MemoryOutlivesTheDaemon) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon, absl::Milliseconds(300));
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  daemon.Crash();
  memset(segment.data(), 1, segment.size());
  EXPECT_EQ(client->GetUsage().status().code(), absl::StatusCode::kUnavailable);
  const absl::Time start = absl::Now();
  client.reset();
  segment = Segment();
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(500));
}

TEST(ClientTest, SegmentsOutliveTheirClient) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  client.reset();
  memset(segment.data(), 1, segment.size());
  EXPECT_TRUE(segment.Share().ok());
  EXPECT_EQ(daemon.live_leases(), 1u);
  segment = Segment();
  EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);
}

TEST(ClientTest, AssigningOverASegmentReleasesIt) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  segment = client->Acquire({.bytes = kBytes}).value();
  EXPECT_EQ(daemon.live_leases(/*awaited=*/1), 1u);
  Segment moved = std::move(segment);
  EXPECT_FALSE(segment.valid());  // NOLINT(bugprone-use-after-move): it guarantees that
  EXPECT_TRUE(moved.valid());
}

}  // namespace
}  // namespace gpumem
