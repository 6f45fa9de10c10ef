// SPDX-License-Identifier: Apache-2.0
// The order of candidates, and random requests compared with a plain search over all sessions.
#include "daemon/core/suspension/swap_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/suspension/testing/swap_fixture.h"

namespace gpumemd {
namespace swap_index_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Time kStart = absl::UnixEpoch();

std::vector<uint64_t> Candidates(const SwapIndex& index, size_t device) {
  std::vector<uint64_t> sessions;
  for (const SwapCandidate& each : index.CandidatesOn(device)) {
    sessions.push_back(ToInt(each.session));
  }
  return sessions;
}

TEST(SwapIndexTest, AnEntryIsACandidateFromItsTimeOn) {
  SwapIndex index(2);
  EXPECT_TRUE(index.empty());
  EXPECT_EQ(index.NextReady(), absl::InfiniteFuture());
  index.Set(0, {.session = SessionId{1}}, kStart + absl::Seconds(1));
  index.Set(1, {.session = SessionId{1}}, kStart + absl::Seconds(2));
  EXPECT_FALSE(index.empty());
  EXPECT_FALSE(index.Ripen(kStart, 9));
  EXPECT_EQ(index.NextReady(), kStart + absl::Seconds(1));
  EXPECT_TRUE(index.Ripen(kStart + absl::Seconds(1), 9));
  EXPECT_THAT(Candidates(index, 0), ElementsAre(1));
  EXPECT_THAT(Candidates(index, 1), IsEmpty());
  // Setting it anew makes it wait again.
  index.Set(0, {.session = SessionId{1}}, kStart + absl::Seconds(3));
  EXPECT_THAT(Candidates(index, 0), IsEmpty());
  EXPECT_TRUE(index.Ripen(kStart + absl::Seconds(3), 9));
  index.Remove(SessionId{1});
  index.Remove(SessionId{1});
  EXPECT_TRUE(index.empty());
  EXPECT_THAT(Candidates(index, 0), IsEmpty());
}

TEST(SwapIndexTest, OneCallMakesFewCandidates) {
  SwapIndex index(1);
  for (uint64_t i = 1; i <= 5; ++i) index.Set(0, {.session = SessionId{i}}, kStart);
  EXPECT_TRUE(index.Ripen(kStart, 2));
  EXPECT_EQ(Candidates(index, 0).size(), 2u);
  EXPECT_TRUE(index.Ripen(kStart, 9));
  EXPECT_EQ(Candidates(index, 0).size(), 5u);
}

TEST(SwapIndexTest, Order) {
  SwapIndex index(1);
  const absl::Time later = kStart + absl::Seconds(1);
  index.Set(0, {.priority = 1, .active = kStart, .bytes = 9, .session = SessionId{1}}, kStart);
  index.Set(0, {.priority = 0, .active = later, .bytes = 1, .session = SessionId{2}}, kStart);
  index.Set(0, {.priority = 0, .active = later, .bytes = 3, .session = SessionId{3}}, kStart);
  index.Set(0, {.priority = 0, .active = kStart, .bytes = 1, .session = SessionId{5}}, kStart);
  index.Set(0, {.priority = 0, .active = kStart, .bytes = 1, .session = SessionId{4}}, kStart);
  index.Ripen(kStart, 9);
  EXPECT_THAT(Candidates(index, 0), ElementsAre(4, 5, 3, 2, 1));
}

// One request on a full device, and sessions of several tenants.
class RandomSwaps : public SwapFixture {
 public:
  explicit RandomSwaps(std::mt19937_64* random) : SwapFixture(/*granules=*/60), random_(*random) {}
  void TestBody() override {}
  // Makes the sessions and the request, and compares. Returns how many were asked.
  size_t Run() {
    for (int t = 0; t < 4; ++t) {
      Quota quota = Swappable(Below(3), absl::Seconds(Below(20)));
      quota.swappable = Below(4) > 0;
      SetQuota(absl::StrCat("t", t), quota);
      priorities_.push_back(quota.priority);
    }
    std::vector<Known> all;
    uint64_t left = 60;
    while (left > 0) {
      const int t = Below(4);
      const uint64_t granules = std::min<uint64_t>(left, 1 + Below(8));
      left -= granules;
      const SessionId session = OpenHolding(absl::StrCat("t", t), granules);
      const absl::Time since = now;
      now += absl::Seconds(Below(3));
      if (Below(3) == 0) ledger.swaps().Reported(session);
      const records::Session& record = *ledger.state().sessions.at(session);
      all.push_back({priorities_[t], record.active, granules, session, since, t});
    }
    now += absl::Seconds(Below(20));
    const uint64_t asked = 1 + Below(30);
    SetQuota("waits", {.priority = Below(3)});
    EXPECT_TRUE(Wait(OpenSession("waits"), asked));
    const std::vector<SessionId> chosen = Asked();
    EXPECT_EQ(std::set<SessionId>(chosen.begin(), chosen.end()), Search(all, asked));
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    return chosen.size();
  }

 private:
  struct Known {
    int32_t priority;
    absl::Time active;
    uint64_t granules;
    SessionId session;
    absl::Time since;
    int tenant;
  };
  int Below(int most) { return static_cast<int>(random_() % static_cast<uint64_t>(most)); }
  // Returns whom the policy's rules name, by a search over all sessions.
  std::set<SessionId> Search(std::vector<Known> all, uint64_t missing) {
    std::erase_if(all, [&](const Known& each) {
      const Quota quota = ledger.look().GetQuota(absl::StrCat("t", each.tenant)).value();
      return !quota.swappable || now < each.since + quota.min_residence ||
             each.priority > ledger.look().GetQuota("waits")->priority;
    });
    std::sort(all.begin(), all.end(), [](const Known& a, const Known& b) {
      return std::make_tuple(a.priority, a.active, b.granules, a.session) <
             std::make_tuple(b.priority, b.active, a.granules, b.session);
    });
    size_t count = 0;
    uint64_t sum = 0;
    while (count < all.size() && sum < missing) sum += all[count++].granules;
    std::set<SessionId> named;
    if (sum < missing) return named;
    for (sum = 0; sum < missing; sum += all[count].granules) named.insert(all[--count].session);
    return named;
  }

  std::mt19937_64& random_;
  std::vector<int32_t> priorities_;
};

TEST(SwapModelTest, RandomRequestsAskWhomASearchNames) {
  std::mt19937_64 random(20240611);
  size_t asked = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    asked += std::make_unique<RandomSwaps>(&random)->Run();
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(asked, 200u) << "the rounds are too tame";
}

}  // namespace swap_index_test
}  // namespace gpumemd
