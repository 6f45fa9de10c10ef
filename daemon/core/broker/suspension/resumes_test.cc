// SPDX-License-Identifier: Apache-2.0
// Resumes whose leases or publication change while they wait, and those of a daemon that ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/broker/testing/wait_fixture.h"
#include "daemon/device/testing/fault_injection.h"
#include "daemon/tier/tier_device.h"

namespace gpumemd {
namespace resumes_test {

using ::testing::SizeIs;

class BrokerResumesTest : public BrokerWaitFixture {
 protected:
  BrokerResumesTest() : BrokerWaitFixture(absl::Milliseconds(50), Devices(this)) {}

  // Of a test that is not yet constructed.
  static std::vector<std::unique_ptr<Device>> Devices(const BrokerResumesTest* test) {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(InjectFaults(
        *MakeHostDevice({.capacity_bytes = 10 * kGranule}), [test](const DeviceOp& op) {
          Gate* const gate = op.type == DeviceOp::Type::kCopy ? test->copies_.load() : nullptr;
          if (gate != nullptr) gate->Pass();
          return absl::OkStatus();
        }));
    devices.push_back(*MakeTierDevice({.capacity_bytes = 10 * kGranule, .huge_pages = false}));
    return devices;
  }
  void Suspend(const Client& client, const std::vector<LeaseId>& leases) {
    const auto suspended = broker_->suspensions().Suspend(*CallOf(client), leases, 0);
    EXPECT_TRUE(suspended.ok()) << suspended.status();
  }
  uint64_t InTier() { return broker_->views().Devices(false).at(1).charged; }

  std::atomic<Gate*> copies_ = nullptr;  // holds them up
};

TEST_F(BrokerResumesTest, ADrainingDaemonResumesAndAClosedOneDoesNot) {
  Client client = Open("a");
  const std::vector<LeaseId> leases = Hold(client, 2);
  Suspend(client, leases);
  broker_->operators().SetDraining(true);
  ASSERT_EQ(Begin(client, {.resumes = leases}, absl::ZeroDuration()), State::kNeedsAThread);
  EXPECT_TRUE(broker_->Advance(client.acquisition, /*may_block=*/true).leases.ok());
  client.call.reset();
  Suspend(client, leases);
  broker_->operators().Close();
  EXPECT_EQ(Begin(client, {.resumes = leases}, absl::ZeroDuration()), State::kAnswered);
  const auto refused = broker_->Advance(client.acquisition, /*may_block=*/true);
  EXPECT_TRUE(absl::IsUnavailable(refused.leases.status())) << refused.leases.status();
  client.call.reset();
  EXPECT_EQ(InTier(), 2 * kGranule);
}

// The daemon moves one of its leases to the tier while it waits for room for the other.
TEST_F(BrokerResumesTest, ResumeWhoseLeasesMoveBeginsAnew) {
  Client client = Open("a"), shares = Open("a"), other = Open("b");
  std::vector<LeaseId> leases = Hold(client, 2);
  const auto ticket = broker_->Share(*CallOf(client), leases[0], TicketScope::kTenant);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  const auto opened =
      broker_->Open(*CallOf(shares), {*ticket}, /*revocable=*/false, /*request_id=*/0,
                    [](const Broker::Handover&) { return absl::OkStatus(); });
  ASSERT_TRUE(opened.ok()) << opened.status();
  leases.push_back(Hold(client, 3).at(0));
  Suspend(client, leases);
  EXPECT_EQ(InTier(), 3 * kGranule) << "a process may map the other segment";
  const std::vector<LeaseId> full = Hold(other, 8);
  ASSERT_EQ(Begin(client, {.waits = true, .resumes = leases}, kLong), State::kWaits);

  Gate gate;
  copies_ = &gate;
  EXPECT_EQ(broker_->Release(*CallOf(shares), {opened->front().lease}), absl::OkStatus());
  gate.AwaitArrivals(1);
  EXPECT_EQ(broker_->Release(*CallOf(other), full), absl::OkStatus());
  ASSERT_TRUE(client.resumed->WaitForNotificationWithTimeout(kLong));
  ASSERT_TRUE(broker_->operators().Trim("", "", 0).ok());  // it was retained
  absl::Notification copied;
  client.acquisition->resume = [&] { copied.Notify(); };
  EXPECT_EQ(broker_->Advance(client.acquisition, /*may_block=*/false).state, State::kWaits);
  gate.Open();
  ASSERT_TRUE(copied.WaitForNotificationWithTimeout(kLong));
  const auto resumed = broker_->Advance(client.acquisition, /*may_block=*/true);
  EXPECT_EQ(resumed.state, State::kAnswered);
  ASSERT_TRUE(resumed.leases.ok()) << resumed.leases.status();
  EXPECT_THAT(*resumed.leases, SizeIs(2));
  client.call.reset();
  copies_ = nullptr;
}

TEST_F(BrokerResumesTest, AttachToAPublicationThatEndsMeanwhileGetsTheNextVersion) {
  Client client = Open("a"), other = Open("b");
  const std::vector<LeaseId> first = Hold(client, 3);
  ASSERT_TRUE(broker_->Publish(*CallOf(client), {.name = "w", .leases = first}, "").ok());
  ASSERT_EQ(broker_->Release(*CallOf(client), first), absl::OkStatus());
  BrokerSuspensions::PublicationMoved moved;
  ASSERT_TRUE(broker_->suspensions().SuspendPublication("a/w", moved).ok());
  const std::vector<LeaseId> second = Hold(client, 1);
  Hold(other, 8);
  const auto call = CallOf(client);
  absl::Notification resumed;
  auto attachment = std::make_shared<Broker::Attachment>();
  attachment->session = client.session.id;
  attachment->spec = {.name = "w", .waits = true};
  attachment->wait_until = absl::Now() + kLong;
  attachment->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
  attachment->resume = [&] { resumed.Notify(); };
  ASSERT_EQ(broker_->Advance(attachment, /*may_block=*/false).state, State::kWaits);
  ASSERT_TRUE(broker_->Publish(*CallOf(client), {.name = "w", .leases = second}, "").ok());
  ASSERT_TRUE(resumed.WaitForNotificationWithTimeout(kLong));
  const auto attached = broker_->Advance(attachment, /*may_block=*/true).attached;
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->publication.version, 2u);
  EXPECT_THAT(attached->leases, SizeIs(1));
}

}  // namespace resumes_test
}  // namespace gpumemd
