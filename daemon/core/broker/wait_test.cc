// SPDX-License-Identifier: Apache-2.0
// Requests that wait for their turn: no thread waits with them, and the clock ends waits on time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/testing/wait_fixture.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/denial.h"

namespace gpumemd {
namespace wait_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using BrokerWaitTest = BrokerWaitFixture;

TEST_F(BrokerWaitTest, ReleaseAdmitsAWaiter) {
  Client a = Open("a"), b = Open("b");
  const std::vector<LeaseId> held = Hold(a, 10);
  ASSERT_EQ(Begin(b, 4, kLong), State::kWaits);
  EXPECT_EQ(broker_->views().ListWaiting("", "")->size(), 1u);
  EXPECT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
  const auto leases = End(b);
  ASSERT_TRUE(leases.ok()) << leases.status();
  EXPECT_EQ(leases->front().bytes, 4 * kGranule);
  EXPECT_TRUE(broker_->views().ListWaiting("", "")->empty());
}

// The next daemon is to answer them.
TEST_F(BrokerWaitTest, ParkedRequestsAreNeitherServedNorAnswered) {
  Client a = Open("a"), b = Open("b"), c = Open("c");
  const std::vector<LeaseId> held = Hold(a, 10);
  ASSERT_EQ(Begin(b, 4, kLong), State::kWaits);
  EXPECT_FALSE(broker_->AwaitCalls(absl::Now()));
  broker_->Park();
  // Neither a waiting nor a new request gets the memory that comes free.
  EXPECT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
  ASSERT_EQ(Begin(c, 1, absl::ZeroDuration()), State::kWaits);
  EXPECT_TRUE(broker_->AwaitCalls(absl::Now() + kLong)) << "they hold up the end";
  EXPECT_FALSE(b.resumed->HasBeenNotified());
  EXPECT_FALSE(c.resumed->HasBeenNotified());
  for (Client* parked : {&b, &c}) {  // their connections end
    broker_->GiveUp(parked->acquisition);
    EXPECT_EQ(End(*parked).status().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(broker_->AwaitCalls(absl::Now()));
}

TEST_F(BrokerWaitTest, EndOfAProcessAdmitsAWaiter) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(b, 10, kLong), State::kWaits);
  broker_->SocketClosed(a.session.id);
  EXPECT_FALSE(b.resumed->HasBeenNotified()) << "its process may still map it";
  broker_->ProcessGone(a.session.id);
  EXPECT_TRUE(End(b).ok());
}

TEST_F(BrokerWaitTest, ExpiredWaiterIsToldWhatBlockedIt) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(b, 4, absl::Milliseconds(1)), State::kWaits);
  b.acquisition->spec.waits = true;
  const absl::Status status = End(b).status();
  const auto denial = DenialOf(status);
  ASSERT_TRUE(denial.has_value()) << status;
  EXPECT_EQ(denial->cause, Denial::Cause::kCapacity);
  EXPECT_EQ(broker_->views().GetTenant("b")->denials, 1u);
}

// Holds for requests that wait and for those that do not.
TEST_F(BrokerWaitTest, HoldersAreNamedToOperatorsAndAsConfigured) {
  broker_->operators().Configure(
      {{"team", {}}, {"b", {.parent = "team"}}, {"c", {.parent = "team"}}}, {});
  Client a = Open("a"), b = Open("b"), c = Open("c");
  Hold(a, 7);
  Hold(c, 3);
  const auto names = [](const absl::Status& status) {
    std::vector<std::string> named;
    const auto denial = DenialOf(status);
    EXPECT_TRUE(denial.has_value()) << status;
    if (!denial) return named;
    for (const auto& holder : denial->holders) named.push_back(holder.tenant);
    // The message is made from the same data.
    const bool told = absl::StrContains(status.message(), "a 14.00 MiB");
    EXPECT_EQ(told, denial->holders.size() == 2) << status;
    return named;
  };
  const auto denied_at_once = [&] {
    Client other = Open("b");
    return broker_
        ->Acquire(*CallOf(other), {.bytes = kGranule}, absl::InfiniteFuture(),
                  [](const Broker::Handover&) { return absl::OkStatus(); })
        .status();
  };
  const auto denied_later = [&] {
    Client other = Open("b");
    EXPECT_EQ(Begin(other, 4, absl::Milliseconds(1)), State::kWaits);
    const auto waiting = broker_->views().ListWaiting("", "");
    if (waiting.ok() && !waiting->empty()) {
      EXPECT_EQ(waiting->front().blocked_by.holders.size(), 2u);
    }
    return End(other).status();
  };
  EXPECT_THAT(names(denied_at_once()), ElementsAre("c")) << "the default";
  EXPECT_THAT(names(denied_later()), ElementsAre("c"));
  broker_->operators().SetHoldersShown(HoldersShown::kAll);
  EXPECT_THAT(names(denied_at_once()), ElementsAre("a", "c"));
  EXPECT_THAT(names(denied_later()), ElementsAre("a", "c"));
  broker_->operators().SetHoldersShown(HoldersShown::kNone);
  EXPECT_THAT(names(denied_at_once()), IsEmpty());
  EXPECT_THAT(names(denied_later()), IsEmpty());
}

TEST_F(BrokerWaitTest, DisconnectedClientWaitsNoLonger) {
  Client a = Open("a"), b = Open("b"), c = Open("c");
  const std::vector<LeaseId> held = Hold(a, 10);
  ASSERT_EQ(Begin(b, 10, kLong), State::kWaits);
  ASSERT_EQ(Begin(c, 10, kLong), State::kWaits);
  broker_->GiveUp(b.acquisition);
  EXPECT_TRUE(absl::IsCancelled(End(b).status()));
  broker_->GiveUp(b.acquisition);  // no harm
  EXPECT_EQ(broker_->views().GetTenant("b")->denials, 0u);
  EXPECT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
  EXPECT_TRUE(End(c).ok());
}

TEST_F(BrokerWaitTest, GrantOfADisconnectedClientIsReleased) {
  Client a = Open("a"), b = Open("b");
  // Between its grant and its answer; and before it would begin to wait.
  ASSERT_EQ(Begin(a, 10, kLong), State::kNeedsAThread);
  broker_->GiveUp(a.acquisition);
  EXPECT_TRUE(
      absl::IsCancelled(broker_->Advance(a.acquisition, /*may_block=*/true).leases.status()));
  a.call.reset();
  EXPECT_EQ(broker_->views().GetTenant("a")->devices[0].leased, 0u);
  EXPECT_TRUE(broker_->operators().Trim("", "", 0).ok());  // it was retained
  Hold(a, 10);
  b.acquisition = std::make_shared<Broker::Acquisition>();
  b.acquisition->session = b.session.id;
  b.acquisition->spec = {.bytes = kGranule, .waits = true};
  b.call = CallOf(b);
  broker_->GiveUp(b.acquisition);
  EXPECT_TRUE(
      absl::IsCancelled(broker_->Advance(b.acquisition, /*may_block=*/false).leases.status()));
  EXPECT_TRUE(broker_->views().ListWaiting("", "")->empty());
  b.call.reset();
}

TEST_F(BrokerWaitTest, ASessionThatEndsWaitsNoLonger) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(b, 10, kLong), State::kWaits);
  broker_->SocketClosed(b.session.id);
  EXPECT_TRUE(absl::IsAborted(End(b).status()));
}

TEST_F(BrokerWaitTest, DrainingEndsAllWaits) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(b, 10, kLong), State::kWaits);
  broker_->operators().SetDraining(true);
  EXPECT_TRUE(absl::IsUnavailable(End(b).status()));
}

TEST_F(BrokerWaitTest, RaisedLimitAdmitsAWaiter) {
  broker_->operators().Configure({{"b", {.limit_bytes = 2 * kGranule}}}, {});
  Client b = Open("b"), other = Open("b");
  Hold(other, 2);
  ASSERT_EQ(Begin(b, 2, kLong), State::kWaits);
  EXPECT_TRUE(broker_->operators().OverrideQuota("b", {{.limit_bytes = 4 * kGranule}}).ok());
  EXPECT_TRUE(End(b).ok());
}

TEST_F(BrokerWaitTest, UnbrokeredMemoryEndsTheWaitAtOnce) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(BeginQuietly(b, 4), State::kWaits);
  const std::string device = broker_->views().Devices(/*ask_driver=*/false)[0].info.uuid;
  broker_->operators().SetUnbrokered({{b.session.id, device, kGranule, /*denies=*/true}});
  ASSERT_TRUE(b.resumed->HasBeenNotified());
  const auto denial = DenialOf(End(b).status());
  ASSERT_TRUE(denial.has_value());
  EXPECT_EQ(denial->cause, Denial::Cause::kUnbrokered);
}

// A session whose client asks again, for something else, loses what it was granted. Others get that
// even if the new request fails.
TEST_F(BrokerWaitTest, LeasesThatAFailedRepeatEndsServeOthers) {
  const auto resume = [&](Client& client) {
    PeerIdentity peer;
    peer.pid = pids_;
    const absl::string_view token = TokenOf(client.session);
    ASSERT_TRUE(broker_->Resume(token, peer).ok());
    ASSERT_TRUE(broker_->Reconcile(token, {}, {7}).ok());
  };
  for (const bool attach : {false, true}) {
    Client b = Open("b"), a = Open("a");
    const std::vector<LeaseId> held =
        Hold(a, 10, /*revocable=*/false, /*request_id=*/attach ? 0 : 7);
    if (attach) {
      ASSERT_TRUE(broker_->Publish(*CallOf(a), {.name = "w", .leases = held}, "").ok());
      auto first = std::make_shared<Broker::Attachment>();
      first->session = a.session.id;
      first->spec = {.name = "w", .request_id = 7};
      first->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
      ASSERT_TRUE(broker_->Advance(first, /*may_block=*/true).attached.ok());
      ASSERT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
      ASSERT_TRUE(broker_->operators().Unpublish("a/w").ok());
    }
    resume(a);
    ASSERT_EQ(BeginQuietly(b, 4), State::kWaits);
    const auto call = CallOf(a);  // its end would also serve the queue
    if (attach) {
      auto again = std::make_shared<Broker::Attachment>();
      again->session = a.session.id;
      again->spec = {.name = "w", .request_id = 7};
      EXPECT_TRUE(absl::IsNotFound(broker_->Advance(again, /*may_block=*/true).attached.status()));
    } else {
      const auto deliver = [](const Broker::Handover&) { return absl::OkStatus(); };
      EXPECT_TRUE(absl::IsNotFound(
          broker_->Open(*call, {Secret{}, Secret{}}, /*revocable=*/false, 7, deliver).status()));
    }
    const auto leases = End(b);
    ASSERT_TRUE(leases.ok()) << leases.status();
    EXPECT_EQ(broker_->Release(*CallOf(b), {leases->front().lease}), absl::OkStatus());
    ASSERT_TRUE(broker_->operators().Trim("", "", 0).ok());
  }
}

// The second Reconcile ends the lease in its first part, before it has passed all requests.
TEST_F(BrokerWaitTest, NoCallBeginsBetweenThePartsOfARepeatedReconcile) {
  Client a = Open("team");
  PeerIdentity peer;
  peer.pid = pids_;
  Client b = Open("team");
  const std::vector<LeaseId> held = Hold(a, 10);
  const absl::string_view token = TokenOf(a.session);
  ASSERT_TRUE(broker_->Resume(token, peer).ok());
  ASSERT_TRUE(broker_->Reconcile(token, held, {}).ok());
  ASSERT_EQ(BeginQuietly(b, 10), State::kWaits);
  absl::Status between;
  b.acquisition->resume = [&] {
    between = broker_->Authenticate(token).status();
    b.resumed->Notify();
  };
  const std::vector<uint64_t> requests(5000, 77);
  ASSERT_TRUE(broker_->Reconcile(token, {}, requests).ok());
  const auto leases = End(b);
  ASSERT_TRUE(leases.ok()) << leases.status();
  EXPECT_TRUE(absl::IsUnauthenticated(between)) << between;
  EXPECT_TRUE(broker_->Authenticate(token).ok());
}

}  // namespace wait_test
}  // namespace gpumemd
