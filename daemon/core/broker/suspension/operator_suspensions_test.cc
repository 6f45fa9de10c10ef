// SPDX-License-Identifier: Apache-2.0
// Operators ask a session to suspend and to resume, and wait until it has.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/broker/testing/wait_fixture.h"
#include "daemon/tier/tier_device.h"
#include "gmock/gmock.h"

namespace gpumemd {
namespace operator_suspensions_test {

using absl::StatusCode;
using ::testing::HasSubstr;

class OperatorSuspensionsTest : public BrokerWaitFixture {
 protected:
  OperatorSuspensionsTest() : BrokerWaitFixture(absl::Milliseconds(50), Devices()) {}

  static std::vector<std::unique_ptr<Device>> Devices() {
    std::vector<std::unique_ptr<Device>> devices = OneDevice();
    devices.push_back(*MakeTierDevice({.capacity_bytes = 10 * kGranule, .huge_pages = false}));
    return devices;
  }
  void Suspend(const Client& client, const std::vector<LeaseId>& leases) {
    const auto suspended = broker_->suspensions().Suspend(*CallOf(client), leases, 0);
    EXPECT_TRUE(suspended.ok()) << suspended.status();
  }
  void Resume(const Client& client, const std::vector<LeaseId>& leases) {
    auto acquisition = std::make_shared<Broker::Acquisition>();
    const auto call = CallOf(client);
    acquisition->session = client.session.id;
    acquisition->spec = {.resumes = leases};
    acquisition->release_deadline = absl::Now() + kLong;
    acquisition->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
    acquisition->resume = [] {};
    const Broker::Progress progress = broker_->Advance(acquisition, /*may_block=*/true);
    EXPECT_EQ(progress.state, State::kAnswered);
    EXPECT_TRUE(progress.leases.ok()) << progress.leases.status();
  }
};

TEST_F(OperatorSuspensionsTest, AnswersWhenAllIsSuspendedAndWhenAllIsResumed) {
  Client client = OpenListening();
  std::vector<LeaseId> leases = Hold(client, 2);
  const std::vector<LeaseId> more = Hold(client, 3);
  leases.insert(leases.end(), more.begin(), more.end());
  Moved moved = absl::UnknownError("not answered");
  std::thread operators([&] { moved = Move(client, Action::kSuspend); });
  EXPECT_EQ(observer_.AwaitAsked(1).front(), client.session.id);
  const auto asked = broker_->suspensions().Requested(*CallOf(client));
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->action, Action::kSuspend);
  Suspend(client, {leases[0]});
  Suspend(client, {leases[1]});
  operators.join();
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->tenant, "team");
  EXPECT_EQ(moved->leases, 2u);
  EXPECT_EQ(moved->segments, 2u);
  EXPECT_EQ(moved->bytes, 5 * kGranule);
  EXPECT_EQ(moved->resident_bytes, 0u);
  EXPECT_FALSE(broker_->suspensions().Requested(*CallOf(client)).has_value());

  // There is nothing left to do: the session is not asked.
  moved = Move(client, Action::kSuspend);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->leases, 0u);
  EXPECT_EQ(observer_.AwaitAsked(1).size(), 1u);

  std::thread resumes([&] { moved = Move(client, Action::kResume); });
  observer_.AwaitAsked(2);
  EXPECT_EQ(broker_->suspensions().Requested(*CallOf(client))->action, Action::kResume);
  Resume(client, leases);
  resumes.join();
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->leases, 2u);
  EXPECT_EQ(moved->bytes, 5 * kGranule);
}

TEST_F(OperatorSuspensionsTest, ATagMeansItsLeasesAlone) {
  Client client = OpenListening();
  Hold(client, 1);
  Moved moved = Move(client, Action::kSuspend, kLong, "kv");
  EXPECT_EQ(moved.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(moved.status().message(), HasSubstr("has no lease with tag kv that can be"));
  for (const std::string& wrong : {std::string(33, 'x'), std::string("k v"), std::string("\xff")}) {
    moved = Move(client, Action::kSuspend, kLong, wrong);
    EXPECT_EQ(moved.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(OperatorSuspensionsTest, TheDeadlineSaysHowManyAreLeft) {
  Client client = OpenListening();
  const std::vector<LeaseId> leases = Hold(client, 1);
  Hold(client, 1);
  Hold(client, 1);
  Suspend(client, leases);
  const Moved moved = Move(client, Action::kSuspend, absl::Milliseconds(1));
  EXPECT_EQ(moved.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(moved.status().message(), HasSubstr(": 2 left"));
  EXPECT_FALSE(broker_->suspensions().Requested(*CallOf(client)).has_value());
}

TEST_F(OperatorSuspensionsTest, RefusesWhatCannotBe) {
  EXPECT_EQ(broker_->operators()
                .MoveSession(SessionId{99}, Action::kSuspend, "", absl::InfiniteFuture(),
                             [] { return false; })
                .status()
                .code(),
            StatusCode::kNotFound);
  Client deaf = Open("team");
  Hold(deaf, 1);
  EXPECT_EQ(Move(deaf, Action::kSuspend).status().code(), StatusCode::kFailedPrecondition);
  Client empty = OpenListening();
  for (Action action : {Action::kSuspend, Action::kResume}) {
    const absl::Status status = Move(empty, action).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("no lease"));
  }
  // The end of the watch ends it.
  Client client = OpenListening();
  Hold(client, 1);
  watches_.pop_back();
  EXPECT_EQ(Move(client, Action::kSuspend).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(OperatorSuspensionsTest, DemotionNeedsHostMemory) {
  Client client = OpenListening();
  Hold(client, 1);
  for (const Action action : {Action::kDemote, Action::kPromote}) {
    const absl::Status status = Move(client, action).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("kind host"));
  }
}

TEST_F(OperatorSuspensionsTest, TheEndOfTheSessionOrALaterRequestEndsTheWait) {
  Client client = OpenListening();
  const std::vector<LeaseId> leases = Hold(client, 1);
  Moved first = absl::UnknownError("not answered"), second = first;
  std::thread one([&] { first = Move(client, Action::kSuspend); });
  observer_.AwaitAsked(1);
  std::thread two([&] { second = Move(client, Action::kSuspend); });
  one.join();
  EXPECT_EQ(first.status().code(), StatusCode::kAborted);
  observer_.AwaitAsked(2);
  broker_->SocketClosed(client.session.id);
  two.join();
  EXPECT_EQ(second.status().code(), StatusCode::kAborted);
}

TEST_F(OperatorSuspensionsTest, AnOperatorThatGoesEndsTheWait) {
  Client client = OpenListening();
  Hold(client, 1);
  int looks = 0;
  const Moved moved =
      broker_->operators().MoveSession(client.session.id, Action::kSuspend, "",
                                       absl::InfiniteFuture(), [&] { return ++looks == 2; });
  EXPECT_EQ(moved.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(looks, 2);
  EXPECT_FALSE(broker_->suspensions().Requested(*CallOf(client)).has_value());
}

TEST_F(OperatorSuspensionsTest, WhatWasDoneOutOfOrderIsNotLeft) {
  Client client = OpenListening();
  Hold(client, 1);
  const std::vector<LeaseId> later = Hold(client, 1);
  const Moved moved =
      broker_->operators().MoveSession(client.session.id, Action::kSuspend, "", absl::Now(), [&] {
        Suspend(client, later);
        return false;
      });
  EXPECT_EQ(moved.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(moved.status().message(), HasSubstr(": 1 left"));
}

// More leases than are looked at while the mutex is held.
TEST_F(OperatorSuspensionsTest, HundredsOfLeasesAreAwaited) {
  Client client = OpenListening();
  std::vector<LeaseId> leases = Hold(client, 1);
  const auto ticket = broker_->Share(*CallOf(client), leases[0], TicketScope::kTenant);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  while (leases.size() < 400) {
    const auto opened = broker_->Open(*CallOf(client), std::vector<Secret>(100, *ticket),
                                      /*revocable=*/false, /*request_id=*/0,
                                      [](const Broker::Handover&) { return absl::OkStatus(); });
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (const LeaseView& lease : *opened) leases.push_back(lease.lease);
  }
  Moved moved = absl::UnknownError("not answered");
  std::thread operators([&] { moved = Move(client, Action::kSuspend); });
  observer_.AwaitAsked(1);
  Suspend(client, leases);
  operators.join();
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->leases, leases.size());
  EXPECT_EQ(moved->segments, 1u);
}

}  // namespace operator_suspensions_test
}  // namespace gpumemd
