// SPDX-License-Identifier: Apache-2.0
// What operators ask of sessions and publications, where a device or the tier refuses, and what
// they are told: demotions, and publications that are suspended and resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/broker/testing/wait_fixture.h"
#include "daemon/device/pinned_device.h"
#include "daemon/device/testing/fault_injection.h"
#include "daemon/tier/tier_device.h"

namespace gpumemd {
namespace operator_moves_test {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class OperatorMovesTest : public BrokerWaitFixture {
 protected:
  OperatorMovesTest() : BrokerWaitFixture(absl::Milliseconds(50), Devices(this)) {}

  // Of a test that is not yet constructed.
  static std::vector<std::unique_ptr<Device>> Devices(const OperatorMovesTest* test) {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(InjectFaults(
        *MakeHostDevice({.capacity_bytes = 10 * kGranule}), [test](const DeviceOp& op) {
          Gate* const gate = op.type == DeviceOp::Type::kCopy      ? test->copies_.load()
                             : op.type == DeviceOp::Type::kDestroy ? test->destroys_.load()
                                                                   : nullptr;
          if (gate != nullptr) gate->Pass();
          if (op.type == DeviceOp::Type::kCreate && test->creates_fail_) {
            return absl::InternalError("CUDA_ERROR_ECC_UNCORRECTABLE");
          }
          if (op.type == DeviceOp::Type::kCopy && test->copies_fail_) {
            return absl::InternalError("the copier has ended");
          }
          return absl::OkStatus();
        }));
    devices.push_back(
        InjectFaults(*MakeTierDevice({.capacity_bytes = 10 * kGranule, .huge_pages = false}),
                     [test](const DeviceOp& op) {
                       const bool fails = op.type == DeviceOp::Type::kCreate && test->tier_fails_;
                       return fails ? absl::ResourceExhaustedError("no pages") : absl::OkStatus();
                     }));
    devices.push_back(*MakePinnedDevice(
        {.capacity_bytes = 10 * kGranule, .host_kind = PinnedDeviceOptions::HostKind::kMemfd}));
    return devices;
  }

  // Acquires a lease of this kind with a tag.
  LeaseId Acquire(Client& client, Kind kind, std::string tag = "") {
    AcquireSpec spec = {.bytes = kGranule, .kind = kind, .tag = std::move(tag)};
    EXPECT_EQ(Begin(client, std::move(spec), absl::ZeroDuration()), State::kNeedsAThread);
    const auto progress = broker_->Advance(client.acquisition, /*may_block=*/true);
    EXPECT_TRUE(progress.leases.ok()) << progress.leases.status();
    client.call.reset();
    return progress.leases->front().lease;
  }
  SegmentId SegmentOf(LeaseId lease) {
    for (const LeaseHolderView& each : broker_->views().ListHolders(std::nullopt).leases) {
      if (each.id == lease) return each.segment;
    }
    ADD_FAILURE() << "no such lease";
    return {};
  }
  // Has the client exchange the memory of two of its leases.
  absl::Status Exchange(const Client& client, LeaseId one, LeaseId other) {
    return broker_->suspensions().Exchange(*CallOf(client),
                                           {{.lease = one,
                                             .other = other,
                                             .segment = SegmentOf(one),
                                             .other_segment = SegmentOf(other)}},
                                           /*check_only=*/false);
  }
  // Publishes a segment that no session uses.
  void Publish(const std::string& name) {
    Client client = Open("team");
    const std::vector<LeaseId> leases = Hold(client, 2);
    ASSERT_TRUE(broker_->Publish(*CallOf(client), {.name = name, .leases = leases}, "").ok());
    ASSERT_EQ(broker_->Release(*CallOf(client), leases), absl::OkStatus());
  }
  absl::StatusOr<BrokerSuspensions::PublicationMoved> ResumePublication(
      absl::string_view name, absl::Duration patience = kLong,
      const std::function<bool()>& cancelled = [] { return false; }) {
    BrokerSuspensions::PublicationMoved moved;
    absl::Status resumed =
        broker_->suspensions().ResumePublication(name, absl::Now() + patience, cancelled, moved);
    if (!resumed.ok()) return resumed;
    return moved;
  }
  absl::StatusOr<BrokerSuspensions::PublicationMoved> SuspendPublication(absl::string_view name) {
    BrokerSuspensions::PublicationMoved moved;
    absl::Status suspended = broker_->suspensions().SuspendPublication(name, moved);
    if (!suspended.ok()) return suspended;
    return moved;
  }
  // Suspends "team/w", and has `meanwhile` done while its memory is copied. The copy ends once that
  // has opened the gate.
  absl::StatusOr<BrokerSuspensions::PublicationMoved> SuspendWhile(
      const std::function<void(Gate&)>& meanwhile) {
    Gate gate;
    copies_ = &gate;
    absl::StatusOr<BrokerSuspensions::PublicationMoved> suspended = absl::UnknownError("not yet");
    std::thread suspends([&] { suspended = SuspendPublication("team/w"); });
    gate.AwaitArrivals(1);
    meanwhile(gate);
    suspends.join();
    copies_ = nullptr;
    return suspended;
  }
  // True once so many bytes are in the tier. What a failed move has made there goes soon.
  bool InTier(uint64_t bytes) {
    const absl::Time end = absl::Now() + kLong;
    while (broker_->views().Devices(false).at(1).charged != bytes) {
      if (absl::Now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Returns the audit's records of this event since the last call.
  std::vector<AuditRecord> Audited(AuditEvent event) {
    AuditRing::Batch batch = audit_.Read(next_, 100);
    next_ = batch.next;
    std::erase_if(batch.records,
                  [event](const AuditRecord& record) { return record.event != event; });
    return std::move(batch.records);
  }

  std::atomic<bool> creates_fail_ = false, copies_fail_ = false, tier_fails_ = false;
  std::atomic<Gate*> copies_ = nullptr, destroys_ = nullptr;  // hold them up
  uint64_t next_ = 1;
};

// --- Sessions

TEST_F(OperatorMovesTest, AnswersWhenAllIsDemotedAndWhenAllIsPromoted) {
  Client client = OpenListening(/*demotes=*/true);
  const LeaseId lease = Acquire(client, Kind::kVmm, "kv"), host = Acquire(client, Kind::kHost);
  const std::string device = broker_->views().Devices(false).at(0).info.uuid;
  Audited(AuditEvent::kDemoted);
  Moved moved = absl::UnknownError("not answered");
  std::thread demotes([&] { moved = Move(client, Action::kDemote, kLong, "kv"); });
  observer_.AwaitAsked(1);
  EXPECT_EQ(broker_->suspensions().Requested(*CallOf(client))->action, Action::kDemote);
  ASSERT_EQ(Exchange(client, lease, host), absl::OkStatus());
  demotes.join();
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->leases, 1u);
  EXPECT_EQ(moved->bytes, kGranule);
  EXPECT_EQ(moved->resident_bytes, 0u);
  std::vector<AuditRecord> records = Audited(AuditEvent::kDemoted);
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].device, device);
  EXPECT_EQ(records[0].bytes, kGranule);
  EXPECT_THAT(records[0].leases, ElementsAre(lease));

  std::thread promotes([&] { moved = Move(client, Action::kPromote); });
  observer_.AwaitAsked(2);
  ASSERT_EQ(Exchange(client, lease, host), absl::OkStatus());
  promotes.join();
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->leases, 1u);
  records = Audited(AuditEvent::kPromoted);
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].bytes, kGranule);
}

TEST_F(OperatorMovesTest, SaysWhatIsMissingAndWhatWasNotDoneInTime) {
  Client client = OpenListening(/*demotes=*/true);
  const std::pair<Action, std::string> missing[] = {{Action::kSuspend, "can be suspended"},
                                                    {Action::kResume, "is suspended"},
                                                    {Action::kDemote, "can be demoted"},
                                                    {Action::kPromote, "is demoted"}};
  for (const auto& [action, words] : missing) {
    const absl::Status status = Move(client, action).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr(words));
  }
  const LeaseId lease = Acquire(client, Kind::kVmm), host = Acquire(client, Kind::kHost);
  const auto late = [&](Action action) {
    const absl::Status status = Move(client, action, absl::Milliseconds(1)).status();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    return std::string(status.message());
  };
  EXPECT_THAT(late(Action::kSuspend), HasSubstr("has not suspended all its leases in time: 1"));
  EXPECT_THAT(late(Action::kDemote), HasSubstr("has not demoted"));
  ASSERT_EQ(Exchange(client, lease, host), absl::OkStatus());
  EXPECT_THAT(late(Action::kPromote), HasSubstr("has not promoted"));
  ASSERT_EQ(Exchange(client, lease, host), absl::OkStatus());
  ASSERT_TRUE(broker_->suspensions().Suspend(*CallOf(client), {lease}, 0).ok());
  EXPECT_THAT(late(Action::kResume), HasSubstr("has not resumed"));
}

TEST_F(OperatorMovesTest, ASessionMayAcceptToSuspendAndNotToBeDemoted) {
  Client client = OpenListening();
  Acquire(client, Kind::kVmm);
  const absl::Status status = Move(client, Action::kDemote).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("pause and proceed"));
}

// What it does not hold any more has not moved.
TEST_F(OperatorMovesTest, LeasesThatAreReleasedMeanwhileDoNotCount) {
  Client client = OpenListening(/*demotes=*/true);
  const LeaseId stays = Acquire(client, Kind::kVmm), goes = Acquire(client, Kind::kVmm);
  Moved moved = absl::UnknownError("not answered");
  std::thread suspends([&] { moved = Move(client, Action::kSuspend); });
  observer_.AwaitAsked(1);
  ASSERT_EQ(broker_->Release(*CallOf(client), {goes}), absl::OkStatus());
  ASSERT_TRUE(broker_->suspensions().Suspend(*CallOf(client), {stays}, 0).ok());
  suspends.join();
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->leases, 1u);
  EXPECT_EQ(moved->bytes, kGranule);
}

TEST_F(OperatorMovesTest, RefusedExchangesChangeNothing) {
  Client client = OpenListening(/*demotes=*/true);
  const LeaseId lease = Acquire(client, Kind::kVmm), other = Acquire(client, Kind::kVmm);
  EXPECT_EQ(Exchange(client, lease, other).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(Exchange(client, lease, lease).code(), StatusCode::kInvalidArgument);
  broker_->SocketClosed(client.session.id);
  EXPECT_EQ(broker_->suspensions().Exchange(*watches_.back(), {}, /*check_only=*/true).code(),
            StatusCode::kAborted);
}

// --- Publications

TEST_F(OperatorMovesTest, PublicationGoesToTheTierAndComesBack) {
  Publish("w");
  Audited(AuditEvent::kSuspended);
  const auto suspended = SuspendPublication("team/w");
  ASSERT_TRUE(suspended.ok()) << suspended.status();
  EXPECT_EQ(suspended->tenant, "team");
  EXPECT_EQ(suspended->version, 1u);
  EXPECT_EQ(suspended->segments, 1u);
  EXPECT_EQ(suspended->bytes, 2 * kGranule);
  EXPECT_TRUE(InTier(2 * kGranule));
  EXPECT_EQ(SuspendPublication("team/w")->segments, 0u);
  const auto resumed = ResumePublication("team/w");
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->segments, 1u);
  EXPECT_EQ(resumed->bytes, 2 * kGranule);
  EXPECT_TRUE(InTier(0));
  EXPECT_EQ(ResumePublication("team/w")->segments, 0u);
}

TEST_F(OperatorMovesTest, PublicationThatIsNotThereIsRefused) {
  for (const auto& [name, code] : {std::pair("w", StatusCode::kInvalidArgument),
                                   std::pair("team/", StatusCode::kInvalidArgument),
                                   std::pair("team/w", StatusCode::kNotFound)}) {
    EXPECT_EQ(SuspendPublication(name).status().code(), code);
    EXPECT_EQ(ResumePublication(name).status().code(), code);
  }
}

TEST_F(OperatorMovesTest, PublicationStaysWhereItIsIfItCannotBeCopied) {
  Publish("w");
  for (std::atomic<bool>* const fails : {&copies_fail_, &tier_fails_}) {
    *fails = true;
    const absl::Status status = SuspendPublication("team/w").status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("stays as it was"));
    EXPECT_TRUE(InTier(0));
    *fails = false;
  }
  ASSERT_TRUE(SuspendPublication("team/w").ok());
  for (std::atomic<bool>* const fails : {&copies_fail_, &creates_fail_}) {
    *fails = true;
    EXPECT_FALSE(ResumePublication("team/w").ok());
    EXPECT_TRUE(InTier(2 * kGranule));
    *fails = false;
  }
  EXPECT_TRUE(ResumePublication("team/w").ok());
}

TEST_F(OperatorMovesTest, ResumeOfAPublicationWaitsForRoom) {
  Publish("w");
  ASSERT_TRUE(SuspendPublication("team/w").ok());
  Client other = Open("other");
  const std::vector<LeaseId> full = Hold(other, 10);
  EXPECT_EQ(ResumePublication("team/w", absl::Milliseconds(1)).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(ResumePublication("team/w", kLong, [] { return true; }).status().code(),
            StatusCode::kCancelled);
  absl::StatusOr<BrokerSuspensions::PublicationMoved> resumed = absl::UnknownError("not answered");
  absl::Notification waits;
  std::thread resumes([&] {
    resumed = ResumePublication("team/w", kLong, [&] {
      if (!waits.HasBeenNotified()) waits.Notify();
      return false;
    });
  });
  EXPECT_TRUE(waits.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(broker_->Release(*CallOf(other), full), absl::OkStatus());
  resumes.join();
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->bytes, 2 * kGranule);
}

TEST_F(OperatorMovesTest, ResumeOfAPublicationWaitsForItsWayToTheTier) {
  Publish("w");
  absl::StatusOr<BrokerSuspensions::PublicationMoved> resumed = absl::UnknownError("not answered");
  const auto suspended = SuspendWhile([&](Gate& gate) {
    resumed = ResumePublication("team/w", kLong, [&] {
      gate.Open();
      return false;
    });
  });
  EXPECT_TRUE(suspended.ok()) << suspended.status();
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->bytes, 2 * kGranule);
}

TEST_F(OperatorMovesTest, APublicationThatEndsWhileItIsCopiedIsNotFound) {
  Publish("w");
  const auto suspended = SuspendWhile([&](Gate& gate) {
    EXPECT_TRUE(broker_->operators().Unpublish("team/w").ok());
    gate.Open();
  });
  EXPECT_EQ(suspended.status().code(), StatusCode::kNotFound) << suspended.status();
  EXPECT_TRUE(InTier(0));
}

TEST_F(OperatorMovesTest, SuspendOfAPublicationSaysIfTheDriverKeepsItsMemory) {
  Publish("w");
  Gate gate;
  destroys_ = &gate;
  clock_ahead_ = -1000;  // it does not wait long
  BrokerSuspensions::PublicationMoved moved;
  const absl::Status late = broker_->suspensions().SuspendPublication("team/w", moved);
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late;
  EXPECT_EQ(moved.bytes, 2 * kGranule) << "for the audit";
  EXPECT_EQ(broker_->views().Devices(false).at(0).charged, 2 * kGranule);
  EXPECT_TRUE(InTier(2 * kGranule));
  gate.Open();
  while (broker_->views().Devices(false).at(0).charged > 0) std::this_thread::yield();
  destroys_ = nullptr;
}

TEST_F(OperatorMovesTest, AClosedDaemonDoesNotResumeAPublication) {
  Publish("w");
  ASSERT_TRUE(SuspendPublication("team/w").ok());
  broker_->operators().Close();
  const absl::Time begun = absl::Now();
  EXPECT_EQ(ResumePublication("team/w").status().code(), StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - begun, kLong / 2) << "no room would help";
}

TEST_F(OperatorMovesTest, AttachThatBringsAPublicationBackIsAudited) {
  Publish("w");
  ASSERT_TRUE(SuspendPublication("team/w").ok());
  Client client = Open("team");
  Audited(AuditEvent::kPublicationResumed);
  {
    const auto call = CallOf(client);
    auto attachment = std::make_shared<Broker::Attachment>();
    attachment->session = client.session.id;
    attachment->spec = {.name = "w"};
    attachment->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
    const auto attached = broker_->Advance(attachment, /*may_block=*/true);
    ASSERT_TRUE(attached.attached.ok()) << attached.attached.status();
  }
  const std::vector<AuditRecord> records = Audited(AuditEvent::kPublicationResumed);
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].publication, "team/w");
  EXPECT_EQ(records[0].session, client.session.id);
  EXPECT_EQ(records[0].count, 1u);
  EXPECT_EQ(records[0].bytes, 2 * kGranule);
}

}  // namespace operator_moves_test
}  // namespace gpumemd
