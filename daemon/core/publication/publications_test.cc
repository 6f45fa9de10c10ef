// Publications: which sessions hold which segments for how long, which versions exist, and which
// tenants may see them.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LedgerPublicationsTest : public LedgerFixture {
 protected:
  explicit LedgerPublicationsTest(Bounds bounds = {}) : LedgerFixture(bounds) {}

  static std::vector<LeaseId> LeasesOf(const std::vector<Operation::Item>& items) {
    std::vector<LeaseId> leases;
    for (const Operation::Item& item : items) leases.push_back(item.lease);
    return leases;
  }
  static std::vector<SegmentId> SegmentsOf(const std::vector<Operation::Item>& items) {
    std::vector<SegmentId> segments;
    for (const Operation::Item& item : items) segments.push_back(item.segment);
    return segments;
  }
  // Returns the version.
  uint64_t Publish(SessionId session, PublishSpec spec) {
    auto published = ledger.Publish(session, spec);
    EXPECT_TRUE(published.ok()) << published.status();
    return published.ok() ? published->version : 0;
  }
  uint64_t Publish(SessionId session, const std::string& name,
                   const std::vector<Operation::Item>& items) {
    return Publish(session, {.name = name, .leases = LeasesOf(items)});
  }
  // Attaches and commits. Returns the leases.
  std::vector<Operation::Item> Attach(SessionId session, const std::string& name) {
    auto admission = ledger.BeginAttach(session, {.name = name});
    EXPECT_TRUE(admission.ok()) << admission.status();
    if (!admission.ok() || !admission->operation) return {};
    EXPECT_TRUE(ledger.Commit(*admission->operation).ok());
    return admission->operation->items;
  }
  WaiterId Wait(SessionId session, const std::string& name, uint64_t version) {
    EXPECT_TRUE(ledger.BeginCall(session).ok());
    auto admission = ledger.BeginAttach(session, {.name = name, .version = version});
    EXPECT_TRUE(admission.ok() && admission->waiter) << admission.status();
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  }
  void ProcessEnds(SessionId session) {
    ledger.SocketClosed(session);
    ledger.ProcessGone(session);
  }
};

TEST_F(LedgerPublicationsTest, OutlivesItsPublisherAndIsChargedOnce) {
  const SessionId trainer = OpenSession("ml");
  const auto weights = Acquire(trainer, kGranule, 3);
  EXPECT_EQ(Publish(trainer, "weights", weights), 1u);
  EXPECT_EQ(Usage("ml").leased, 3 * kGranule);
  ProcessEnds(trainer);
  EXPECT_EQ(Usage("ml").leased, 3 * kGranule);
  EXPECT_THAT(DestroyDoomed(), IsEmpty());

  const SessionId server = OpenSession("ml");
  const auto attached = Attach(server, "weights");
  EXPECT_EQ(SegmentsOf(attached), SegmentsOf(weights));
  EXPECT_EQ(Usage("ml").charged, 3 * kGranule);
  ASSERT_TRUE(ledger.Unpublish(server, "weights").ok());
  EXPECT_EQ(Usage("ml").leased, 3 * kGranule);  // the attacher's leases keep it
  ProcessEnds(server);
  EXPECT_THAT(DestroyDoomed(), SizeIs(3));
  EXPECT_EQ(ledger.state().charged(0), 0u);
}

TEST_F(LedgerPublicationsTest, ListsWhoHoldsASegment) {
  const SessionId trainer = OpenSession("ml");
  const auto weights = Acquire(trainer, kGranule, 2);
  Publish(trainer, "weights", weights);
  Share(trainer, weights[1].lease);
  Share(trainer, weights[1].lease, TicketScope::kAny);
  const SessionId server = OpenSession("ml");
  const auto attached = Attach(server, "weights");

  const HoldersView all = ledger.look().ListHolders(std::nullopt);
  ASSERT_THAT(all.leases, SizeIs(4));
  EXPECT_EQ(all.leases[0].id, weights[0].lease);
  EXPECT_EQ(all.leases[0].segment, weights[0].segment);
  EXPECT_EQ(all.leases[0].session, trainer);
  EXPECT_EQ(all.leases[0].tenant, "ml");
  EXPECT_FALSE(all.leases[0].attached);
  EXPECT_FALSE(all.leases[0].shared);
  EXPECT_TRUE(all.leases[1].shared);
  EXPECT_TRUE(all.leases[1].shared_to_any);
  EXPECT_EQ(all.leases[2].id, attached[0].lease);
  EXPECT_EQ(all.leases[2].session, server);
  EXPECT_TRUE(all.leases[2].attached);
  EXPECT_EQ(all.leases[2].publication, "ml/weights");
  EXPECT_EQ(all.leases[2].version, 1u);
  ASSERT_THAT(all.publications, SizeIs(1));
  EXPECT_EQ(all.publications[0].name, "weights");
  EXPECT_EQ(all.publications[0].segments, SegmentsOf(weights));

  const HoldersView second = ledger.look().ListHolders(weights[1].segment);
  ASSERT_THAT(second.leases, SizeIs(2));
  EXPECT_EQ(second.leases[1].id, attached[1].lease);
  EXPECT_THAT(second.publications, SizeIs(1));
  EXPECT_THAT(ledger.look().ListHolders(SegmentId{4711}).leases, IsEmpty());
  EXPECT_THAT(ledger.look().ListHolders(SegmentId{4711}).publications, IsEmpty());

  // The publication that the lease was attached through has ended and cannot be named.
  ASSERT_TRUE(ledger.Unpublish(trainer, "weights").ok());
  const HoldersView after = ledger.look().ListHolders(weights[0].segment);
  EXPECT_TRUE(after.leases.at(1).attached);
  EXPECT_EQ(after.leases.at(1).publication, "");
  EXPECT_THAT(after.publications, IsEmpty());
}

TEST_F(LedgerPublicationsTest, IsNeitherReusedNorTrimmed) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  Publish(session, "a", items);
  Release(session, items);
  EXPECT_TRUE(ledger.Trim("", "", 0)->empty());
  EXPECT_NE(AcquireOne(session, kGranule).segment, items[0].segment);
  ledger.SetDraining(true);
  EXPECT_THAT(DestroyDoomed(), IsEmpty());
  ledger.SetDraining(false);
  ASSERT_TRUE(ledger.Unpublish(session, "a").ok());
  EXPECT_EQ(AcquireOne(session, kGranule).segment, items[0].segment);  // now it is
}

TEST_F(LedgerPublicationsTest, WhatOthersHadOpenIsNotReused) {
  const SessionId owner = OpenSession("ml"), other = OpenSession("web");
  const auto items = Acquire(owner, kGranule);
  Publish(owner, {.name = "a", .leases = LeasesOf(items), .to_any = true});
  Release(other, Attach(other, "ml/a"));
  Release(owner, items);
  ASSERT_TRUE(ledger.Unpublish(owner, "a").ok());
  EXPECT_THAT(DestroyDoomed(), ElementsAre(items[0].segment));
}

TEST_F(LedgerPublicationsTest, ANewVersionTakesThePlaceOfTheOneBefore) {
  const SessionId trainer = OpenSession("ml"), second = OpenSession("ml");
  const SessionId early = OpenSession("ml"), late = OpenSession("ml");
  const auto one = Acquire(trainer, kGranule, 2);
  Publish(trainer, "w", one);
  Release(trainer, one);
  const auto kept = Attach(early, "w");
  const auto two = Acquire(second, kGranule, 1);
  EXPECT_EQ(Publish(second, "w", two), 2u);  // another session of the tenant's
  EXPECT_EQ(SegmentsOf(Attach(late, "w")), SegmentsOf(two));
  EXPECT_EQ(SegmentsOf(kept), SegmentsOf(one));
  EXPECT_THAT(ledger.TakeEndedPublications(), SizeIs(1));
  EXPECT_EQ(Usage("ml").leased, 3 * kGranule);
  Release(early, kept);
  EXPECT_EQ(Usage("ml").leased, kGranule);
  EXPECT_EQ(Usage("ml").retained, 2 * kGranule);
}

TEST_F(LedgerPublicationsTest, VersionsShareSegmentsThatStayTheSame) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule, 2);
  Publish(session, "w", items);
  Publish(session, "w", {items[1]});
  Release(session, items);
  const auto views = *ledger.look().ListPublications("ml");
  ASSERT_THAT(views, SizeIs(1));
  EXPECT_EQ(views[0].version, 2u);
  EXPECT_EQ(views[0].bytes, kGranule);
  EXPECT_EQ(Usage("ml").leased, kGranule);
}

TEST_F(LedgerPublicationsTest, VersionsGoOnAfterTheNameWasUnpublished) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  Publish(session, "w", items);
  Publish(session, "w", items);
  EXPECT_EQ(*ledger.Unpublish(session, "w"), 2u);
  EXPECT_EQ(Publish(session, "w", items), 3u);
}

// The last version of each name is not remembered for so many names, or for tenants that are gone.
// Publications of others do not show.
TEST_F(LedgerPublicationsTest, VersionsGrowThoughTheNameWasForgotten) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  for (int i = 0; i < 5; ++i) Publish(session, "first", items);
  EXPECT_EQ(*ledger.Unpublish(session, "first"), 5u);
  EXPECT_EQ(Publish(session, "unheard-of", items), 1u);
  for (int i = 0; i < 256; ++i) {
    const std::string name = absl::StrCat("name-", i);
    EXPECT_EQ(Publish(session, name, items), 1u);
    ledger.Unpublish(session, name).IgnoreError();
  }
  EXPECT_EQ(Publish(session, "first", items), 6u);
  // It is not known which names were forgotten.
  EXPECT_EQ(Publish(session, "unheard-of-too", items), 6u);
  EXPECT_EQ(Publish(session, "name-200", items), 2u);

  const SessionId other = OpenSession("nobody");
  const auto others = Acquire(other, kGranule);
  for (uint64_t version = 1; version <= 8; ++version) {
    EXPECT_EQ(Publish(other, "w", others), version);
  }
  EXPECT_EQ(*ledger.Unpublish(other, "w"), 8u);
  ledger.ProcessGone(other);
  ASSERT_TRUE(ledger.Trim("nobody", "", 0).ok());
  for (SegmentId doomed : ledger.TakeDoomed()) ledger.Destroyed(doomed);
  const SessionId again = OpenSession("nobody");
  EXPECT_EQ(Publish(again, "w", Acquire(again, kGranule)), 9u);
  EXPECT_EQ(Publish(session, "unheard-of-either", items), 6u);
  const SessionId fresh = OpenSession("fresh");
  EXPECT_EQ(Publish(fresh, "w", Acquire(fresh, kGranule)), 1u);
}

TEST_F(LedgerPublicationsTest, ARetryMakesNoSecondVersion) {
  const SessionId session = OpenSession("ml"), other = OpenSession("ml");
  const auto items = Acquire(session, kGranule), others = Acquire(other, kGranule);
  const PublishSpec spec = {.name = "w", .leases = LeasesOf(items), .request = 7};
  EXPECT_EQ(Publish(session, spec), 1u);
  EXPECT_EQ(Publish(other, {.name = "w", .leases = LeasesOf(others), .request = 7}), 2u);
  const auto again = ledger.Publish(session, spec);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->again);
  EXPECT_EQ(again->version, 1u);
  EXPECT_EQ(ledger.look().ListPublications("")->at(0).version, 2u);
}

TEST_F(LedgerPublicationsTest, EphemeralEndsWithItsPublishersSession) {
  const SessionId publisher = OpenSession("ml"), reader = OpenSession("ml");
  const auto items = Acquire(publisher, kGranule);
  Publish(publisher, {.name = "w", .leases = LeasesOf(items), .ephemeral = true});
  const auto attached = Attach(reader, "w");
  ledger.SocketClosed(publisher);
  EXPECT_THAT(*ledger.look().ListPublications(""), IsEmpty());
  EXPECT_EQ(Usage("ml").leased, kGranule);  // the reader still has it
  Release(reader, attached);
  EXPECT_EQ(Usage("ml").lingering, kGranule);  // the publisher's process may map it
  ledger.ProcessGone(publisher);
  EXPECT_EQ(Usage("ml").retained, kGranule);
}

TEST_F(LedgerPublicationsTest, ExpiresWhenNobodyHasBeenAttachedForSoLong) {
  const SessionId session = OpenSession("ml"), reader = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  Publish(session, {.name = "w", .leases = LeasesOf(items), .expire_after = absl::Minutes(1)});
  EXPECT_EQ(ledger.NextExpiry(), now + absl::Minutes(1));
  now += absl::Seconds(30);
  const auto attached = Attach(reader, "w");
  EXPECT_EQ(ledger.NextExpiry(), absl::InfiniteFuture());
  now += absl::Hours(1);
  ledger.ExpirePublications();
  ASSERT_THAT(*ledger.look().ListPublications(""), SizeIs(1));
  Release(reader, attached);
  EXPECT_EQ(ledger.NextExpiry(), now + absl::Minutes(1));
  now += absl::Minutes(1) - absl::Nanoseconds(1);
  ledger.ExpirePublications();
  ASSERT_THAT(*ledger.look().ListPublications(""), SizeIs(1));
  now += absl::Nanoseconds(1);
  ledger.ExpirePublications();
  EXPECT_THAT(*ledger.look().ListPublications(""), IsEmpty());
}

TEST_F(LedgerPublicationsTest, AnAttachmentUnderWayKeepsItFromExpiring) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  Publish(session, {.name = "w", .leases = LeasesOf(items), .expire_after = absl::Seconds(1)});
  const auto admission = ledger.BeginAttach(session, {.name = "w"});
  ASSERT_TRUE(admission.ok());
  now += absl::Hours(1);
  ledger.ExpirePublications();
  EXPECT_THAT(*ledger.look().ListPublications(""), SizeIs(1));
  ledger.Abort(*admission->operation, /*handed_over=*/false);
  EXPECT_EQ(ledger.NextExpiry(), now + absl::Seconds(1));
}

TEST_F(LedgerPublicationsTest, OthersCannotTellAForbiddenNameFromAnUnknownOne) {
  const SessionId owner = OpenSession("ml"), other = OpenSession("web");
  Publish(owner, "secret", Acquire(owner, kGranule));
  Publish(owner, {.name = "open", .leases = LeasesOf(Acquire(owner, kGranule)), .to_any = true});
  const auto forbidden = ledger.BeginAttach(other, {.name = "ml/secret"}).status();
  const auto unknown = ledger.BeginAttach(other, {.name = "ml/sacred"}).status();
  EXPECT_EQ(forbidden.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(absl::StrReplaceAll(forbidden.ToString(), {{"secret", "sacred"}}), unknown.ToString());
  EXPECT_EQ(ledger.Unpublish(other, "ml/secret").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ledger.Unpublish(other, "ml/open").status().code(),
            absl::StatusCode::kPermissionDenied);
  // The same applies to waiting.
  EXPECT_TRUE(ledger.BeginCall(other).ok());
  EXPECT_TRUE(ledger.BeginAttach(other, {.name = "ml/secret", .version = 1})->waiter.has_value());
  EXPECT_THAT(*ledger.look().ListAttachable(other, ""), SizeIs(1));
  EXPECT_THAT(*ledger.look().ListAttachable(owner, ""), SizeIs(2));
  EXPECT_THAT(Attach(other, "ml/open"), SizeIs(1));
  EXPECT_EQ(*ledger.Unpublish("ml/secret"), 1u);  // an operator
  ledger.SocketClosed(other);
  ledger.EndCall(other);
}

TEST_F(LedgerPublicationsTest, WhoWaitsForAVersionIsCalledWhenItIsThere) {
  const SessionId publisher = OpenSession("ml"), reader = OpenSession("ml");
  const SessionId foreign = OpenSession("web");
  const auto items = Acquire(publisher, kGranule);
  const WaiterId first = Wait(reader, "w", 1), second = Wait(reader, "w", 2);
  const WaiterId never = Wait(foreign, "ml/w", 1);
  EXPECT_EQ(ledger.look().GetTenant("ml")->waiting, 2u);
  EXPECT_EQ(ledger.look().GetTenant("ml")->in_flight, 0u);
  Publish(publisher, "w", items);
  EXPECT_THAT(ledger.TakeAttachable(), ElementsAre(first));
  EXPECT_EQ(ledger.look().GetTenant("ml")->in_flight, 1u);
  Publish(publisher, "w", items);
  EXPECT_THAT(ledger.TakeAttachable(), ElementsAre(second));
  EXPECT_THAT(ledger.EndAttachWait(never, /*expired=*/true).ToString(),
              HasSubstr("none of that name"));
  const WaiterId third = Wait(reader, "w", 9);
  const absl::Status late = ledger.EndAttachWait(third, /*expired=*/true);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(late.ToString(), HasSubstr("the newest is 2"));
  const WaiterId last = Wait(reader, "w", 9);
  ledger.SocketClosed(reader);
  EXPECT_THAT(ledger.TakeAttachable(), ElementsAre(last));
  EXPECT_EQ(ledger.BeginAttach(reader, {.name = "w"}).status().code(), absl::StatusCode::kAborted);
}

TEST_F(LedgerPublicationsTest, WaitsAreCountedAndEndWhileDraining) {
  SetQuota("ml", {.max_waiting = 1});
  const SessionId session = OpenSession("ml");
  const WaiterId waiter = Wait(session, "w", 1);
  EXPECT_TRUE(ledger.BeginCall(session).ok());
  ExpectDenial(ledger.BeginAttach(session, {.name = "w", .version = 1}).status(),
               Denial::Cause::kMaxWaiting, "ml", "", 1, 1, 1);
  ledger.SetDraining(true);
  EXPECT_THAT(ledger.TakeAttachable(), ElementsAre(waiter));
  EXPECT_EQ(ledger.BeginAttach(session, {.name = "w"}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(LedgerPublicationsTest, NamesAreOfFewCharacters) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  for (const std::string& good : {std::string("a"), std::string(64, 'z'), std::string("A.b_c-9")}) {
    EXPECT_EQ(Publish(session, good, items), 1u) << good;
    EXPECT_THAT(Attach(session, good), SizeIs(1));
    EXPECT_THAT(Attach(session, absl::StrCat("ml/", good)), SizeIs(1));
  }
  for (const std::string& bad : {std::string(), std::string(65, 'z'), std::string("two words"),
                                 std::string("new\nline"), std::string("ä"), std::string("ml/a")}) {
    const auto published = ledger.Publish(session, {.name = bad, .leases = LeasesOf(items)});
    EXPECT_EQ(published.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(published.status().ToString(), HasSubstr("1 to 64 letters"));
  }
  for (const std::string bad : {"", "/a", "ml/", "ml/two words"}) {
    EXPECT_EQ(ledger.BeginAttach(session, {.name = bad}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
  EXPECT_EQ(ledger.Unpublish("a").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LedgerPublicationsTest, RefusesWhatItCouldNotKeep) {
  const SessionId session = OpenSession("ml"), other = OpenSession("web");
  const auto items = Acquire(session, kGranule);
  const auto code_of = [&](SessionId of, const PublishSpec& spec) {
    return ledger.Publish(of, spec).status().code();
  };
  using absl::StatusCode;
  EXPECT_EQ(code_of(session, {.name = "w"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(session, {.name = "w", .leases = {items[0].lease, items[0].lease}}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(other, {.name = "w", .leases = LeasesOf(items)}), StatusCode::kNotFound);
  const auto theirs = OpenTicket(other, Share(session, items[0].lease, TicketScope::kAny));
  EXPECT_EQ(code_of(other, {.name = "w", .leases = {theirs.lease}}),
            StatusCode::kFailedPrecondition);
  PublishSpec large = {.name = "w", .leases = LeasesOf(items), .metadata_bytes = kMaxMetadataBytes};
  EXPECT_EQ(code_of(session, large), StatusCode::kOk);
  ++large.metadata_bytes;
  EXPECT_EQ(code_of(session, large), StatusCode::kInvalidArgument);
  ledger.MarkLost({items[0].segment});
  EXPECT_EQ(code_of(session, {.name = "v", .leases = LeasesOf(items)}),
            StatusCode::kFailedPrecondition);

  const SessionId borrower = OpenSession("ml");
  const auto borrowed = Ask(borrower, {.device_uuid = "GPU-1", .bytes = 1, .revocable = true});
  ASSERT_TRUE(borrowed.ok() && *borrowed);
  ASSERT_TRUE(ledger.Commit(**borrowed).ok());
  const auto refused =
      ledger.Publish(borrower, {.name = "v", .leases = LeasesOf((*borrowed)->items)});
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().ToString(), HasSubstr("not revocable"));
}

TEST_F(LedgerPublicationsTest, TakesUpTo4096Segments) {
  const SessionId session = OpenSession("ml");
  std::vector<LeaseId> leases;
  for (int i = 0; i < 4; ++i) {
    for (const char* device : {"GPU-1", "GPU-2"}) {
      for (const LeaseId lease : LeasesOf(Acquire(session, kGranule, 253, device))) {
        leases.push_back(lease);
      }
    }
  }
  ASSERT_THAT(leases, SizeIs(2024));
  Publish(session, {.name = "w", .leases = leases});
  EXPECT_THAT(Attach(session, "w"), SizeIs(2024));
  leases.resize(4097);
  EXPECT_EQ(ledger.Publish(session, {.name = "w", .leases = leases}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(LedgerPublicationsTest, TenantsHaveSoManyAndThoseTheyAreUnderCountThem) {
  ledger.Configure({{"team", {.max_publications = 2}},
                    {"a", {.max_publications = 1, .parent = "team"}},
                    {"b", {.parent = "team"}}},
                   {});
  const SessionId a = OpenSession("a"), b = OpenSession("b");
  const auto of_a = Acquire(a, kGranule), of_b = Acquire(b, kGranule);
  Publish(a, "1", of_a);
  ExpectDenial(ledger.Publish(a, {.name = "2", .leases = LeasesOf(of_a)}).status(),
               Denial::Cause::kMaxPublications, "a", "", 1, 1, 1);
  Publish(a, "1", of_a);  // as many as before
  Publish(b, "1", of_b);
  EXPECT_EQ(ledger.look().GetTenant("team")->publications, 2u);
  const auto denied = ledger.Publish(b, {.name = "2", .leases = LeasesOf(of_b)}).status();
  ExpectDenial(denied, Denial::Cause::kMaxPublications, "b", "", 1, 2, 2);
  EXPECT_EQ(DenialOf(denied)->limited_tenant, "team");
  ASSERT_TRUE(ledger.Unpublish(a, "1").ok());
  Publish(b, "2", of_b);
}

class BoundedLedgerPublicationsTest : public LedgerPublicationsTest {
 protected:
  BoundedLedgerPublicationsTest()
      : LedgerPublicationsTest({.max_leases_per_session = 4,
                                .max_publications = 2,
                                .max_metadata_bytes = 100,
                                .max_metadata_bytes_per_tenant = 60}) {}
};

TEST_F(BoundedLedgerPublicationsTest, TheDaemonKeepsSoMany) {
  const SessionId a = OpenSession("a"), b = OpenSession("b");
  const auto of_a = Acquire(a, kGranule), of_b = Acquire(b, kGranule);
  const auto publish = [&](SessionId session, const std::string& name, uint64_t metadata) {
    return ledger
        .Publish(session, {.name = name,
                           .leases = LeasesOf(session == a ? of_a : of_b),
                           .metadata_bytes = metadata})
        .status();
  };
  EXPECT_TRUE(publish(a, "1", 60).ok());
  EXPECT_TRUE(publish(a, "1", 60).ok());  // replaces the other
  ExpectDenial(publish(a, "1", 61), Denial::Cause::kDaemonLimit, "a", "", 61, 0, 60);
  ExpectDenial(publish(b, "1", 41), Denial::Cause::kDaemonLimit, "b", "", 41, 60, 100);
  EXPECT_TRUE(publish(b, "1", 40).ok());
  ExpectDenial(publish(b, "2", 0), Denial::Cause::kDaemonLimit, "b", "", 1, 2, 2);
}

TEST_F(BoundedLedgerPublicationsTest, AttachingIsAllOrNothing) {
  const SessionId a = OpenSession("a"), reader = OpenSession("a");
  Publish(a, "w", Acquire(a, kGranule, 3));
  EXPECT_THAT(Attach(reader, "w"), SizeIs(3));
  ExpectDenial(ledger.BeginAttach(reader, {.name = "w"}).status(), Denial::Cause::kDaemonLimit, "a",
               "", 3, 3, 4);
  EXPECT_EQ(ledger.look().ListPublications("")->at(0).attached, 1u);
}

}  // namespace
}  // namespace gpumemd
