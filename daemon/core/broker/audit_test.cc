// SPDX-License-Identifier: Apache-2.0
// Audit records of the broker: each event once, with its required fields.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "daemon/core/audit/audit_ring.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace audit_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kGranule = 2 << 20;
constexpr uint64_t kCapacity = 10;  // granules
constexpr absl::Duration kLong = absl::Seconds(30);

class BrokerAuditTest : public ::testing::Test {
 protected:
  BrokerAuditTest() {
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = kCapacity * kGranule}));
    uuid_ = options.devices.front()->info().uuid;
    options.random = [this] {
      Secret secret{};
      secret[0] = static_cast<uint8_t>(++randoms_);
      return secret;
    };
    options.now = [this] { return now_; };
    options.audit = &ring_;
    broker_ = std::make_unique<Broker>(std::move(options));
  }
  void TearDown() override { EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus()); }

  Broker::NewSession Open(const std::string& tenant) {
    auto session = TryOpen(tenant);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.value_or(Broker::NewSession{});
  }
  absl::StatusOr<Broker::NewSession> TryOpen(const std::string& tenant) {
    SessionDetails details{
        .client_name = tenant + "-client", .command = tenant + "-command", .rule = "rule 1"};
    details.peer.pid = ++pids_;
    details.peer.uid = 1000;
    return broker_->OpenSession(tenant, details);
  }
  Broker::Call CallOf(const Broker::NewSession& session) { return CallIn(*broker_, session); }
  absl::StatusOr<std::vector<LeaseView>> Acquire(const Broker::NewSession& session,
                                                 AcquireSpec spec,
                                                 absl::Status delivered = absl::OkStatus()) {
    return broker_->Acquire(CallOf(session), spec, now_,
                            [&](const Broker::Handover&) { return delivered; });
  }
  std::vector<LeaseId> Granules(const Broker::NewSession& session, uint32_t count,
                                bool revocable = false) {
    auto leases = Acquire(session, {.bytes = kGranule, .count = count, .revocable = revocable});
    EXPECT_TRUE(leases.ok()) << leases.status();
    std::vector<LeaseId> ids;
    for (const LeaseView& lease : *leases) ids.push_back(lease.lease);
    return ids;
  }

  // Returns the records since the last call. Checks that each has the fields of its event.
  std::vector<AuditRecord> Take() {
    AuditRing::Batch batch = ring_.Read(from_, 1000);
    from_ = batch.next;
    for (const AuditRecord& record : batch.records) Check(record);
    return std::move(batch.records);
  }
  static void Check(const AuditRecord& record) {
    const AuditKind& kind = KindOf(record.event);
    std::vector<std::string> there;
    for (const AuditField& field : FieldsOf(record)) {
      there.emplace_back(field.name);
      const std::string optional = there.back() + "?";
      const bool known = std::any_of(
          kind.fields.begin(), kind.fields.end(),
          [&](absl::string_view each) { return each == there.back() || each == optional; });
      EXPECT_TRUE(known) << kind.name << " has a field " << field.name;
    }
    for (absl::string_view field : kind.fields) {
      if (field.back() == '?') continue;
      EXPECT_THAT(there, ::testing::Contains(std::string(field))) << kind.name;
    }
    EXPECT_NE(record.time, absl::Time()) << kind.name;
  }
  std::vector<std::string> TakeNames() {
    std::vector<std::string> names;
    for (const AuditRecord& record : Take()) names.emplace_back(NameOf(record.event));
    return names;
  }
  // Returns the only record since the last call.
  AuditRecord TakeOne() {
    std::vector<AuditRecord> records = Take();
    EXPECT_EQ(records.size(), 1u);
    return records.empty() ? AuditRecord() : records.front();
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  AuditRing ring_;
  uint64_t from_ = 1;
  std::string uuid_;
  int randoms_ = 0;
  pid_t pids_ = 100;
  std::unique_ptr<Broker> broker_;
};

TEST_F(BrokerAuditTest, ASessionFromItsBeginningToItsEnd) {
  const auto session = Open("a");
  AuditRecord opened = TakeOne();
  EXPECT_EQ(opened.event, AuditEvent::kSessionOpened);
  EXPECT_EQ(opened.tenant, "a");
  EXPECT_EQ(opened.session, session.id);
  EXPECT_EQ(opened.pid, 101);
  EXPECT_EQ(opened.uid, 1000u);
  EXPECT_EQ(opened.client, "a-client");
  EXPECT_EQ(opened.command, "a-command");
  EXPECT_EQ(opened.rule, "rule 1");

  const std::vector<LeaseId> leases = Granules(session, 2);
  const AuditRecord granted = TakeOne();
  EXPECT_EQ(granted.event, AuditEvent::kGranted);
  EXPECT_EQ(granted.session, session.id);
  EXPECT_EQ(granted.call, "acquire");
  EXPECT_EQ(granted.device, uuid_);
  EXPECT_EQ(granted.kind, "vmm");
  EXPECT_EQ(granted.bytes, 2 * kGranule);
  EXPECT_EQ(granted.count, 2u);
  EXPECT_EQ(granted.leases, leases);
  EXPECT_EQ(granted.owner, "");

  ASSERT_TRUE(broker_->Release(CallOf(session), {leases[0]}).ok());
  const AuditRecord released = TakeOne();
  EXPECT_EQ(released.event, AuditEvent::kReleased);
  EXPECT_EQ(released.bytes, kGranule);
  EXPECT_THAT(released.leases, ElementsAre(leases[0]));
  EXPECT_THAT(released.segments, ElementsAre(granted.segments[0]));

  broker_->SocketClosed(session.id);
  const AuditRecord ended = TakeOne();
  EXPECT_EQ(ended.event, AuditEvent::kSessionEnded);
  EXPECT_EQ(ended.bytes, kGranule);
  EXPECT_EQ(ended.count, 1u);
  EXPECT_THAT(ended.why, HasSubstr("socket"));

  broker_->ProcessGone(session.id);
  const AuditRecord reclaimed = TakeOne();
  EXPECT_EQ(reclaimed.event, AuditEvent::kReclaimed);
  EXPECT_EQ(reclaimed.tenant, "a");
  EXPECT_EQ(reclaimed.pid, 101);
  EXPECT_EQ(reclaimed.bytes, kGranule);
  EXPECT_THAT(reclaimed.segments, ElementsAre(granted.segments[1]));
}

TEST_F(BrokerAuditTest, EndOfAProcessReleasesMemoryThatOnlyItMaps) {
  const auto one = Open("a"), other = Open("a");
  const std::vector<LeaseId> leases = Granules(one, 2);
  const Secret ticket = *broker_->Share(CallOf(one), leases[0], TicketScope::kTenant);
  ASSERT_TRUE(broker_
                  ->Open(CallOf(other), {ticket}, false, 0,
                         [](const Broker::Handover&) { return absl::OkStatus(); })
                  .ok());
  Take();
  broker_->ProcessGone(one.id);
  std::vector<AuditRecord> records = Take();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].event, AuditEvent::kSessionEnded);
  EXPECT_EQ(records[0].bytes, 2 * kGranule);
  EXPECT_THAT(records[0].why, HasSubstr("process"));
  EXPECT_EQ(records[1].event, AuditEvent::kReclaimed);
  EXPECT_EQ(records[1].bytes, kGranule);
  broker_->ProcessGone(other.id);
  records = Take();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].event, AuditEvent::kReclaimed);
  EXPECT_EQ(records[1].bytes, kGranule);
  // Both ends of a session race.
  broker_->ProcessGone(other.id);
  broker_->SocketClosed(other.id);
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(BrokerAuditTest, FailedHandoverIsNoGrant) {
  const auto session = Open("a");
  Take();
  EXPECT_FALSE(Acquire(session, {.bytes = 1}, absl::UnavailableError("gone")).ok());
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(BrokerAuditTest, OpenedMemoryIsChargedToItsOwner) {
  const auto owner = Open("a"), opener = Open("b");
  const std::vector<LeaseId> leases = Granules(owner, 1);
  const Secret ticket = *broker_->Share(CallOf(owner), leases[0], TicketScope::kAny);
  Take();
  ASSERT_TRUE(broker_
                  ->Open(CallOf(opener), {ticket}, false, 0,
                         [](const Broker::Handover&) { return absl::OkStatus(); })
                  .ok());
  const AuditRecord granted = TakeOne();
  EXPECT_EQ(granted.call, "open");
  EXPECT_EQ(granted.tenant, "b");
  EXPECT_EQ(granted.owner, "a");
}

TEST_F(BrokerAuditTest, ATicketThatIsForOthersIsRefused) {
  const auto owner = Open("a"), thief = Open("b");
  const Secret ticket = *broker_->Share(CallOf(owner), Granules(owner, 1)[0], TicketScope::kTenant);
  Take();
  EXPECT_FALSE(broker_
                   ->Open(CallOf(thief), {ticket}, false, 0,
                          [](const Broker::Handover&) { return absl::OkStatus(); })
                   .ok());
  const AuditRecord refused = TakeOne();
  EXPECT_EQ(refused.event, AuditEvent::kRefused);
  EXPECT_EQ(refused.tenant, "b");
  EXPECT_EQ(refused.call, "open");
}

TEST_F(BrokerAuditTest, EveryDenialThatIsCountedIsRecordedOnce) {
  Quota quota{.limit_bytes = 4 * kGranule, .max_sessions = 2, .max_in_flight = 1};
  quota.max_publications = 0;
  broker_->operators().Configure({{"a", quota}}, {});
  const auto session = Open("a");
  Open("a");
  Take();
  const auto denied = [this](const std::string& call, const std::string& cause) {
    AuditRecord record = TakeOne();
    EXPECT_EQ(record.event, AuditEvent::kDenied);
    EXPECT_EQ(record.tenant, "a");
    EXPECT_EQ(record.call, call);
    EXPECT_EQ(record.cause, cause);
    return record;
  };
  EXPECT_FALSE(TryOpen("a").ok());
  EXPECT_EQ(denied("connect", "max-sessions").pid, pids_);

  EXPECT_FALSE(Acquire(session, {.bytes = 5 * kGranule}).ok());
  const AuditRecord limit = denied("acquire", "device-limit");
  EXPECT_EQ(limit.asked, 5 * kGranule);
  EXPECT_EQ(limit.used, 0u);
  EXPECT_EQ(limit.limit, 4 * kGranule);
  EXPECT_EQ(limit.device, uuid_);
  EXPECT_EQ(limit.session, session.id);

  const std::vector<LeaseId> leases = Granules(session, 4);
  Take();
  // It waits in vain for memory that others hold.
  auto waiting = std::make_shared<Broker::Acquisition>();
  waiting->session = session.id;
  waiting->spec = {.bytes = kGranule, .waits = true};
  waiting->wait_until = now_;
  waiting->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
  absl::Notification resumed;
  waiting->resume = [&] { resumed.Notify(); };
  {
    const Broker::Call call = CallOf(session);
    EXPECT_EQ(broker_->Advance(waiting, true).state, Broker::Progress::State::kWaits);
    ASSERT_TRUE(resumed.WaitForNotificationWithTimeout(kLong));
    EXPECT_FALSE(broker_->Advance(waiting, true).leases.ok());
  }
  denied("acquire", "device-limit");
  {
    const Broker::Call call = CallOf(session);
    EXPECT_FALSE(broker_->Authenticate(TokenOf(session)).ok());
  }
  denied("call", "max-in-flight");
  EXPECT_FALSE(broker_->Publish(CallOf(session), {.name = "p", .leases = leases}, "").ok());
  denied("publish", "max-publications");
  EXPECT_EQ(broker_->views().GetTenant("a")->denials, 5u);
  // A senseless request is an error, not a denial.
  EXPECT_FALSE(Acquire(session, {.bytes = 0}).ok());
  EXPECT_THAT(Take(), IsEmpty());
  // Nor is a session that comes while the daemon drains.
  broker_->operators().SetDraining(true);
  EXPECT_FALSE(TryOpen("b").ok());
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(BrokerAuditTest, AGrantThatIsGivenUpIsReleased) {
  const auto session = Open("a");
  Take();
  auto acquisition = std::make_shared<Broker::Acquisition>();
  acquisition->session = session.id;
  acquisition->spec = {.bytes = kGranule};
  acquisition->deliver = [&](const Broker::Handover&, bool) {
    broker_->GiveUp(acquisition);
    return absl::OkStatus();
  };
  const Broker::Call call = CallOf(session);
  EXPECT_FALSE(broker_->Advance(acquisition, true).leases.ok());
  acquisition->deliver = nullptr;
  EXPECT_THAT(TakeNames(), ElementsAre("granted", "released"));
}

TEST_F(BrokerAuditTest, PublicationsAndHowTheyEnd) {
  const auto session = Open("a"), reader = Open("a");
  const std::vector<LeaseId> leases = Granules(session, 2);
  Take();
  ASSERT_TRUE(broker_->Publish(CallOf(session), {.name = "p", .leases = leases}, "").ok());
  const AuditRecord published = TakeOne();
  EXPECT_EQ(published.event, AuditEvent::kPublished);
  EXPECT_EQ(published.publication, "a/p");
  EXPECT_EQ(published.version, 1u);
  EXPECT_EQ(published.bytes, 2 * kGranule);
  EXPECT_EQ(published.session, session.id);

  auto attachment = std::make_shared<Broker::Attachment>();
  attachment->session = reader.id;
  attachment->spec = {.name = "p"};
  attachment->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
  {
    const Broker::Call call = CallOf(reader);
    ASSERT_TRUE(broker_->Advance(attachment, true).attached.ok());
  }
  const AuditRecord attached = TakeOne();
  EXPECT_EQ(attached.call, "attach");
  EXPECT_EQ(attached.publication, "a/p");
  EXPECT_EQ(attached.version, 1u);
  EXPECT_EQ(attached.count, 2u);

  ASSERT_TRUE(broker_->Publish(CallOf(session), {.name = "p", .leases = leases}, "").ok());
  std::vector<AuditRecord> records = Take();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].event, AuditEvent::kPublicationEnded);
  EXPECT_EQ(records[0].version, 1u);
  EXPECT_THAT(records[0].why, HasSubstr("another version"));
  EXPECT_EQ(records[1].event, AuditEvent::kPublished);
  EXPECT_EQ(records[1].version, 2u);

  const std::vector<AuditOperator> operators = {{.uid = 7, .pid = 8}};
  ASSERT_TRUE(broker_->operators().Unpublish("a/p", operators).ok());
  const AuditRecord unpublished = TakeOne();
  EXPECT_EQ(unpublished.event, AuditEvent::kPublicationEnded);
  EXPECT_THAT(unpublished.by, ElementsAre(AuditOperator{.uid = 7, .pid = 8}));

  ASSERT_TRUE(
      broker_->Publish(CallOf(session), {.name = "e", .leases = leases, .ephemeral = true}, "")
          .ok());
  Take();
  broker_->SocketClosed(session.id);
  records = Take();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].event, AuditEvent::kPublicationEnded);
  EXPECT_THAT(records[1].why, HasSubstr("session has ended"));
}

TEST_F(BrokerAuditTest, MemoryThatIsTakenBackAndGivenUp) {
  broker_->operators().Configure({{"high", {.priority = 1}}}, {});
  const auto low = Open("low"), high = Open("high");
  const std::vector<LeaseId> leases = Granules(low, kCapacity, /*revocable=*/true);
  Take();
  auto waiting = std::make_shared<Broker::Acquisition>();
  waiting->session = high.id;
  waiting->spec = {.bytes = kGranule};
  waiting->release_deadline = waiting->wait_until = absl::InfiniteFuture();
  waiting->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
  absl::Notification resumed;
  waiting->resume = [&] { resumed.Notify(); };
  const Broker::Call call = CallOf(high);
  ASSERT_EQ(broker_->Advance(waiting, true).state, Broker::Progress::State::kWaits);
  const AuditRecord revoking = TakeOne();
  EXPECT_EQ(revoking.event, AuditEvent::kRevoking);
  EXPECT_EQ(revoking.tenant, "low");
  EXPECT_EQ(revoking.bytes, kGranule);
  EXPECT_THAT(revoking.holders, ElementsAre(low.id));
  EXPECT_THAT(revoking.why, HasSubstr("tenant high"));

  const Inspector::Revoked revoked = broker_->RevokedLeases(CallOf(low));
  ASSERT_EQ(revoked.leases.size(), 1u);
  ASSERT_TRUE(broker_->Release(CallOf(low), revoked.leases).ok());
  ASSERT_TRUE(resumed.WaitForNotificationWithTimeout(kLong));
  ASSERT_TRUE(broker_->Advance(waiting, true).leases.ok());
  std::vector<AuditRecord> records = Take();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].event, AuditEvent::kReleased);
  EXPECT_EQ(records[1].event, AuditEvent::kRevoked);
  EXPECT_THAT(records[1].segments, ElementsAre(revoking.segments[0]));
  EXPECT_THAT(records[1].why, HasSubstr("released it"));
  EXPECT_EQ(records[2].event, AuditEvent::kGranted);
  EXPECT_EQ(records[2].tenant, "high");
}

}  // namespace audit_test
}  // namespace gpumemd
