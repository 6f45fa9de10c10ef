// SPDX-License-Identifier: Apache-2.0
// What may be published, and how much of it: names, segments, metadata and numbers.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/publication/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::SizeIs;
using PublicationLimitsTest = LedgerPublicationsFixture;

TEST_F(PublicationLimitsTest, NamesHaveAFewCharactersOnly) {
  const SessionId session = OpenSession("ml");
  const auto items = Acquire(session, kGranule);
  for (const std::string& good : {std::string("a"), std::string(64, 'z'), std::string("A.b_c-9")}) {
    EXPECT_EQ(Publish(session, good, items), 1u) << good;
    EXPECT_THAT(Attach(session, good), SizeIs(1));
    EXPECT_THAT(Attach(session, absl::StrCat("ml/", good)), SizeIs(1));
  }
  for (const std::string& bad : {std::string(), std::string(65, 'z'), std::string("two words"),
                                 std::string("new\nline"), std::string("ä"), std::string("ml/a")}) {
    const auto published =
        ledger.publications().Publish(session, {.name = bad, .leases = LeasesOf(items)});
    EXPECT_EQ(published.status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  // Also for one who would wait for it.
  for (const uint64_t version : {0, 1}) {
    for (const std::string& bad : {std::string(), std::string("/a"), std::string("ml/"),
                                   std::string("ml/two words"), std::string(64, 't') + "/a"}) {
      EXPECT_EQ(ledger.operations()
                    .BeginAttach(session, {.name = bad, .version = version})
                    .status()
                    .code(),
                absl::StatusCode::kInvalidArgument)
          << bad;
    }
  }
  EXPECT_EQ(ledger.publications().Unpublish("a").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(PublicationLimitsTest, RefusesSegmentsThatItCannotKeep) {
  const SessionId session = OpenSession("ml"), other = OpenSession("web");
  const auto items = Acquire(session, kGranule);
  const auto code_of = [&](SessionId of, const PublishSpec& spec) {
    return ledger.publications().Publish(of, spec).status().code();
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
  ledger.segments().MarkLost({items[0].segment});
  EXPECT_EQ(code_of(session, {.name = "v", .leases = LeasesOf(items)}),
            StatusCode::kFailedPrecondition);

  const SessionId borrower = OpenSession("ml");
  const auto borrowed = Ask(borrower, {.device_uuid = "GPU-1", .bytes = 1, .revocable = true});
  ASSERT_TRUE(borrowed.ok() && *borrowed);
  ASSERT_TRUE(ledger.operations().Commit(**borrowed).ok());
  const auto refused = ledger.publications().Publish(
      borrower, {.name = "v", .leases = LeasesOf((*borrowed)->items)});
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(PublicationLimitsTest, TakesUpTo4096Segments) {
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
  EXPECT_EQ(ledger.publications().Publish(session, {.name = "w", .leases = leases}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(PublicationLimitsTest, NumberLimitsOfTenantsAndTeamsAreKept) {
  ledger.tenants().Configure({{"team", {.max_publications = 2}},
                              {"a", {.max_publications = 1, .parent = "team"}},
                              {"b", {.parent = "team"}}},
                             {});
  const SessionId a = OpenSession("a"), b = OpenSession("b");
  const auto of_a = Acquire(a, kGranule), of_b = Acquire(b, kGranule);
  Publish(a, "1", of_a);
  ExpectDenial(ledger.publications().Publish(a, {.name = "2", .leases = LeasesOf(of_a)}).status(),
               Denial::Cause::kMaxPublications, "a", "", 1, 1, 1);
  Publish(a, "1", of_a);  // as many as before
  Publish(b, "1", of_b);
  EXPECT_EQ(ledger.look().GetTenant("team")->publications, 2u);
  const auto denied =
      ledger.publications().Publish(b, {.name = "2", .leases = LeasesOf(of_b)}).status();
  ExpectDenial(denied, Denial::Cause::kMaxPublications, "b", "", 1, 2, 2);
  EXPECT_EQ(DenialOf(denied)->limited_tenant, "team");
  ASSERT_TRUE(ledger.publications().Unpublish(a, "1").ok());
  Publish(b, "2", of_b);
}

class DaemonPublicationLimitsTest : public LedgerPublicationsFixture {
 protected:
  DaemonPublicationLimitsTest()
      : LedgerPublicationsFixture({.max_leases_per_session = 4,
                                   .max_publications = 2,
                                   .max_metadata_bytes = 100,
                                   .max_metadata_bytes_per_tenant = 60}) {}
};

TEST_F(DaemonPublicationLimitsTest, DaemonLimitsNumberAndMetadata) {
  const SessionId a = OpenSession("a"), b = OpenSession("b");
  const auto of_a = Acquire(a, kGranule), of_b = Acquire(b, kGranule);
  const auto publish = [&](SessionId session, const std::string& name, uint64_t metadata) {
    return ledger.publications()
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

TEST_F(DaemonPublicationLimitsTest, AttachingIsAllOrNothing) {
  const SessionId a = OpenSession("a"), reader = OpenSession("a");
  Publish(a, "w", Acquire(a, kGranule, 3));
  EXPECT_THAT(Attach(reader, "w"), SizeIs(3));
  ExpectDenial(ledger.operations().BeginAttach(reader, {.name = "w"}).status(),
               Denial::Cause::kDaemonLimit, "a", "", 3, 3, 4);
  EXPECT_EQ(ledger.look().ListPublications("")->at(0).attached, 1u);
}

}  // namespace
}  // namespace gpumemd
