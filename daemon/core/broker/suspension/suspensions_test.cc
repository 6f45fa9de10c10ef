// SPDX-License-Identifier: Apache-2.0
// Suspends and Resumes while copies are under way: which wait, and for what.
#include "daemon/core/broker/suspension/suspensions.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/wait_fixture.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/denial.h"
#include "daemon/device/testing/fault_injection.h"
#include "daemon/tier/tier_device.h"

namespace gpumemd {
namespace suspensions_test {

using ::testing::SizeIs;
using Cause = SuspensionRequests::Cause;

class BrokerSuspensionsTest : public BrokerWaitFixture {
 protected:
  BrokerSuspensionsTest() : BrokerWaitFixture(absl::Milliseconds(50), Devices()) {}

  std::vector<std::unique_ptr<Device>> Devices() {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(InjectFaults(*MakeHostDevice({.capacity_bytes = 10 * kGranule}),
                                   [this](const DeviceOp& op) {
                                     if (op.type == DeviceOp::Type::kPrepareCopies) ++prepared_;
                                     if (op.type != DeviceOp::Type::kCopy) return absl::OkStatus();
                                     if (Gate* const gate = gate_; gate != nullptr) gate->Pass();
                                     return copies_;
                                   }));
    devices.push_back(*MakeTierDevice({.capacity_bytes = 10 * kGranule}));
    return devices;
  }
  void Suspend(const Client& client, const std::vector<LeaseId>& leases) {
    const auto suspended = broker_->suspensions().Suspend(*CallOf(client), leases, 0);
    EXPECT_TRUE(suspended.ok()) << suspended.status();
    if (suspended.ok()) moved_ = suspended->moved_bytes;
  }
  // Opens the segment of `owner`'s lease for `user`.
  LeaseId OpenOf(const Client& owner, LeaseId lease, const Client& user) {
    const auto ticket = broker_->Share(*CallOf(owner), lease, TicketScope::kTenant);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    const auto opened =
        broker_->Open(*CallOf(user), {ticket.value()}, /*revocable=*/false, /*request_id=*/0,
                      [](const Broker::Handover&) { return absl::OkStatus(); });
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.value().front().lease;
  }
  // Begins a Suspend whose copy waits at the gate.
  std::thread SuspendSlowly(const Client& client, const std::vector<LeaseId>& leases) {
    slow_ = std::make_unique<Gate>();
    gate_ = slow_.get();
    std::thread suspends([this, &client, leases] { Suspend(client, leases); });
    slow_->AwaitArrivals(1);
    return suspends;
  }
  void EndCopy(std::thread suspends) {
    slow_->Open();
    suspends.join();
  }
  uint64_t InTier() { return broker_->views().Devices(false).at(1).charged; }

  absl::Status copies_;  // what they return
  uint64_t moved_ = 1;   // by the latest Suspend
  std::atomic<int> prepared_ = 0;
  std::unique_ptr<Gate> slow_;
  std::atomic<Gate*> gate_ = nullptr;
};

// Otherwise its contents would be lost: the client had the lease before.
TEST_F(BrokerSuspensionsTest, ResumeThatIsGivenUpKeepsItsLeases) {
  Client client = Open("a");
  const std::vector<LeaseId> leases = Hold(client, 2);
  Suspend(client, leases);
  ASSERT_EQ(Begin(client, {.resumes = leases}, absl::ZeroDuration()), State::kNeedsAThread);
  client.acquisition->deliver = [&](const Broker::Handover&, bool) {
    broker_->GiveUp(client.acquisition);
    return absl::OkStatus();
  };
  const auto progress = broker_->Advance(client.acquisition, /*may_block=*/true);
  ASSERT_TRUE(progress.leases.ok()) << progress.leases.status();
  client.call.reset();
  Suspend(client, leases);
  EXPECT_EQ(InTier(), 2 * kGranule);
}

TEST_F(BrokerSuspensionsTest, WhatIsReleasedDuringItsCopyDoesNotCountAsMoved) {
  Client client = Open("a");
  const std::vector<LeaseId> leases = Hold(client, 2);
  std::thread suspends = SuspendSlowly(client, leases);
  EXPECT_EQ(broker_->Release(*CallOf(client), leases), absl::OkStatus());
  const uint64_t next = audit_.Read(1, 100).next;
  EndCopy(std::move(suspends));
  EXPECT_EQ(moved_, 0u);
  EXPECT_EQ(audit_.Read(next, 100).records.at(0).bytes, 0u);
}

TEST_F(BrokerSuspensionsTest, PrepareMakesReadyForTheCopyOfWhatWouldMove) {
  Client client = Open("a");
  const std::vector<LeaseId> leases = Hold(client, 2);
  const auto prepare = [&](const std::vector<LeaseId>& named) {
    return broker_->suspensions().Prepare(*CallOf(client), named).status();
  };
  EXPECT_EQ(prepare(leases), absl::OkStatus());
  EXPECT_EQ(prepared_, 1);
  EXPECT_TRUE(absl::IsNotFound(prepare({LeaseId{99}})));
  Suspend(client, leases);
  EXPECT_EQ(prepare(leases), absl::OkStatus()) << "nothing would move";
  EXPECT_EQ(prepared_, 1);
}

TEST_F(BrokerSuspensionsTest, ResumeWaitsForACopyWithoutAThread) {
  Client client = Open("a");
  const std::vector<LeaseId> leases = Hold(client, 2);
  std::thread suspends = SuspendSlowly(client, leases);
  Client resumes = {.session = client.session};
  ASSERT_EQ(Begin(resumes, {.resumes = leases}, absl::ZeroDuration()), State::kWaits);
  EXPECT_FALSE(resumes.resumed->HasBeenNotified());
  EndCopy(std::move(suspends));
  const auto resumed = End(resumes);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_THAT(*resumed, SizeIs(1));
}

TEST_F(BrokerSuspensionsTest, ResumeThatWaitsForACopyIsGivenUpAndParked) {
  Client client = Open("a");
  const std::vector<LeaseId> leases = Hold(client, 2);
  std::thread suspends = SuspendSlowly(client, leases);
  Client given_up = {.session = client.session}, parked = {.session = client.session};
  ASSERT_EQ(Begin(given_up, {.resumes = leases}, kLong), State::kWaits);
  ASSERT_EQ(Begin(parked, {.resumes = leases}, kLong), State::kWaits);
  broker_->GiveUp(given_up.acquisition);
  EXPECT_EQ(End(given_up).status().code(), absl::StatusCode::kCancelled);
  broker_->Park();
  EndCopy(std::move(suspends));
  EXPECT_TRUE(broker_->AwaitCalls(absl::Now() + kLong)) << "it holds up the end";
  EXPECT_FALSE(parked.resumed->HasBeenNotified());
  broker_->GiveUp(parked.acquisition);
  EXPECT_EQ(End(parked).status().code(), absl::StatusCode::kCancelled);
}

// A resumption does not wait for the copy that it makes.
TEST_F(BrokerSuspensionsTest, ResumeThatWaitedForMemoryGoesOnAtOnce) {
  Client client = Open("a"), other = Open("b");
  const std::vector<LeaseId> leases = Hold(client, 2);
  Suspend(client, leases);
  const std::vector<LeaseId> full = Hold(other, 10);
  ASSERT_EQ(Begin(client, {.waits = true, .resumes = leases}, kLong), State::kWaits);
  EXPECT_EQ(broker_->Release(*CallOf(other), full), absl::OkStatus());
  const absl::Time begun = absl::Now();
  const auto resumed = End(client);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_LT(absl::Now() - begun, kLong / 3);
}

TEST_F(BrokerSuspensionsTest, MovesAreAuditedAndMeasured) {
  Client client = Open("a");
  std::vector<LeaseId> leases = Hold(client, 2);
  const std::vector<LeaseId> more = Hold(client, 3);
  leases.insert(leases.end(), more.begin(), more.end());
  const uint64_t next = audit_.Read(1, 100).next;
  Suspend(client, leases);
  Suspend(client, {leases[0]});  // nothing more moves
  ASSERT_EQ(Begin(client, {.resumes = leases}, absl::ZeroDuration()), State::kNeedsAThread);
  EXPECT_TRUE(broker_->Advance(client.acquisition, /*may_block=*/true).leases.ok());
  client.call.reset();
  Client twice = {.session = client.session};
  ASSERT_EQ(Begin(twice, {.resumes = leases}, absl::ZeroDuration()), State::kAnswered);
  twice.call.reset();

  const std::vector<AuditRecord> records = audit_.Read(next, 100).records;
  ASSERT_THAT(records, SizeIs(4));
  const std::string device = broker_->views().Devices(false).at(0).info.uuid;
  const uint64_t bytes = 5 * kGranule;
  for (size_t i = 0; i < records.size(); ++i) {
    const AuditRecord& record = records[i];
    SCOPED_TRACE(Tell(record));
    const bool moved = i == 0 || i == 2;
    EXPECT_EQ(record.event, i < 2 ? AuditEvent::kSuspended : AuditEvent::kResumed);
    EXPECT_EQ(record.tenant, "a");
    EXPECT_EQ(record.session, client.session.id);
    EXPECT_EQ(record.device, device);
    EXPECT_EQ(record.bytes, moved ? bytes : 0);
    EXPECT_EQ(record.count, moved ? 2 : 0);
    EXPECT_EQ(record.resident, i == 3 ? bytes : 0);
    EXPECT_EQ(record.leases.size(), i == 1 ? 1 : 2);
    for (const AuditField& field : FieldsOf(record)) {
      const auto& known = KindOf(record.event).fields;
      EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](absl::string_view each) {
        return each == field.name || each == absl::StrCat(field.name, "?");
      })) << field.name;
    }
  }
  EXPECT_EQ(Tell(records[0]),
            "suspended by tenant a, session 1, pid 1: 10.00 MiB on " + device + ", 2 segments");

  const Measures measures = broker_->views().Measure();
  EXPECT_EQ(measures.devices[0].suspended, bytes);
  EXPECT_EQ(measures.devices[0].resumed, bytes);
  EXPECT_EQ(measures.suspends.count(), 2u);
  EXPECT_EQ(measures.resumes[0].count(), 2u);
  for (const Measures::Acquires& acquires : measures.acquires) {
    EXPECT_EQ(acquires.latency.count(), acquires.kind == Kind::kVmm && !acquires.waited ? 2u : 0u);
  }
}

TEST_F(BrokerSuspensionsTest, FailedCopyIsAudited) {
  Client client = Open("a");
  const std::vector<LeaseId> leases = Hold(client, 2);
  const uint64_t next = audit_.Read(1, 100).next;
  copies_ = absl::InternalError("no copy");
  EXPECT_FALSE(broker_->suspensions().Suspend(*CallOf(client), leases, 0).ok());
  const std::vector<AuditRecord> records = audit_.Read(next, 100).records;
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].bytes, 0);
  EXPECT_EQ(records[0].resident, 2 * kGranule);
  EXPECT_EQ(records[0].why, "no copy");
  EXPECT_EQ(broker_->views().Measure().devices[0].suspended, 0u);
}

// --- Moves that no session asks for

TEST_F(BrokerSuspensionsTest, LastUserThatReleasesHasItMoved) {
  Client first = Open("a"), second = Open("a");
  const std::vector<LeaseId> leases = Hold(first, 2);
  const LeaseId opened = OpenOf(first, leases[0], second);
  Suspend(first, {leases[0]});
  EXPECT_EQ(InTier(), 0u);
  Gate gate;
  gate_ = &gate;
  EXPECT_EQ(broker_->Release(*CallOf(second), {opened}), absl::OkStatus());
  gate.AwaitArrivals(1);
  // A Suspend of the same lease answers when that copy has ended.
  absl::Notification answered;
  std::thread suspends([&] {
    Suspend(first, {leases[0]});
    answered.Notify();
  });
  EXPECT_FALSE(broker_->AwaitCalls(absl::Now())) << "the end of the daemon awaits it";
  EXPECT_FALSE(answered.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  gate.Open();
  suspends.join();
  EXPECT_EQ(broker_->views().Devices(false).at(0).charged, 0u) << "it has answered too early";
  EXPECT_EQ(InTier(), 2 * kGranule);
  EXPECT_TRUE(broker_->AwaitCalls(absl::Now() + kLong));
}

// The Suspend that awaits the daemon's move counts what that has left on the device.
TEST_F(BrokerSuspensionsTest, SuspendSaysWhatAFailedMoveLeaves) {
  Client first = Open("a"), second = Open("a");
  const std::vector<LeaseId> leases = Hold(first, 2);
  const LeaseId opened = OpenOf(first, leases[0], second);
  Suspend(first, leases);
  Gate gate;
  gate_ = &gate;
  EXPECT_EQ(broker_->Release(*CallOf(second), {opened}), absl::OkStatus());
  gate.AwaitArrivals(1);
  copies_ = absl::InternalError("no copy");
  const uint64_t next = audit_.Read(1, 100).next;
  absl::StatusOr<BrokerSuspensions::Suspended> suspended = absl::UnknownError("not answered");
  std::thread suspends(
      [&] { suspended = broker_->suspensions().Suspend(*CallOf(first), leases, 0); });
  while (audit_.Read(next, 100).records.empty()) std::this_thread::yield();
  gate.Open();
  suspends.join();
  ASSERT_TRUE(suspended.ok()) << suspended.status();
  EXPECT_EQ(suspended->resident_bytes, 2 * kGranule);
  EXPECT_TRUE(broker_->AwaitCalls(absl::Now() + kLong));
}

TEST_F(BrokerSuspensionsTest, AttachBringsASuspendedPublicationBack) {
  Client client = Open("a"), other = Open("b");
  const std::vector<LeaseId> leases = Hold(client, 2);
  ASSERT_TRUE(broker_->Publish(*CallOf(client), {.name = "w", .leases = leases}, "meta").ok());
  BrokerSuspensions::PublicationMoved moved;
  const absl::Status used = broker_->suspensions().SuspendPublication("a/w", moved);
  EXPECT_EQ(used.code(), absl::StatusCode::kFailedPrecondition) << used;
  EXPECT_EQ(broker_->Release(*CallOf(client), leases), absl::OkStatus());
  const absl::Status suspended = broker_->suspensions().SuspendPublication("a/w", moved);
  ASSERT_TRUE(suspended.ok()) << suspended;
  EXPECT_EQ(moved.bytes, 2 * kGranule);
  EXPECT_EQ(InTier(), 2 * kGranule);

  const std::vector<LeaseId> full = Hold(other, 10);
  const auto attach = [&](bool waits) {
    auto attachment = std::make_shared<Broker::Attachment>();
    attachment->session = client.session.id;
    attachment->spec = {.name = "w", .waits = waits};
    attachment->wait_until = absl::Now() + kLong;
    attachment->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
    return attachment;
  };
  client.call = CallOf(client);
  const auto refused = broker_->Advance(attach(/*waits=*/false), /*may_block=*/true);
  ASSERT_EQ(refused.state, State::kAnswered);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.attached.status())) << refused.attached.status();
  const absl::Status late = broker_->suspensions().ResumePublication(
      "a/w", absl::Now(), [] { return false; }, moved);
  EXPECT_TRUE(absl::IsResourceExhausted(late)) << late;

  // One that waits, and one that is given up.
  absl::Notification resumed, given_up;
  const auto waiting = attach(/*waits=*/true), ended = attach(/*waits=*/true);
  waiting->resume = [&] { resumed.Notify(); };
  ended->resume = [&] { given_up.Notify(); };
  EXPECT_EQ(broker_->Advance(waiting, /*may_block=*/false).state, State::kWaits);
  const auto second_call = CallOf(client);
  EXPECT_EQ(broker_->Advance(ended, /*may_block=*/false).state, State::kWaits);
  broker_->GiveUp(ended);
  EXPECT_TRUE(given_up.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE(absl::IsCancelled(broker_->Advance(ended, true).attached.status()));
  EXPECT_EQ(broker_->Release(*CallOf(other), full), absl::OkStatus());
  EXPECT_TRUE(resumed.WaitForNotificationWithTimeout(kLong));
  const auto attached = broker_->Advance(waiting, /*may_block=*/true);
  ASSERT_EQ(attached.state, State::kAnswered);
  ASSERT_TRUE(attached.attached.ok()) << attached.attached.status();
  EXPECT_EQ(attached.attached->metadata, "meta");
  EXPECT_THAT(attached.attached->leases, SizeIs(leases.size()));
  client.call.reset();
}

// A daemon that was killed while it gave a place in the tier back may have given it to another
// segment.
TEST(BrokerTierRestoreTest, PlaceOfAnEndedSegmentIsNotTaken) {
  auto earlier = MakeTierDevice({.capacity_bytes = 4 * kGranule});
  ASSERT_TRUE(earlier.ok()) << earlier.status();
  BrokerOptions options;
  options.devices.push_back(*MakeHostDevice({.capacity_bytes = 10 * kGranule}));
  const std::string home = options.devices[0]->info().uuid;
  options.devices.push_back(
      *MakeTierDevice({.file = gpumem::UniqueFd(fcntl((*earlier)->file(), F_DUPFD_CLOEXEC, 0))}));
  options.random = [] { return Secret{1}; };
  Broker broker(std::move(options));
  Inheritance inheritance;
  JournalImage& image = inheritance.image;
  const SessionId session{1};
  image.sessions[session] = {.id = session, .token = {7}, .pid = 1, .tenant = "a"};
  inheritance.sessions[session] = {.peer = {.pid = 1}};
  for (uint64_t id : {1, 2}) {
    image.segments[SegmentId{id}] = {.id = SegmentId{id},
                                     .bytes = kGranule,
                                     .kind = Kind::kTier,
                                     .made = true,
                                     .tenant = "a",
                                     .device_uuid = kTierDeviceUuid,
                                     .home_uuid = home};
    image.tier_extents[{SegmentId{id}, 0}] = {
        .segment = SegmentId{id}, .index = 0, .offset = 0, .bytes = kGranule};
  }
  image.leases[LeaseId{1}] = {
      .id = LeaseId{1}, .session = session, .segment = SegmentId{2}, .suspended = true};
  image.counters = {.session = 1, .segment = 2, .lease = 1};
  const auto restored = broker.Restore(std::move(inheritance));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->refused.size(), 0u);
  EXPECT_EQ(restored->leases, 1u);
  EXPECT_EQ(broker.views().CheckInvariants(), absl::OkStatus());
}

TEST_F(BrokerSuspensionsTest, AnotherTenantLearnsNothingOfThePublicationsUsage) {
  Client client = Open("a"), other = Open("b");
  const std::vector<LeaseId> leases = Hold(client, 2);
  ASSERT_TRUE(
      broker_->Publish(*CallOf(client), {.name = "w", .leases = leases, .to_any = true}, "").ok());
  EXPECT_EQ(broker_->Release(*CallOf(client), leases), absl::OkStatus());
  BrokerSuspensions::PublicationMoved moved;
  ASSERT_TRUE(broker_->suspensions().SuspendPublication("a/w", moved).ok());
  Hold(other, 10);
  const auto refusal = [&](const Client& who) {
    const auto call = CallOf(who);
    auto attachment = std::make_shared<Broker::Attachment>();
    attachment->session = who.session.id;
    attachment->spec = {.name = "a/w"};
    attachment->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
    return broker_->Advance(attachment, /*may_block=*/true).attached.status();
  };
  EXPECT_TRUE(DenialOf(refusal(client)).has_value());
  const absl::Status told = refusal(other);
  EXPECT_TRUE(absl::IsResourceExhausted(told)) << told;
  EXPECT_FALSE(DenialOf(told).has_value()) << told;
}

}  // namespace suspensions_test
}  // namespace gpumemd
