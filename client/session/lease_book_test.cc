// SPDX-License-Identifier: Apache-2.0
#include "client/session/lease_book.h"

#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace lease_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LeaseBookTest, AStatementNamesHeldLeasesAndOpenRequests) {
  LeaseBook book;
  LeaseBook::Request first(&book), second(&book);
  EXPECT_NE(first.id(), 0u);
  EXPECT_NE(first.id(), second.id());
  first.Granted({7, 8});
  const LeaseBook::Statement statement = book.MakeStatement();
  EXPECT_EQ(statement.number, 1u);
  EXPECT_THAT(statement.lease_ids, ElementsAre(7, 8));
  EXPECT_THAT(statement.request_ids, ElementsAre(second.id()));
}

TEST(LeaseBookTest, AStatementSettlesWhatWasGivenUpBeforeIt) {
  LeaseBook book;
  {
    LeaseBook::Request request(&book);
    request.Granted({7, 8, 9});
  }
  book.AddPending(book.GiveUp({7}));
  EXPECT_THAT(book.MakeStatement().lease_ids, ElementsAre(8, 9));
  book.AddPending(book.GiveUp({8}));
  // The daemon of the statement was told that 8 is held.
  const std::vector<LeaseBook::PendingRelease> due = book.TakePending(1);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_THAT(due[0].lease_ids, ElementsAre(8));
  EXPECT_EQ(due[0].statement, 1u);
  EXPECT_THAT(book.TakePending(1), IsEmpty());
}

TEST(LeaseBookTest, AStatementWaitsForEarlyMappings) {
  LeaseBook book;
  EXPECT_TRUE(book.AwaitEarlyMappings(absl::InfinitePast()));
  LeaseBook::EarlyMapping first(&book), second(&book);
  first.End();
  first.End();
  EXPECT_FALSE(book.AwaitEarlyMappings(absl::InfinitePast()));
  std::thread thread([&] { second.End(); });
  EXPECT_TRUE(book.AwaitEarlyMappings(absl::InfiniteFuture()));
  thread.join();
}

TEST(LeaseBookTest, APendingReleaseOfAStatementInFlightWaitsForItsConnection) {
  LeaseBook book;
  {
    LeaseBook::Request request(&book);
    request.Granted({7});
  }
  book.MakeStatement();
  book.AddPending(book.GiveUp({7}));
  EXPECT_THAT(book.TakePending(0), IsEmpty());  // for a connection that has ended
  EXPECT_EQ(book.TakePending(1).size(), 1u);
}

TEST(LeaseBookTest, PendingReleasesOfOneStatementAreFlushedTogether) {
  LeaseBook book;
  book.AddPending(book.GiveUp({7}));
  book.AddPending(book.GiveUp({8, 9}));
  EXPECT_FALSE(book.HasPendingAfter(0));
  book.MakeStatement();
  book.AddPending(book.GiveUp({10}));
  EXPECT_TRUE(book.HasPendingAfter(0));
  const std::vector<LeaseBook::PendingRelease> due = book.TakePending(0);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_THAT(due[0].lease_ids, ElementsAre(7, 8, 9));
  EXPECT_FALSE(book.HasPendingAfter(1));
  EXPECT_EQ(book.TakePending(1).size(), 1u);
}

TEST(LeaseBookTest, ClaimsAndManyLeasesAreFlushedApart) {
  LeaseBook book;
  book.AddPending(book.GiveUp({7}));
  book.AddPending(book.GiveUpUnheard(5));
  book.AddPending(book.GiveUp({8}));
  EXPECT_EQ(book.TakePending(0).size(), 3u);
  for (uint64_t id = 0; id <= LeaseBook::kMostTogether; ++id) book.AddPending(book.GiveUp({id}));
  const std::vector<LeaseBook::PendingRelease> due = book.TakePending(0);
  ASSERT_EQ(due.size(), 2u);
  EXPECT_EQ(due[0].lease_ids.size(), LeaseBook::kMostTogether);
}

TEST(LeaseBookTest, ARequestGivenUpAfterItsStatementIsAPendingRelease) {
  LeaseBook book;
  { LeaseBook::Request request(&book); }
  EXPECT_THAT(book.TakePending(0), IsEmpty());
  std::optional<LeaseBook::Request> granted(&book), denied(&book);
  const uint64_t id = denied->id();
  book.MakeStatement();
  granted->Granted({7});
  granted.reset();
  denied.reset();
  const std::vector<LeaseBook::PendingRelease> due = book.TakePending(1);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_THAT(due[0].lease_ids, IsEmpty());
  EXPECT_THAT(due[0].request_ids, ElementsAre(id));
}

TEST(LeaseBookTest, TheNextStatementSettlesARequestGivenUpAfterTheLast) {
  LeaseBook book;
  std::optional<LeaseBook::Request> request(&book);
  book.MakeStatement();
  request.reset();
  EXPECT_THAT(book.MakeStatement().request_ids, IsEmpty());
  EXPECT_THAT(book.TakePending(2), IsEmpty());
}

TEST(LeaseBookTest, LostLeasesAreNeitherReleasedNorNamedAgain) {
  LeaseBook book;
  {
    LeaseBook::Request request(&book);
    request.Granted({7, 8, 9});
  }
  book.MakeStatement();
  const LeaseBook::PendingRelease given_up = book.GiveUp({9});
  book.Lost({7, 9});  // 9 is no longer held
  EXPECT_TRUE(book.IsLost(7));
  EXPECT_FALSE(book.IsLost(8));
  EXPECT_THAT(book.lost(), ElementsAre(7));
  EXPECT_THAT(given_up.lease_ids, ElementsAre(9));
  EXPECT_THAT(book.MakeStatement().lease_ids, ElementsAre(8));
  EXPECT_THAT(book.GiveUp({7, 8}).lease_ids, ElementsAre(8));
  EXPECT_THAT(book.lost(), IsEmpty());
}

TEST(LeaseBookTest, HeldLeasesAreDroppedFromAList) {
  LeaseBook book;
  LeaseBook::Request request(&book);
  request.Granted({7, 8});
  book.GiveUp({8});
  std::vector<uint64_t> ids = {6, 7, 8};
  book.DropHeld(&ids);
  EXPECT_THAT(ids, ElementsAre(6, 8));
}

TEST(LeaseBookTest, AStatementNamesTheRequestsOfHeldClaims) {
  LeaseBook book;
  uint64_t claimed = 0;
  {
    LeaseBook::Request request(&book), other(&book);
    claimed = request.id();
    request.Claimed({"weights", "id"});
  }
  EXPECT_THAT(book.MakeStatement().request_ids, ElementsAre(claimed));
  EXPECT_THAT(book.ClaimsOn({"weights", "id"}), ElementsAre(claimed));
  EXPECT_THAT(book.ClaimsOn({"weights", "other"}), IsEmpty());
  const LeaseBook::PendingRelease pending = book.GiveUpClaim(claimed);
  EXPECT_THAT(pending.claims, ElementsAre(claimed));
  EXPECT_EQ(pending.statement, 1u);
  EXPECT_TRUE(book.GiveUpClaim(claimed).empty());
  EXPECT_THAT(book.MakeStatement().request_ids, IsEmpty());
}

TEST(LeaseBookTest, APublishedClaimIsNoPendingRelease) {
  LeaseBook book;
  LeaseBook::Request request(&book);
  request.Claimed({"weights", "id"});
  book.Published({request.id()});
  EXPECT_TRUE(book.GiveUpClaim(request.id()).empty());
}

TEST(LeaseBookTest, AStatementSettlesAnUnheardClaim) {
  LeaseBook book;
  book.AddPending(book.GiveUpUnheard(5));
  EXPECT_EQ(book.TakePending(0).size(), 1u);
  book.AddPending(book.GiveUpUnheard(5));
  book.MakeStatement();
  EXPECT_THAT(book.TakePending(1), IsEmpty());
}

}  // namespace lease_book_test
}  // namespace gpumem::internal
