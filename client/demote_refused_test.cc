// SPDX-License-Identifier: Apache-2.0
// Demoting, against a daemon and a program that refuse each step: nothing changes, or all is
// undone.
#include <fcntl.h>

#include <atomic>
#include <string>
#include <vector>

#include "client/demote_fixture.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gpumem/demote.h"
#include "gpumem/suspend.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace demote_test {

using absl::StatusCode;
using internal::OpenMemoryFds;
using ::testing::HasSubstr;

TEST_F(DemoteTest, WhatTheLibraryKnowsIsRefusedWithoutTheDaemon) {
  Start();
  std::vector<Segment> segments = Acquire(2);
  Segment empty;
  Segment pinned = client_->Acquire({.bytes = kBytes, .kind = Kind::kPinned}).value();
  Segment revocable = client_->Acquire({.bytes = kBytes, .revocable = true}).value();
  Segment described = client_->Acquire({.bytes = kBytes}).value();
  ASSERT_TRUE(described.fd().ok());
  Segment suspended = client_->Acquire({.bytes = kBytes}).value();
  Segment* const put_aside[] = {&suspended};
  ASSERT_EQ(client_->Suspend(put_aside), absl::OkStatus());
  const uint64_t granted = daemon_->granted();
  const auto code = [this](std::vector<Segment*> list) { return client_->Demote(list).code(); };
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({nullptr}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({&empty}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({&segments[0], &segments[0]}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({&segments[0], &pinned}), StatusCode::kUnimplemented);
  EXPECT_EQ(code({&segments[0], &revocable}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code({&segments[0], &described}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code({&segments[0], &suspended}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Promote(All(segments)).code(), StatusCode::kFailedPrecondition);
  DemoteOptions options = Counting();
  options.proceed = nullptr;
  EXPECT_EQ(client_->Demote(All(segments), options).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Demote(All(segments), {.wait = -absl::Seconds(1)}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Demote(All(segments), {.longest_pause = absl::ZeroDuration()}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(daemon_->granted(), granted);

  ASSERT_EQ(client_->Demote(All(segments)), absl::OkStatus());
  EXPECT_EQ(code({&segments[0]}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Suspend(All(segments)).code(), StatusCode::kUnimplemented);
  const auto fd = segments[0].fd();
  ASSERT_TRUE(fd.ok()) << fd.status();
  Segment* const first[] = {&segments[0]};
  EXPECT_EQ(client_->Promote(first), absl::OkStatus());
  EXPECT_EQ(fcntl(*fd, F_GETFD), -1) << "it would keep the host memory";
}

TEST_F(DemoteTest, ARefusedRequestChangesNothing) {
  Start({.acquire = [this](uint64_t session, const v1::AcquireRequest& request,
                           v1::AcquireResponse* response) {
    if (request.kind() != v1::KIND_HOST) return daemon_->Grant(session, request, response);
    EXPECT_EQ(request.device_uuid(), "");
    EXPECT_EQ(request.count(), 2u);
    EXPECT_EQ(request.bytes(), kBytes);
    return Denied();
  }});
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  const absl::Status status = client_->Demote(All(segments), Counting());
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(GetDenial(status).has_value());
  EXPECT_EQ(pauses_, 0);
  Expect(segments, base, /*demoted=*/false);
}

TEST_F(DemoteTest, TheDaemonIsAskedBeforeAnythingMoves) {
  Start({.exchange = [](const IsCancelled&, const v1::ExchangeLeasesRequest& request) {
    EXPECT_TRUE(request.check_only());
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "others use it");
  }});
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  const size_t fds = OpenMemoryFds();
  const absl::Status status = client_->Demote(All(segments), Counting());
  EXPECT_EQ(status, absl::FailedPreconditionError("others use it"));
  EXPECT_EQ(pauses_, 0);
  Expect(segments, base, /*demoted=*/false);
  EXPECT_EQ(daemon_->live_leases(), 2u);
  EXPECT_EQ(OpenMemoryFds(), fds);
}

TEST_F(DemoteTest, AProgramThatCannotPauseKeepsItsMemory) {
  Start();
  std::vector<Segment> segments = Acquire(3);
  char* const base = Bytes(segments[0]);
  DemoteOptions options = Counting();
  options.pause = [&] { return ++pauses_ == 3 ? absl::AbortedError("busy") : absl::OkStatus(); };
  EXPECT_EQ(client_->Demote(All(segments), options), absl::AbortedError("busy"));
  EXPECT_EQ(pauses_, 5) << "two to switch, one in vain, two to switch back";
  EXPECT_EQ(proceeds_, 4);
  Expect(segments, base, /*demoted=*/false);
  EXPECT_EQ(daemon_->live_leases(), 3u);
}

TEST_F(DemoteTest, SegmentsThatCannotBeSwitchedBackStayDemoted) {
  Start();
  std::vector<Segment> segments = Acquire(3);
  char* const base = Bytes(segments[0]);
  DemoteOptions options = Counting();
  options.pause = [&] {
    return ++pauses_ >= 3 && pauses_ != 4 ? absl::AbortedError("busy") : absl::OkStatus();
  };
  const absl::Status status = client_->Demote(All(segments), options);
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_THAT(status.message(), HasSubstr("could be brought back"));
  EXPECT_FALSE(segments[0].demoted());
  EXPECT_TRUE(segments[1].demoted());
  EXPECT_FALSE(segments[2].demoted());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(base + i * kBytes, absl::StrCat("segment ", i));
  EXPECT_EQ(daemon_->LeaseOf(segments[1].lease_id()).kind(), v1::KIND_HOST);
  EXPECT_EQ(daemon_->live_leases(), 3u);
  Segment* const middle[] = {&segments[1]};
  ASSERT_EQ(client_->Promote(middle), absl::OkStatus());
  Expect(segments, base, /*demoted=*/false);
}

TEST_F(DemoteTest, ARefusedExchangeIsUndone) {
  Start({.exchange = [](const IsCancelled&, const v1::ExchangeLeasesRequest& request) {
    return request.check_only()
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "others use it now");
  }});
  std::vector<Segment> segments = Acquire(3);
  char* const base = Bytes(segments[0]);
  EXPECT_EQ(client_->Demote(All(segments), Counting()),
            absl::FailedPreconditionError("others use it now"));
  EXPECT_EQ(pauses_, 6);
  EXPECT_EQ(proceeds_, 6);
  Expect(segments, base, /*demoted=*/false);
  EXPECT_EQ(daemon_->live_leases(), 3u);
}

TEST_F(DemoteTest, IfALaterExchangeIsRefusedTheEarlierOnesAreUndone) {
  std::atomic<int> exchanges = 0;
  Start({.exchange = [&](const IsCancelled&, const v1::ExchangeLeasesRequest& request) {
    if (request.check_only() || ++exchanges != 2) return grpc::Status::OK;
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no");
  }});
  std::vector<Segment> segments = Acquire(2);
  std::vector<Segment> large = Acquire(2, 2 * kBytes);
  char* const bases[] = {Bytes(segments[0]), Bytes(large[0])};
  std::vector<Segment*> all = All(large);
  for (Segment* one : All(segments)) all.push_back(one);
  EXPECT_EQ(client_->Demote(all), absl::FailedPreconditionError("no"));
  EXPECT_EQ(exchanges, 3) << "the first one back";
  Expect(segments, bases[0], /*demoted=*/false);
  Expect(large, bases[1], /*demoted=*/false);
  EXPECT_EQ(daemon_->live_leases(), 4u);
  ASSERT_EQ(client_->Demote(all), absl::OkStatus());
  Expect(large, bases[1], /*demoted=*/true);
}

TEST_F(DemoteTest, ASizeThatTheDaemonRoundsIsRefused) {
  Start({.acquire = [this](uint64_t session, const v1::AcquireRequest& request,
                           v1::AcquireResponse* response) {
    v1::AcquireRequest rounded = request;
    if (request.kind() == v1::KIND_HOST) rounded.set_bytes(2 * kBytes);
    return daemon_->Grant(session, rounded, response);
  }});
  std::vector<Segment> segments = Acquire(1);
  EXPECT_EQ(client_->Demote(All(segments), Counting()).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(pauses_, 0);
  Expect(segments, Bytes(segments[0]), /*demoted=*/false);
  EXPECT_EQ(daemon_->live_leases(), 1u);
}

}  // namespace demote_test
}  // namespace gpumem
