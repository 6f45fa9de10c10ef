// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/exchange.h"

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/core/audit/audit.h"
#include "daemon/core/ledger/testing/fixture.h"
#include "daemon/core/suspension/testing/fixture.h"

namespace gpumemd {
namespace exchange_test {

using absl::StatusCode;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr size_t kPinnedIndex = 3;

// Two GPUs, a tier, and host memory of both kinds.
class ExchangesTest : public SuspensionsFixture {
 protected:
  ExchangesTest()
      : SuspensionsFixture({}, {{.uuid = "PINNED-0",
                                 .capacity_bytes = 8 * kGranule,
                                 .granularity_bytes = kGranule,
                                 .kinds = {Kind::kPinned, Kind::kHost}}}) {}

  Operation::Item AcquireHost(SessionId session, uint64_t bytes = kGranule) {
    auto operation = Ask(session, {.bytes = bytes, .kind = Kind::kHost});
    EXPECT_TRUE(Granted(operation)) << operation.status();
    Finish(**operation);
    const Operation::Item item = (*operation)->items.at(0);
    contents[item.segment] = expected[item.lease] = ++numbers;
    return item;
  }
  Exchanges::Pair PairOf(LeaseId lease, LeaseId other) {
    return {lease, other, SegmentOf(lease), SegmentOf(other)};
  }
  // Copies, and exchanges.
  absl::Status Exchange(SessionId session, LeaseId lease, LeaseId other) {
    const Exchanges::Pair pair = PairOf(lease, other);
    contents[pair.other_segment] = contents.at(pair.segment);
    expected[other] = contents.at(pair.segment);
    absl::Status done = ledger.exchanges().Exchange(session, {pair}, /*check_only=*/false);
    // The program writes to the memory that its lease names now: the other one is stale.
    if (done.ok()) contents[pair.other_segment] = expected[lease] = ++numbers;
    return done;
  }
  StatusCode CodeOf(SessionId session, const Exchanges::Pair& pair) {
    const absl::Status checked = ledger.exchanges().Exchange(session, {pair}, true);
    EXPECT_EQ(ledger.exchanges().Exchange(session, {pair}, false), checked);
    return checked.code();
  }
};

TEST_F(ExchangesTest, DemotionAndPromotionKeepTheLease) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule, "GPU-2").lease;
  const Secret ticket = *ledger.leases().Share(session, lease, TicketScope::kTenant, Secret{7});
  const SegmentId device = SegmentOf(lease);
  const LeaseId spare = AcquireHost(session).lease;
  const SegmentId host = SegmentOf(spare);
  const uint64_t leased = ledger.state().sessions.at(session)->leased_bytes;

  ASSERT_TRUE(Exchange(session, lease, spare).ok());
  EXPECT_EQ(SegmentOf(lease), host);
  EXPECT_EQ(SegmentOf(spare), device);
  EXPECT_EQ(Segment(host).home_uuid, "GPU-2");
  EXPECT_EQ(Segment(device).home_uuid, "");
  EXPECT_EQ(ledger.state().leases.at(lease).tag, "t");
  EXPECT_EQ(ledger.state().leases.at(lease).tickets[0], ticket);
  EXPECT_EQ(ledger.state().sessions.at(session)->leased_bytes, leased);
  ExpectContents();
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();

  // The device's memory goes with the other lease, to the tenant's next request there.
  ASSERT_TRUE(ledger.leases().Release(session, {spare}).ok());
  EXPECT_EQ(Usage("team", 1).leased, 0u);
  EXPECT_EQ(Usage("team", kPinnedIndex).leased, kGranule);
  // The ticket opens what the lease has.
  auto opened = ledger.operations().BeginOpen(other, {ticket}, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->items.at(0).segment, host);
  EXPECT_EQ(CodeOf(session, {lease, spare, host, device}), StatusCode::kNotFound);
  ledger.operations().Abort(*opened, /*handed_over=*/false);

  const LeaseId back = AcquireFilled(session, kGranule, "GPU-2").lease;
  ASSERT_TRUE(Exchange(session, lease, back).ok());
  EXPECT_EQ(SegmentOf(back), host);
  EXPECT_EQ(Segment(host).home_uuid, "");
  EXPECT_EQ(ledger.state().segments.at(SegmentOf(lease))->device, 1u);
  ASSERT_TRUE(ledger.leases().Release(session, {back}).ok());
  ExpectContents();
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
}

TEST_F(ExchangesTest, ARepeatedCallIsNoError) {
  const SessionId session = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule).lease, spare = AcquireHost(session).lease;
  const Exchanges::Pair pair = PairOf(lease, spare);
  ASSERT_TRUE(ledger.exchanges().Exchange(session, {pair}, true).ok());
  EXPECT_EQ(SegmentOf(lease), pair.segment) << "it only checked";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(CodeOf(session, pair), StatusCode::kOk);
    EXPECT_EQ(SegmentOf(lease), pair.other_segment);
  }
}

TEST_F(ExchangesTest, AllOrNone) {
  const SessionId session = OpenSession("team");
  const LeaseId first = AcquireFilled(session, kGranule).lease, spare = AcquireHost(session).lease;
  const LeaseId large = AcquireFilled(session, 2 * kGranule).lease,
                small = AcquireHost(session).lease;
  const std::vector<Exchanges::Pair> pairs = {PairOf(first, spare), PairOf(large, small)};
  EXPECT_EQ(ledger.exchanges().Exchange(session, pairs, false).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(SegmentOf(first), pairs[0].segment);
}

TEST_F(ExchangesTest, ListsAreBounded) {
  const SessionId session = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule).lease, spare = AcquireHost(session).lease;
  const Exchanges::Pair pair = PairOf(lease, spare);
  Exchanges& exchanges = ledger.exchanges();
  EXPECT_EQ(exchanges.Exchange(session, {}, true).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(exchanges.Exchange(session, {pair, pair}, true).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(session, {lease, lease, pair.segment, pair.segment}),
            StatusCode::kInvalidArgument);
  const std::vector<Exchanges::Pair> many(kMaxSegmentsPerCall + 1, pair);
  EXPECT_EQ(exchanges.Exchange(session, many, true).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(OpenSession("team"), pair), StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(SessionId{99}, pair), StatusCode::kAborted);
  // Another segment than the client believes.
  EXPECT_EQ(CodeOf(session, {lease, spare, pair.segment, pair.segment}),
            StatusCode::kFailedPrecondition);
}

TEST_F(ExchangesTest, OtherUsersAreRefused) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule).lease, spare = AcquireHost(session).lease;
  const Secret ticket = *ledger.leases().Share(session, lease, TicketScope::kTenant, Secret{7});
  const Exchanges::Pair pair = PairOf(lease, spare);
  auto opened = ledger.operations().BeginOpen(other, {ticket}, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(CodeOf(session, pair), StatusCode::kFailedPrecondition) << "in flight";
  Finish(*opened);
  EXPECT_EQ(CodeOf(session, pair), StatusCode::kFailedPrecondition) << "leased";
  const LeaseId theirs = opened->items.at(0).lease;
  SetQuota("team", {.release = ReleasePolicy::kOnExit});
  ASSERT_TRUE(ledger.leases().Release(other, {theirs}).ok());
  EXPECT_EQ(CodeOf(session, pair), StatusCode::kFailedPrecondition) << "may be mapped";
  ledger.endings().ProcessGone(other);
  EXPECT_EQ(CodeOf(session, pair), StatusCode::kOk);
}

TEST_F(ExchangesTest, WhatCannotBeExchanged) {
  const SessionId session = OpenSession("team"), borrower = OpenSession("team");
  const LeaseId spare = AcquireHost(session).lease, second = AcquireHost(session).lease;
  const LeaseId scratch = AcquireFilled(session, kGranule, "GPU-1", /*scratch=*/true).lease;
  EXPECT_EQ(CodeOf(session, PairOf(scratch, spare)), StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(session, PairOf(second, spare)), StatusCode::kUnimplemented);
  const LeaseId device = AcquireFilled(session, kGranule).lease,
                another = AcquireFilled(session, kGranule).lease;
  EXPECT_EQ(CodeOf(session, PairOf(device, another)), StatusCode::kUnimplemented);
  auto pinned = Ask(session, {.bytes = kGranule, .kind = Kind::kPinned});
  ASSERT_TRUE(Granted(pinned));
  Finish(**pinned);
  EXPECT_EQ(CodeOf(session, PairOf((*pinned)->items.at(0).lease, spare)),
            StatusCode::kUnimplemented);

  const LeaseId lost = AcquireFilled(session, kGranule).lease;
  ledger.segments().MarkLost({SegmentOf(lost)});
  EXPECT_EQ(CodeOf(session, PairOf(lost, spare)), StatusCode::kFailedPrecondition);

  auto published = ledger.publications().Publish(session, {.name = "w", .leases = {another}});
  ASSERT_TRUE(published.ok());
  published_numbers[published->id] = {expected.at(another)};
  EXPECT_EQ(CodeOf(session, PairOf(another, spare)), StatusCode::kFailedPrecondition);

  auto begun = ledger.suspensions().Begin(session, {device}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(CodeOf(session, PairOf(device, spare)), StatusCode::kUnavailable);
  Carry(*begun);
  EXPECT_EQ(CodeOf(session, PairOf(device, spare)), StatusCode::kFailedPrecondition);

  std::optional<LeaseId> of[2];
  for (Kind kind : {Kind::kVmm, Kind::kHost}) {
    auto borrowed = Ask(borrower, {.bytes = kGranule, .kind = kind, .revocable = true});
    ASSERT_TRUE(Granted(borrowed)) << borrowed.status();
    Finish(**borrowed);
    of[kind == Kind::kHost] = (*borrowed)->items.at(0).lease;
  }
  EXPECT_EQ(CodeOf(borrower, PairOf(*of[0], *of[1])), StatusCode::kFailedPrecondition);
}

TEST_F(ExchangesTest, ADemotedLeaseIsPromotedBeforeItIsSuspended) {
  const SessionId session = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule).lease, spare = AcquireHost(session).lease;
  ASSERT_TRUE(Exchange(session, lease, spare).ok());
  const absl::Status refused = ledger.suspensions().Begin(session, {lease}, 0).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()), testing::EndsWith("promote it first"));
}

TEST_F(ExchangesTest, ReleasedHostMemoryForgetsItsHome) {
  const SessionId session = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule).lease, spare = AcquireHost(session).lease;
  const SegmentId host = SegmentOf(spare);
  ASSERT_TRUE(Exchange(session, lease, spare).ok());
  ASSERT_TRUE(ledger.leases().Release(session, {lease}).ok());
  const Operation::Item next = AcquireHost(session);
  EXPECT_EQ(next.segment, host) << "reused";
  EXPECT_EQ(Segment(host).home_uuid, "");
}

TEST_F(ExchangesTest, EventsFollowTheirLeases) {
  const SessionId session = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule).lease, spare = AcquireHost(session).lease;
  IpcEvents events;
  const IpcEventId of_lease =
      *events.Add({.session = session, .lease = lease, .segment = SegmentOf(lease)});
  const IpcEventId of_spare =
      *events.Add({.session = session, .lease = spare, .segment = SegmentOf(spare)});
  events.Swap(SegmentOf(lease), SegmentOf(spare));
  ASSERT_EQ(events.FindBySegment(SegmentOf(spare)).size(), 1u);
  EXPECT_EQ(events.FindBySegment(SegmentOf(spare)).front().first, of_lease);
  EXPECT_EQ(events.FindBySegment(SegmentOf(lease)).front().first, of_spare);
  events.LeaseEnded(spare);
  EXPECT_THAT(events.FindBySegment(SegmentOf(lease)), IsEmpty());
  events.Swap(SegmentOf(lease), SegmentOf(spare));
  EXPECT_EQ(events.FindBySegment(SegmentOf(lease)).size(), 1u);
}

class Sink : public AuditSink {
 public:
  void Record(AuditRecord record) override { records.push_back(std::move(record)); }
  std::vector<AuditRecord> records;
};

TEST_F(ExchangesTest, IsAudited) {
  const SessionId session = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule).lease, spare = AcquireHost(session).lease;
  Sink sink;
  ledger.SetAudit(&sink);
  ASSERT_TRUE(ledger.exchanges().Exchange(session, {PairOf(lease, spare)}, true).ok());
  EXPECT_THAT(sink.records, IsEmpty());
  ASSERT_TRUE(Exchange(session, lease, spare).ok());
  ASSERT_TRUE(Exchange(session, lease, spare).ok());
  ledger.SetAudit(nullptr);
  ASSERT_EQ(sink.records.size(), 2u);
  const AuditEvent wanted[] = {AuditEvent::kDemoted, AuditEvent::kPromoted};
  for (int i = 0; i < 2; ++i) {
    const AuditRecord& record = sink.records[i];
    EXPECT_EQ(record.event, wanted[i]);
    EXPECT_EQ(record.device, "GPU-1");
    EXPECT_EQ(record.bytes, kGranule);
    EXPECT_THAT(record.leases, ElementsAre(lease));
    EXPECT_FALSE(record.resident.has_value());
  }
}

TEST_F(ExchangesTest, ANewDaemonKnowsWhatIsDemoted) {
  const SessionId session = OpenSession("team");
  const LeaseId lease = AcquireFilled(session, kGranule, "GPU-2").lease,
                spare = AcquireHost(session).lease;
  const Exchanges::Pair pair = PairOf(lease, spare);
  ASSERT_TRUE(Exchange(session, lease, spare).ok());
  Restart();
  EXPECT_EQ(SegmentOf(lease), pair.other_segment);
  EXPECT_EQ(SegmentOf(spare), pair.segment);
  EXPECT_EQ(Segment(pair.other_segment).home_uuid, "GPU-2");
  EXPECT_TRUE(ledger.exchanges().Exchange(session, {pair}, false).ok()) << "its answer was lost";
  ASSERT_TRUE(Exchange(session, lease, spare).ok());
  Restart();
  EXPECT_EQ(SegmentOf(lease), pair.segment);
  EXPECT_EQ(Segment(pair.other_segment).home_uuid, "");
  ExpectContents();
}

TEST_F(ExchangesTest, WithoutItsDeviceDemotedMemoryIsKeptAndSuspendedMemoryIsLost) {
  const SessionId session = OpenSession("team");
  const LeaseId demoted = AcquireFilled(session, kGranule, "GPU-2").lease,
                spare = AcquireHost(session).lease,
                suspended = AcquireFilled(session, kGranule, "GPU-2").lease;
  ASSERT_TRUE(Exchange(session, demoted, spare).ok());
  ASSERT_TRUE(ledger.leases().Release(session, {spare}).ok());
  EXPECT_EQ(Suspend(session, {suspended}), kGranule);
  const JournalImage left = ledger.Image();
  Survivors survivors;
  survivors.sessions[session].peer.pid = pids;
  for (const auto& [id, segment] : left.segments) survivors.memory.insert(id);
  std::vector<DeviceInfo> devices = ledger.state().devices;
  std::erase_if(devices, [](const DeviceInfo& info) { return info.uuid == "GPU-2"; });
  Ledger next(devices, Bounds{}, [this] { return now; });
  const Restored restored = next.Restore(left, survivors);
  EXPECT_EQ(next.CheckInvariants(), absl::OkStatus());
  ASSERT_EQ(restored.lost.size(), 1u);
  EXPECT_EQ(restored.lost[0].segment, SegmentOf(suspended));
  EXPECT_EQ(next.state().leases.Find(suspended), nullptr);
  ASSERT_NE(next.state().leases.Find(demoted), nullptr);
  EXPECT_FALSE(next.state().segments.at(SegmentOf(demoted))->demoted()) << "it has no other home";
}

// Random demotions, promotions, suspensions, releases and restarts: each lease keeps its bytes.
TEST_F(ExchangesTest, RandomStepsKeepTheContents) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return random() % n; };
    const SessionId session = OpenSession("team"), other = OpenSession("other");
    std::vector<LeaseId> leases;
    for (int step = 0; step < 60; ++step) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", step " << step);
      DestroyDoomed();
      std::erase_if(leases, [&](LeaseId id) { return ledger.state().leases.Find(id) == nullptr; });
      const size_t choice = below(10);
      if (leases.size() < 2 || choice < 2) {
        if (leases.size() < 5) {
          leases.push_back(
              AcquireFilled(session, kGranule, below(2) == 0 ? "GPU-1" : "GPU-2").lease);
        }
      } else if (choice < 7) {
        const LeaseId lease = leases[below(leases.size())];
        const records::Segment& segment = *ledger.state().segments.at(SegmentOf(lease));
        if (ledger.state().leases.at(lease).suspended) continue;
        const LeaseId spare = segment.kind == Kind::kVmm ? AcquireHost(session).lease
                                                         : AcquireFilled(session, kGranule).lease;
        EXPECT_EQ(CodeOf(other, PairOf(lease, spare)), StatusCode::kNotFound);
        EXPECT_TRUE(Exchange(session, lease, spare).ok());
        if (below(8) == 0) Restart();
        EXPECT_TRUE(ledger.leases().Release(session, {spare}).ok());
      } else if (choice == 7) {
        const LeaseId lease = leases[below(leases.size())];
        const Kind kind = ledger.state().segments.at(SegmentOf(lease))->kind;
        if (kind == Kind::kVmm) Suspend(session, {lease});
        if (kind == Kind::kTier) Resume(session, {lease});
      } else if (choice == 8) {
        EXPECT_TRUE(ledger.leases().Release(session, {leases[below(leases.size())]}).ok());
      } else {
        Restart();
      }
      ExpectContents();
      ASSERT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    }
    ledger.endings().ProcessGone(session);
    ledger.endings().ProcessGone(other);
    DestroyDoomed();
  }
}

}  // namespace exchange_test
}  // namespace gpumemd
