// SPDX-License-Identifier: Apache-2.0
// Sessions' watches, events and lists, and calls of a session that has ended meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace sessions_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using absl::StatusCode;

constexpr uint64_t kGranule = 2 << 20;

class BrokerSessionsTest : public testing::Test {
 protected:
  BrokerSessionsTest() {
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 10 * kGranule}));
    uuid_ = options.devices[0]->info().uuid;
    options.bounds.max_watches_per_session = 2;
    options.random = CountedSecrets();
    broker_ = std::make_unique<Broker>(std::move(options));
  }
  void TearDown() override { EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus()); }

  Broker::NewSession Open(absl::string_view tenant) {
    return broker_->OpenSession(tenant, {.peer = {.pid = ++pid_, .start_time = 1}}).value();
  }
  Broker::Call CallOf(const Broker::NewSession& session) { return CallIn(*broker_, session); }
  std::vector<LeaseId> Acquire(const Broker::Call& call, uint32_t count) {
    return AcquireIn(*broker_, call, {.bytes = kGranule, .count = count});
  }

  pid_t pid_ = 0;
  std::string uuid_;
  std::unique_ptr<Broker> broker_;
};

TEST_F(BrokerSessionsTest, WatchesAreBoundedAndCallsNot) {
  const Broker::NewSession session = Open("a");
  {
    Broker::Call one = CallOf(session), two = CallOf(session), three = CallOf(session);
    EXPECT_EQ(one.BecomeWatch(), absl::OkStatus());
    EXPECT_EQ(two.BecomeWatch(/*accepts_suspension=*/true), absl::OkStatus());
    EXPECT_EQ(three.BecomeWatch(/*accepts_suspension=*/true).code(),
              StatusCode::kResourceExhausted);
    EXPECT_FALSE(broker_->AwaitCalls(absl::InfinitePast())) << "it is still a call";
    EXPECT_TRUE(broker_->views().ListSessions("")->front().serves_suspension);
  }
  EXPECT_TRUE(broker_->AwaitCalls(absl::InfinitePast()));
  EXPECT_FALSE(broker_->views().ListSessions("")->front().serves_suspension);
  EXPECT_EQ(CallOf(session).BecomeWatch(), absl::OkStatus());
}

TEST_F(BrokerSessionsTest, EventsAreFoundByTheirName) {
  const Broker::NewSession session = Open("a"), other = Open("a");
  const Events::Place place = {.name = "ready"};
  const auto id = broker_->RegisterEvent(CallOf(session), place, uuid_, ExportData{1, 2, 3}, 5);
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(broker_->RegisterEvent(CallOf(session), place, uuid_, ExportData{1, 2, 3}, 5).value(),
            *id)
      << "the same request";
  const auto found = broker_->GetEvents(CallOf(other), place);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_THAT(*found, SizeIs(1));
  EXPECT_EQ(found->front().handle, (ExportData{1, 2, 3}));
  EXPECT_TRUE(broker_->UnregisterEvent(CallOf(session), *id).value()) << "another session has it";
  EXPECT_FALSE(broker_->UnregisterEvent(CallOf(session), *id).ok());
  EXPECT_EQ(broker_->RegisterEvent(CallOf(session), {.name = ""}, uuid_, {}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(BrokerSessionsTest, AttachablePublicationsAreThoseOfTheTenantOrOfAll) {
  const Broker::NewSession session = Open("a"), other = Open("b");
  const std::vector<LeaseId> leases = Acquire(CallOf(session), 1);
  ASSERT_TRUE(broker_->Publish(CallOf(session), {.name = "own", .leases = leases}, "").ok());
  ASSERT_TRUE(
      broker_->Publish(CallOf(session), {.name = "all", .leases = leases, .to_any = true}, "")
          .ok());
  EXPECT_THAT(*broker_->ListAttachable(CallOf(session), ""), SizeIs(2));
  EXPECT_THAT(*broker_->ListAttachable(CallOf(other), ""), SizeIs(1));
  EXPECT_THAT(*broker_->ListAttachable(CallOf(other), "b"), IsEmpty());
  EXPECT_THAT(*broker_->ListAttachable(CallOf(other), "none"), IsEmpty());
}

TEST_F(BrokerSessionsTest, RoomForASessionIsCheckedBeforeItBegins) {
  broker_->operators().Configure({{"a", {.max_sessions = 1}}}, {});
  const SessionDetails details = {.peer = {.pid = 99, .start_time = 1}};
  EXPECT_EQ(broker_->CheckRoomForSession("a", details), absl::OkStatus());
  Open("a");
  EXPECT_EQ(broker_->CheckRoomForSession("a", details).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(broker_->OpenSession("a", details).status().code(), StatusCode::kResourceExhausted);
  broker_->operators().SetDraining(true);
  EXPECT_EQ(broker_->CheckRoomForSession("b", details).code(), StatusCode::kUnavailable);
}

TEST_F(BrokerSessionsTest, CallsOfASessionThatHasEndedAreAborted) {
  const Broker::NewSession session = Open("a");
  const Broker::Call call = CallOf(session);
  const std::vector<LeaseId> leases = Acquire(call, 2);
  broker_->SocketClosed(session.id);
  const auto none = [](const Handover&) { return absl::OkStatus(); };
  EXPECT_EQ(broker_->Release(call, leases).code(), StatusCode::kAborted);
  EXPECT_EQ(broker_->Share(call, leases[0], TicketScope::kTenant).status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(broker_->Open(call, {Secret{}}, false, 0, none).status().code(), StatusCode::kAborted);
  EXPECT_EQ(broker_->Publish(call, {.name = "w", .leases = leases}, "").status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(broker_->Unpublish(call, "w").status().code(), StatusCode::kAborted);
  EXPECT_EQ(broker_->GetEvents(call, {.name = "e"}).status().code(), StatusCode::kAborted);
  EXPECT_EQ(broker_->suspensions().Suspend(call, leases, 0).status().code(), StatusCode::kAborted);
  EXPECT_EQ(broker_->suspensions().Requested(call), std::nullopt);
  broker_->suspensions().Cancel(call, 1);
  broker_->suspensions().ReportActivity(call);
  broker_->ReleaseClaim(call, 1);
  EXPECT_THAT(broker_->LostLeases(call), IsEmpty());
}

TEST_F(BrokerSessionsTest, LargeReleasesAreCheckedAsAWhole) {
  const Broker::NewSession session = Open("a");
  const Broker::Call call = CallOf(session);
  const std::vector<LeaseId> leases = Acquire(call, 3);
  EXPECT_EQ(broker_->Release(call, {leases[0], LeaseId{99}}).code(), StatusCode::kNotFound);
  EXPECT_EQ(broker_->views().GetTenant("a")->segments, 3u);
  EXPECT_EQ(broker_->Release(call, std::vector<LeaseId>(100'000, leases[0])).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(broker_->Release(call, {leases[0], leases[0], leases[1]}), absl::OkStatus());
  EXPECT_EQ(broker_->Usage(call)->devices[0].leased, kGranule);
}

}  // namespace sessions_test
}  // namespace gpumemd
