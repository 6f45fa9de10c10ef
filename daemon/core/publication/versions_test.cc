// SPDX-License-Identifier: Apache-2.0
// Versions of publications: how they are numbered, and which version a name stands for.
#include "daemon/core/publication/versions.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/publication/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::SizeIs;
using PublicationVersionsTest = LedgerPublicationsFixture;

TEST_F(PublicationVersionsTest, NewVersionReplacesTheOneBefore) {
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
  EXPECT_THAT(Drain(ledger.effects().ended_publications), SizeIs(1));
  EXPECT_EQ(Usage("ml").leased, 3 * kGranule);
  Release(early, kept);
  EXPECT_EQ(Usage("ml").leased, kGranule);
  EXPECT_EQ(Usage("ml").retained, 2 * kGranule);
}

TEST_F(PublicationVersionsTest, VersionsShareSegmentsThatStayTheSame) {
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

TEST_F(PublicationVersionsTest, VersionNumbersContinueAfterUnpublish) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  Publish(session, "w", items);
  Publish(session, "w", items);
  EXPECT_EQ(*ledger.publications().Unpublish(session, "w"), 2u);
  EXPECT_EQ(Publish(session, "w", items), 3u);
}

// The last version of each name is not remembered for so many names, or for tenants that are gone.
// Publications of others do not show.
TEST_F(PublicationVersionsTest, VersionNumbersGrowAfterTheNameWasForgotten) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  for (int i = 0; i < 5; ++i) Publish(session, "first", items);
  EXPECT_EQ(*ledger.publications().Unpublish(session, "first"), 5u);
  EXPECT_EQ(Publish(session, "unheard-of", items), 1u);
  for (int i = 0; i < 256; ++i) {
    const std::string name = absl::StrCat("name-", i);
    EXPECT_EQ(Publish(session, name, items), 1u);
    ledger.publications().Unpublish(session, name).IgnoreError();
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
  EXPECT_EQ(*ledger.publications().Unpublish(other, "w"), 8u);
  ledger.endings().ProcessGone(other);
  ASSERT_TRUE(ledger.segments().Trim("nobody", "", 0).ok());
  for (SegmentId doomed : Drain(ledger.effects().doomed)) ledger.Destroyed(doomed);
  const SessionId again = OpenSession("nobody");
  EXPECT_EQ(Publish(again, "w", Acquire(again, kGranule)), 9u);
  EXPECT_EQ(Publish(session, "unheard-of-either", items), 6u);
  const SessionId fresh = OpenSession("fresh");
  EXPECT_EQ(Publish(fresh, "w", Acquire(fresh, kGranule)), 1u);
}

TEST(ForgottenVersionsTest, BeyondSoManyTenantsTheirHighestVersionIsKept) {
  Versions versions;
  const auto forget = [&](const std::string& name, uint64_t version) {
    records::Tenant tenant;
    tenant.name = name;
    versions.Ended(tenant, "w", version);
    versions.Keep(tenant);
  };
  const auto first_version = [&] {
    records::Tenant tenant;
    return versions.TakeNext(tenant, "w");
  };
  forget("first", 7);
  for (int i = 1; i < 4096; ++i) forget(absl::StrCat("tenant-", i), 1);
  EXPECT_EQ(first_version(), 1u) << "each is remembered";
  forget("last", 1);
  EXPECT_EQ(first_version(), 8u) << "it may be the first tenant, made anew";
}

TEST_F(PublicationVersionsTest, ARetryMakesNoSecondVersion) {
  const SessionId session = OpenSession("ml"), other = OpenSession("ml");
  const auto items = Acquire(session, kGranule), others = Acquire(other, kGranule);
  const PublishSpec spec = {.name = "w", .leases = LeasesOf(items), .request = 7};
  EXPECT_EQ(Publish(session, spec), 1u);
  EXPECT_EQ(Publish(other, {.name = "w", .leases = LeasesOf(others), .request = 7}), 2u);
  const auto again = ledger.publications().Publish(session, spec);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->again);
  EXPECT_EQ(again->version, 1u);
  EXPECT_EQ(ledger.look().ListPublications("")->at(0).version, 2u);
}

}  // namespace
}  // namespace gpumemd
