// SPDX-License-Identifier: Apache-2.0
// Publications: which sessions hold which segments for how long, which tenants may see them, and
// waits for a version.
#include "absl/strings/str_replace.h"
#include "daemon/core/publication/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using LedgerPublicationsTest = LedgerPublicationsFixture;

TEST_F(LedgerPublicationsTest, PublicationOutlivesItsPublisherAndIsChargedOnce) {
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
  ASSERT_TRUE(ledger.publications().Unpublish(server, "weights").ok());
  EXPECT_EQ(Usage("ml").leased, 3 * kGranule);  // the attacher's leases keep it
  ProcessEnds(server);
  EXPECT_THAT(DestroyDoomed(), SizeIs(3));
  EXPECT_EQ(ledger.state().charged(0), 0u);
}

TEST_F(LedgerPublicationsTest, ListsHoldersOfASegment) {
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
  ASSERT_TRUE(ledger.publications().Unpublish(trainer, "weights").ok());
  const HoldersView after = ledger.look().ListHolders(weights[0].segment);
  EXPECT_TRUE(after.leases.at(1).attached);
  EXPECT_EQ(after.leases.at(1).publication, "");
  EXPECT_THAT(after.publications, IsEmpty());
}

TEST_F(LedgerPublicationsTest, PublishedSegmentIsNeitherReusedNorTrimmed) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  Publish(session, "a", items);
  Release(session, items);
  EXPECT_TRUE(ledger.segments().Trim("", "", 0)->empty());
  EXPECT_NE(AcquireOne(session, kGranule).segment, items[0].segment);
  ledger.SetDraining(true);
  EXPECT_THAT(DestroyDoomed(), IsEmpty());
  ledger.SetDraining(false);
  ASSERT_TRUE(ledger.publications().Unpublish(session, "a").ok());
  EXPECT_EQ(AcquireOne(session, kGranule).segment, items[0].segment);  // now it is
}

TEST_F(LedgerPublicationsTest, SegmentThatAnotherTenantAttachedIsNotReused) {
  const SessionId owner = OpenSession("ml"), other = OpenSession("web");
  const auto items = Acquire(owner, kGranule);
  Publish(owner, {.name = "a", .leases = LeasesOf(items), .to_any = true});
  Release(other, Attach(other, "ml/a"));
  Release(owner, items);
  ASSERT_TRUE(ledger.publications().Unpublish(owner, "a").ok());
  EXPECT_THAT(DestroyDoomed(), ElementsAre(items[0].segment));
}

TEST_F(LedgerPublicationsTest, EphemeralEndsWithItsPublishersSession) {
  const SessionId publisher = OpenSession("ml"), reader = OpenSession("ml");
  const auto items = Acquire(publisher, kGranule);
  Publish(publisher, {.name = "w", .leases = LeasesOf(items), .ephemeral = true});
  const auto attached = Attach(reader, "w");
  ledger.endings().SocketClosed(publisher);
  EXPECT_THAT(*ledger.look().ListPublications(""), IsEmpty());
  EXPECT_EQ(Usage("ml").leased, kGranule);  // the reader still has it
  Release(reader, attached);
  EXPECT_EQ(Usage("ml").lingering, kGranule);  // the publisher's process may map it
  ledger.endings().ProcessGone(publisher);
  EXPECT_EQ(Usage("ml").retained, kGranule);
}

TEST_F(LedgerPublicationsTest, ExpiresAfterTheTimeWithoutAttachments) {
  const SessionId session = OpenSession("ml"), reader = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  Publish(session, {.name = "w", .leases = LeasesOf(items), .expire_after = absl::Minutes(1)});
  EXPECT_EQ(ledger.publications().NextExpiry(), now + absl::Minutes(1));
  now += absl::Seconds(30);
  const auto attached = Attach(reader, "w");
  EXPECT_EQ(ledger.publications().NextExpiry(), absl::InfiniteFuture());
  now += absl::Hours(1);
  ledger.publications().Expire();
  ASSERT_THAT(*ledger.look().ListPublications(""), SizeIs(1));
  Release(reader, attached);
  EXPECT_EQ(ledger.publications().NextExpiry(), now + absl::Minutes(1));
  now += absl::Minutes(1) - absl::Nanoseconds(1);
  ledger.publications().Expire();
  ASSERT_THAT(*ledger.look().ListPublications(""), SizeIs(1));
  now += absl::Nanoseconds(1);
  ledger.publications().Expire();
  EXPECT_THAT(*ledger.look().ListPublications(""), IsEmpty());
}

TEST_F(LedgerPublicationsTest, AListInPartsIsTheWholeList) {
  const SessionId one = OpenSession("ml"), other = OpenSession("other");
  const auto items = Acquire(one, kGranule);
  for (const char* name : {"v", "w", "x"}) Publish(one, {.name = name, .leases = LeasesOf(items)});
  Publish(other, {.name = "w", .leases = LeasesOf(Acquire(other, kGranule)), .to_any = true});
  for (const char* tenant : {"", "ml", "other", "none"}) {
    std::vector<PublicationId> parts, whole;
    std::vector<PublicationView> views;
    for (std::optional<Inspector::PublicationName> next{std::in_place}; next.has_value();) {
      next = ledger.look().ListAttachable(one, tenant, *next, /*count=*/2, views).value();
    }
    for (const PublicationView& view : views) parts.push_back(view.id);
    views = ledger.look().ListAttachable(one, tenant).value();
    for (const PublicationView& view : views) whole.push_back(view.id);
    EXPECT_EQ(parts, whole) << tenant;
  }
  EXPECT_THAT(*ledger.look().ListAttachable(one, "ml"), SizeIs(3));
  EXPECT_THAT(*ledger.look().ListAttachable(one, "other"), SizeIs(1));
}

TEST_F(LedgerPublicationsTest, ManyThatExpireTogetherEndInParts) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule, 3);
  for (const char* name : {"v", "w", "x"}) {
    Publish(session, {.name = name, .leases = LeasesOf(items), .expire_after = absl::Seconds(1)});
  }
  now += absl::Seconds(1);
  ledger.publications().Expire(/*steps=*/4);
  EXPECT_THAT(*ledger.look().ListPublications(""), SizeIs(1));
  EXPECT_EQ(ledger.publications().NextExpiry(), now);
  ledger.publications().Expire(/*steps=*/4);
  EXPECT_THAT(*ledger.look().ListPublications(""), IsEmpty());
}

TEST_F(LedgerPublicationsTest, AnAttachmentUnderWayKeepsItFromExpiring) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  Publish(session, {.name = "w", .leases = LeasesOf(items), .expire_after = absl::Seconds(1)});
  const auto admission = ledger.operations().BeginAttach(session, {.name = "w"});
  ASSERT_TRUE(admission.ok());
  now += absl::Hours(1);
  ledger.publications().Expire();
  EXPECT_THAT(*ledger.look().ListPublications(""), SizeIs(1));
  ledger.operations().Abort(*admission->operation, /*handed_over=*/false);
  EXPECT_EQ(ledger.publications().NextExpiry(), now + absl::Seconds(1));
}

TEST_F(LedgerPublicationsTest, OthersCannotTellAForbiddenNameFromAnUnknownOne) {
  const SessionId owner = OpenSession("ml"), other = OpenSession("web");
  Publish(owner, "secret", Acquire(owner, kGranule));
  Publish(owner, {.name = "open", .leases = LeasesOf(Acquire(owner, kGranule)), .to_any = true});
  const auto forbidden = ledger.operations().BeginAttach(other, {.name = "ml/secret"}).status();
  const auto unknown = ledger.operations().BeginAttach(other, {.name = "ml/sacred"}).status();
  EXPECT_EQ(forbidden.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(absl::StrReplaceAll(forbidden.ToString(), {{"secret", "sacred"}}), unknown.ToString());
  EXPECT_EQ(ledger.publications().Unpublish(other, "ml/secret").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ledger.publications().Unpublish(other, "ml/open").status().code(),
            absl::StatusCode::kPermissionDenied);
  // The same applies to waiting.
  EXPECT_TRUE(ledger.sessions().BeginCall(other).ok());
  EXPECT_TRUE(ledger.operations()
                  .BeginAttach(other, {.name = "ml/secret", .version = 1})
                  ->waiter.has_value());
  EXPECT_THAT(*ledger.look().ListAttachable(other, ""), SizeIs(1));
  EXPECT_THAT(*ledger.look().ListAttachable(owner, ""), SizeIs(2));
  EXPECT_THAT(Attach(other, "ml/open"), SizeIs(1));
  EXPECT_EQ(*ledger.publications().Unpublish("ml/secret"), 1u);  // an operator
  ledger.endings().SocketClosed(other);
  ledger.sessions().EndCall(other);
}

TEST_F(LedgerPublicationsTest, WaiterForAVersionIsResumedWhenItIsPublished) {
  const SessionId publisher = OpenSession("ml"), reader = OpenSession("ml");
  const SessionId foreign = OpenSession("web");
  const auto items = Acquire(publisher, kGranule);
  const WaiterId first = Wait(reader, "w", 1), second = Wait(reader, "w", 2);
  const WaiterId never = Wait(foreign, "ml/w", 1);
  EXPECT_EQ(ledger.look().GetTenant("ml")->waiting, 2u);
  EXPECT_EQ(ledger.look().GetTenant("ml")->in_flight, 0u);
  Publish(publisher, "w", items);
  EXPECT_THAT(Drain(ledger.effects().attachable), ElementsAre(first));
  EXPECT_EQ(ledger.look().GetTenant("ml")->in_flight, 1u);
  Publish(publisher, "w", items);
  EXPECT_THAT(Drain(ledger.effects().attachable), ElementsAre(second));
  // Answered as for a name that does not exist: the tenant may not attach to this one.
  EXPECT_THAT(ledger.publications().waiters().EndWait(never, /*expired=*/true).ToString(),
              HasSubstr("none of that name"));
  const WaiterId third = Wait(reader, "w", 9);
  const absl::Status late = ledger.publications().waiters().EndWait(third, /*expired=*/true);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  const WaiterId last = Wait(reader, "w", 9);
  ledger.endings().SocketClosed(reader);
  EXPECT_THAT(Drain(ledger.effects().attachable), ElementsAre(last));
  EXPECT_EQ(ledger.operations().BeginAttach(reader, {.name = "w"}).status().code(),
            absl::StatusCode::kAborted);
}

TEST_F(LedgerPublicationsTest, WaitsAreCountedAndEndWhileDraining) {
  SetQuota("ml", {.max_waiting = 1});
  const SessionId session = OpenSession("ml");
  const WaiterId waiter = Wait(session, "w", 1);
  EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
  ExpectDenial(ledger.operations().BeginAttach(session, {.name = "w", .version = 1}).status(),
               Denial::Cause::kMaxWaiting, "ml", "", 1, 1, 1);
  ledger.SetDraining(true);
  EXPECT_THAT(Drain(ledger.effects().attachable), ElementsAre(waiter));
  EXPECT_EQ(ledger.operations().BeginAttach(session, {.name = "w"}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(LedgerPublicationsTest, APublicationWithLostMemoryIsNotAttachedTo) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule, 2);
  Publish(session, "w", items);
  ledger.segments().MarkLost({items[1].segment});
  EXPECT_EQ(ledger.operations().BeginAttach(session, {.name = "w"}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ledger.look().ListPublications("")->at(0).attached, 0u);
}

// An attachment of many segments is made in parts.
TEST_F(LedgerPublicationsTest, AnAttachmentUnderWayStopsWhenItsSessionEnds) {
  const SessionId session = OpenSession("ml"), reader = OpenSession("ml");
  Publish(session, "w", Acquire(session, kGranule, 3));
  const auto admission = ledger.operations().BeginAttach(reader, {.name = "w"}, /*steps=*/1);
  ASSERT_TRUE(admission.ok() && admission->operation) << admission.status();
  Operation operation = *admission->operation;
  EXPECT_EQ(ledger.operations().Expose(operation, /*steps=*/1), absl::OkStatus());
  ledger.endings().SocketClosed(reader);
  EXPECT_TRUE(absl::IsAborted(ledger.operations().Expose(operation, /*steps=*/1)));
  EXPECT_EQ(operation.exposed, 2u);
  ledger.operations().Abort(operation, /*handed_over=*/false);
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(reader)) << "it maps nothing";
}

}  // namespace
}  // namespace gpumemd
