// SPDX-License-Identifier: Apache-2.0
// Publications across a restart of the daemon, by example.
#include "daemon/core/ledger/testing/restart_fixture.h"

namespace gpumemd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LedgerRestorePublicationsTest : public LedgerRestartFixture {
 protected:
  Publications::Published Publish(SessionId session, const PublishSpec& spec) {
    auto published = ledger.publications().Publish(session, spec);
    EXPECT_TRUE(published.ok()) << published.status();
    return published.value_or(Publications::Published{});
  }
  Operation Attach(SessionId session, const AttachSpec& spec) {
    auto admission = ledger.operations().BeginAttach(session, spec);
    EXPECT_TRUE(admission.ok() && admission->operation) << admission.status();
    if (!admission.ok() || !admission->operation) return {};
    Finish(*admission->operation);
    return *admission->operation;
  }
  void ExpectRecorded() {
    Record();
    EXPECT_TRUE(image == ledger.Image());
    const absl::Status consistent = image.CheckReferences();
    EXPECT_TRUE(consistent.ok()) << consistent;
  }
};

TEST_F(LedgerRestorePublicationsTest, PersistentPublicationOutlivesPublisherAndDaemon) {
  const SessionId publisher = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(publisher, kGranule, 2);
  const PublishSpec spec = {.name = "weights",
                            .leases = {items[1].lease, items[0].lease},
                            .metadata_bytes = 100,
                            .to_any = true};
  Publish(publisher, spec);
  Publish(publisher, spec);
  const Restored restored = Restart({.dead = {publisher}});
  EXPECT_EQ(restored.publications, 1u);
  EXPECT_EQ(Usage("a").leased, 2 * kGranule);
  const Operation attached = Attach(OpenSession("b"), {.name = "a/weights", .version = 2});
  ASSERT_EQ(attached.items.size(), 2u);
  EXPECT_EQ(attached.items[0].segment, items[1].segment);
  EXPECT_EQ(attached.items[1].segment, items[0].segment);
  EXPECT_EQ(ledger.look().ListPublications("a")->at(0).metadata_bytes, 100u);
  Restart();
  EXPECT_EQ(*ledger.publications().Unpublish("a/weights"), 2u);
  ExpectRecorded();
  EXPECT_THAT(image.publication_items, IsEmpty());
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kLeased) << "who is attached has it";
}

TEST_F(LedgerRestorePublicationsTest, EphemeralPublicationEndsWithItsPublisher) {
  const SessionId dead = OpenSession("a"), living = OpenSession("a");
  const Operation::Item gone = AcquireOne(dead, kGranule), kept = AcquireOne(living, kGranule);
  Publish(dead, {.name = "gone", .leases = {gone.lease}, .ephemeral = true});
  Publish(living, {.name = "kept", .leases = {kept.lease}, .ephemeral = true});
  const Restored restored = Restart({.dead = {dead}});
  EXPECT_EQ(restored.publications, 1u);
  EXPECT_THAT(restored.lost_publications, IsEmpty());
  EXPECT_EQ(StateOf(gone.segment), SegmentState::kRetained);
  ledger.endings().ProcessGone(living);
  EXPECT_THAT(*ledger.look().ListPublications("a"), IsEmpty());
}

// One number is enough for all names that were no longer published.
TEST_F(LedgerRestorePublicationsTest, VersionsGrowThoughTheDaemonHasForgottenTheName) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 2);
  const auto publish = [&](const std::string& name) {
    return Publish(session, {.name = name, .leases = {items[0].lease}}).version;
  };
  for (uint64_t version = 1; version <= 3; ++version) EXPECT_EQ(publish("ended"), version);
  EXPECT_EQ(publish("there"), 1u);
  EXPECT_EQ(*ledger.publications().Unpublish("a/ended"), 3u);
  Restart();
  // A waiter for a later version than the one it has seen does not wait for ever.
  auto waits = ledger.operations().BeginAttach(session, {.name = "ended", .version = 4});
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  EXPECT_EQ(publish("ended"), 4u);
  EXPECT_EQ(publish("there"), 2u);
  EXPECT_EQ(publish("unheard-of"), 4u);
  ExpectRecorded();
  EXPECT_EQ(image.counters.ended_version, 3u);
  EXPECT_EQ(*ledger.publications().Unpublish("a/there"), 2u);
  Restart();
  EXPECT_EQ(*ledger.publications().Unpublish("a/unheard-of"), 4u);
  Restart();
  EXPECT_EQ(publish("there"), 5u);
}

TEST_F(LedgerRestorePublicationsTest, VersionsGrowOverAPublicationThatIsLost) {
  const SessionId dead = OpenSession("a"), session = OpenSession("a");
  const Operation::Item item = AcquireOne(session, kGranule), lost = AcquireOne(session, kGranule);
  const Operation::Item deads = AcquireOne(dead, kGranule);
  for (int i = 0; i < 6; ++i) {
    Publish(dead, {.name = "gone", .leases = {deads.lease}, .ephemeral = true});
  }
  for (int i = 0; i < 4; ++i) Publish(session, {.name = "x", .leases = {lost.lease}});
  EXPECT_EQ(Restart({.dead = {dead}, .missing = {lost.segment}}).lost_publications.size(), 1u);
  ExpectRecorded();
  EXPECT_EQ(image.counters.ended_version, 6u);
  EXPECT_EQ(Publish(session, {.name = "x", .leases = {item.lease}}).version, 7u);
}

// A journal that names an unknown session is rejected as damaged.
TEST_F(LedgerRestorePublicationsTest, ForgottenPublisherIsRecorded) {
  const SessionId publisher = OpenSession("a");
  Publish(publisher, {.name = "x", .leases = {AcquireOne(publisher, kGranule).lease}});
  ExpectRecorded();
  EXPECT_EQ(image.publications.begin()->second.publisher, publisher);
  ledger.endings().ProcessGone(publisher);
  ExpectRecorded();
  EXPECT_EQ(image.publications.begin()->second.publisher, SessionId{});
  EXPECT_EQ(Restart().publications, 1u);
}

TEST_F(LedgerRestorePublicationsTest, PublicationWithAMissingPartIsLost) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 2);
  Publish(session, {.name = "x", .leases = {items[0].lease, items[1].lease}});
  const Operation::Item other = AcquireOne(session, kGranule);
  const PublicationId bare =
      Publish(session, {.name = "y", .leases = {other.lease}, .metadata_bytes = 1}).id;
  const Restored restored = Restart({.missing = {items[1].segment}, .bare = {bare}});
  EXPECT_EQ(restored.publications, 0u);
  ASSERT_EQ(restored.lost_publications.size(), 2u);
  EXPECT_EQ(restored.lost_publications[0].tenant, "a");
  EXPECT_EQ(restored.lost_publications[0].name, "x");
  EXPECT_EQ(restored.lost_publications[0].version, 1u);
  EXPECT_THAT(restored.lost_publications[0].segments, ElementsAre(items[1].segment));
  EXPECT_EQ(restored.lost_publications[1].name, "y");
  EXPECT_THAT(restored.lost_publications[1].segments, IsEmpty()) << "its metadata is gone";
  Release(session, {items[0]});
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kRetained);
}

TEST_F(LedgerRestorePublicationsTest, AttachmentsStayAndExpiryBeginsAnew) {
  const SessionId publisher = OpenSession("a"), reader = OpenSession("a");
  const absl::Duration expire_after = absl::Seconds(10);
  Publish(publisher, {.name = "x",
                      .leases = {AcquireOne(publisher, kGranule).lease},
                      .expire_after = expire_after});
  const Operation attached = Attach(reader, {.name = "x"});
  now += absl::Seconds(60);
  Restart();
  EXPECT_EQ(ledger.look().ListPublications("a")->at(0).attached, 1u);
  EXPECT_EQ(ledger.publications().NextExpiry(), absl::InfiniteFuture());
  Release(reader, attached.items);
  ExpectRecorded();
  EXPECT_EQ(ledger.publications().NextExpiry(), now + expire_after);
  Attach(reader, {.name = "x"});
  ExpectRecorded();
  now += absl::Seconds(60);
  const absl::Time restarted = now;
  Restart({.dead = {reader}});
  EXPECT_EQ(ledger.publications().NextExpiry(), restarted + expire_after);
  now += absl::Seconds(3);
  Restart();  // no session has attached since
  EXPECT_EQ(ledger.publications().NextExpiry(), restarted + expire_after);
}

TEST_F(LedgerRestorePublicationsTest, ARetryIsAnsweredTheSame) {
  const SessionId session = OpenSession("a");
  const PublishSpec spec = {
      .name = "x", .leases = {AcquireOne(session, kGranule).lease}, .request = 9};
  const Publications::Published first = Publish(session, spec);
  Restart();
  const Publications::Published again = Publish(session, spec);
  EXPECT_TRUE(again.again);
  EXPECT_EQ(again.version, 1u);
  PublishSpec next = spec;
  next.request = 10;
  EXPECT_EQ(Publish(session, next).version, 2u);
  EXPECT_GT(ledger.look().ListPublications("a")->at(0).id, first.id);
  // The same if another version has taken its place meanwhile.
  Restart();
  EXPECT_EQ(Publish(session, spec).version, 1u);
  EXPECT_EQ(ledger.look().ListPublications("a")->at(0).version, 2u);
  ledger.endings().SocketClosed(session);
  ExpectRecorded();
  EXPECT_THAT(image.answers, IsEmpty());
}

TEST_F(LedgerRestorePublicationsTest, TheOldestAnswersAreForgotten) {
  const SessionId session = OpenSession("a");
  const LeaseId lease = AcquireOne(session, kGranule).lease;
  const auto publish = [&](uint64_t request) {
    return Publish(session, {.name = "x", .leases = {lease}, .request = request});
  };
  for (uint64_t request = 1; request <= 65; ++request) {
    EXPECT_EQ(publish(request).version, request);
  }
  ExpectRecorded();
  EXPECT_EQ(image.answers.size(), 64u);
  EXPECT_EQ(publish(2).version, 2u);
  EXPECT_EQ(publish(1).version, 66u) << "it counts as another request";
  ExpectRecorded();
}

TEST_F(LedgerRestorePublicationsTest, AnUnpublishIsAnsweredTheSame) {
  const SessionId session = OpenSession("a"), other = OpenSession("a");
  const PublishSpec spec = {.name = "x", .leases = {AcquireOne(session, kGranule).lease}};
  Publish(session, spec);
  Publish(session, spec);
  EXPECT_EQ(*ledger.publications().Unpublish(session, "x", 7), 2u);
  Restart();
  Publish(session, spec);  // another publication than the request's
  EXPECT_EQ(*ledger.publications().Unpublish(session, "x", 7), 2u);
  EXPECT_EQ(ledger.look().ListPublications("a")->size(), 1u);
  EXPECT_EQ(ledger.publications().Unpublish(other, "y", 7).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(ledger.publications().Unpublish(session, "x", 8).ok());
  EXPECT_EQ(ledger.publications().Unpublish(session, "x", 0).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(LedgerRestorePublicationsTest, AnAttachmentIsHandedOverOnceMoreWhileThePublicationIsThere) {
  const SessionId publisher = OpenSession("a"), reader = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(publisher, kGranule, 3);
  const PublishSpec spec = {.name = "x", .leases = {items[0].lease, items[2].lease}};
  const PublicationId id = Publish(publisher, spec).id;
  const Operation attached = Attach(reader, {.name = "x", .request_id = 4});
  Attach(reader, {.name = "x", .request_id = 5});
  Attach(reader, {.name = "x", .request_id = 7});
  Attach(reader, {.name = "x", .request_id = 7});
  Restart();
  EXPECT_FALSE(ledger.reconciliation().RegrantAttach(reader, 7))
      << "by which nobody knows what was meant";
  const std::optional<Operation> again = ledger.reconciliation().RegrantAttach(reader, 4);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->publication, id);
  ASSERT_EQ(again->items.size(), 2u);
  EXPECT_EQ(again->items[1].lease, attached.items[1].lease);
  EXPECT_FALSE(ledger.reconciliation().RegrantAttach(reader, 4));
  ASSERT_TRUE(ledger.operations().Commit(*again).ok());
  ExpectRecorded();
  // The attached version has ended, so it is no longer known which one it was.
  Publish(publisher, spec);
  EXPECT_FALSE(ledger.reconciliation().RegrantAttach(reader, 5));
  EXPECT_FALSE(ledger.reconciliation().RegrantAttach(reader, 6));
  EXPECT_FALSE(ledger.reconciliation().RegrantAttach(SessionId{999}, 5)) << "no such session";
  EXPECT_EQ(ledger.look().ListSessions("a")->at(1).leases, 2u);
}

TEST_F(LedgerRestorePublicationsTest, AnAttachmentOfWhichAPartWasReleasedEnds) {
  const SessionId publisher = OpenSession("a"), reader = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(publisher, kGranule, 2);
  Publish(publisher, {.name = "x", .leases = {items[0].lease, items[1].lease}});
  const Operation attached = Attach(reader, {.name = "x", .request_id = 4});
  Restart();
  Release(reader, {attached.items.at(0)});
  EXPECT_FALSE(ledger.reconciliation().RegrantAttach(reader, 4));
  EXPECT_EQ(ledger.look().ListSessions("a")->at(1).leases, 0u);
  EXPECT_EQ(ledger.look().ListPublications("a")->at(0).attached, 0u);
}

}  // namespace
}  // namespace gpumemd
