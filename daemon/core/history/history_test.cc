// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/history/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kLeased = static_cast<size_t>(SegmentState::kLeased);
constexpr size_t kRetained = static_cast<size_t>(SegmentState::kRetained);

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(1'700'000'000 + seconds); }

// The state of a node: charged bytes by tenant and device.
struct Node {
  struct Tenant {
    std::string parent;
    std::vector<uint64_t> leased = {0, 0};
    bool ever_charged = true;
  };
  std::map<std::string, Tenant> tenants;

  LedgerMeasures Measure() const {
    LedgerMeasures measures;
    for (const auto& [name, tenant] : tenants) {
      LedgerMeasures::Tenant& out = measures.tenants.emplace_back();
      out.name = name;
      out.parent = tenant.parent;
      for (const uint64_t bytes : tenant.leased) {
        LedgerMeasures::OnDevice& on = out.devices.emplace_back();
        on.charged[kLeased] = bytes;
        on.limit = 100;
        on.ever_charged = tenant.ever_charged;
      }
    }
    return measures;
  }
};

// "seconds:charged" for each point.
std::vector<std::string> Tell(const HistorySeries& series) {
  std::vector<std::string> points;
  for (const HistoryPoint& point : series.points) {
    points.push_back(
        absl::StrCat(absl::ToInt64Seconds(point.time - At(0)), ":", point.values.charged));
  }
  return points;
}

class HistoryTest : public ::testing::Test {
 protected:
  void Sample(int64_t seconds) { history_.Add(At(seconds), node_.Measure()); }
  std::vector<HistorySeries> ReadAll(int64_t seconds) {
    return history_.Read(At(seconds), node_.Measure(), {}, std::nullopt);
  }
  HistorySeries Read(int64_t seconds, const std::string& tenant, size_t device = 0) {
    auto all = history_.Read(At(seconds), node_.Measure(), {tenant}, device);
    EXPECT_THAT(all, SizeIs(1));
    return all.empty() ? HistorySeries() : all.front();
  }

  Node node_;
  History history_;
};

TEST_F(HistoryTest, KeepsChangesAlone) {
  node_.tenants["a"].leased[0] = 5;
  for (int i = 0; i < 10; ++i) Sample(i * 10);
  node_.tenants["a"].leased[0] = 7;
  for (int i = 10; i < 20; ++i) Sample(i * 10);
  EXPECT_THAT(Tell(Read(200, "a")), ElementsAre("0:5", "100:7"));
  // The present is a further point if it differs.
  node_.tenants["a"].leased[0] = 8;
  EXPECT_THAT(Tell(Read(203, "a")), ElementsAre("0:5", "100:7", "203:8"));
  EXPECT_THAT(Tell(Read(203, "a", 1)), ElementsAre("0:0"));
  EXPECT_EQ(history_.used(), History::kTenantUnits + 2 + 1);
  EXPECT_EQ(history_.Since(At(200)), At(0));
}

TEST_F(HistoryTest, HasAllValues) {
  LedgerMeasures measures;
  LedgerMeasures::OnDevice& on =
      measures.tenants.emplace_back(LedgerMeasures::Tenant{.name = "a"}).devices.emplace_back();
  on.charged[kLeased] = 5;
  on.charged[kRetained] = 2;
  on.limit = 10;
  on.guarantee = 3;
  on.waiting = 1;
  on.waited_for = 4;
  history_.Add(At(0), measures);
  const auto all = history_.Read(At(0), measures, {}, std::nullopt);
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].tenant, "a");
  EXPECT_FALSE(all[0].cut);
  ASSERT_THAT(all[0].points, SizeIs(1));
  EXPECT_EQ(all[0].points[0].values,
            (HistoryValues{.charged = 7, .limit = 10, .guarantee = 3, .waiting = 4, .leased = 5}));
}

TEST_F(HistoryTest, BeginsWithTheFirstCharge) {
  node_.tenants["a"].ever_charged = false;
  Sample(0);
  EXPECT_THAT(ReadAll(0), IsEmpty());
  EXPECT_EQ(history_.used(), 0u);
  node_.tenants["a"].ever_charged = true;
  node_.tenants["a"].leased[1] = 1;
  // Before the next sample.
  EXPECT_THAT(Tell(Read(5, "a", 1)), ElementsAre("5:1"));
  Sample(10);
  EXPECT_THAT(Tell(Read(15, "a", 1)), ElementsAre("10:1"));
  EXPECT_TRUE(history_.Knows("a"));
  EXPECT_FALSE(history_.Knows("b"));
}

TEST_F(HistoryTest, OneThatHasEndedStaysForAnHour) {
  node_.tenants["a"].leased = {5, 5};
  Sample(0);
  node_.tenants.erase("a");
  EXPECT_THAT(Tell(Read(5, "a")), ElementsAre("0:5", "5:0"));
  Sample(10);
  EXPECT_THAT(Tell(Read(20, "a")), ElementsAre("0:5", "10:0"));
  Sample(3600);
  EXPECT_THAT(Tell(Read(3605, "a")), ElementsAre("5:5", "10:0"));
  Sample(3610);
  EXPECT_THAT(ReadAll(3610), IsEmpty());
  EXPECT_EQ(history_.used(), 0u);
}

TEST_F(HistoryTest, OneThatIsThereAgainGoesOn) {
  node_.tenants["a"].leased = {5, 5};
  Sample(0);
  node_.tenants.erase("a");
  Sample(10);
  node_.tenants["a"].leased = {6, 0};
  Sample(20);
  EXPECT_THAT(Tell(Read(20, "a")), ElementsAre("0:5", "10:0", "20:6"));
  Sample(3620);
  EXPECT_THAT(Tell(Read(3620, "a")), ElementsAre("20:6"));
}

TEST_F(HistoryTest, DropsWhatIsOlderThanAnHour) {
  node_.tenants["a"];
  for (int i = 0; i < 1000; ++i) {
    node_.tenants["a"].leased[0] = static_cast<uint64_t>(i);
    Sample(i * 10);
  }
  const HistorySeries series = Read(9995, "a");
  EXPECT_THAT(series.points, SizeIs(361));
  EXPECT_EQ(series.points.front().time, At(9995 - 3600));
  EXPECT_EQ(series.points.front().values.charged, 639u);
  EXPECT_FALSE(series.cut);
}

TEST_F(HistoryTest, BetweenSamplesItTellsNothingOlderEither) {
  EXPECT_EQ(history_.Since(At(5)), At(5)) << "there is no sample";
  node_.tenants["a"].leased[0] = 5;
  Sample(0);
  node_.tenants["a"].leased[0] = 7;
  Sample(10);
  EXPECT_THAT(Tell(Read(3700, "a")), ElementsAre("100:7"));
}

TEST_F(HistoryTest, AClockThatIsSetBackBeginsItAnew) {
  node_.tenants["a"].leased[0] = 5;
  Sample(100);
  node_.tenants["a"].leased[0] = 6;
  Sample(99);  // a correction
  EXPECT_THAT(Tell(Read(100, "a")), ElementsAre("100:6"));
  Sample(20);
  EXPECT_THAT(Tell(Read(20, "a")), ElementsAre("20:6"));
  EXPECT_EQ(history_.Since(At(20)), At(20));
}

// --- Bounds --------------------------------------------------------------------------------------

TEST(HistoryBoundTest, TheGreediestFamilyLosesItsOldest) {
  constexpr size_t kMost = 100;
  History history({.most = kMost});
  Node node;
  node.tenants["calm"].leased[0] = 1;
  node.tenants["busy"];
  node.tenants["busy-child"].parent = "busy";
  for (int i = 0; i < 200; ++i) {
    node.tenants["busy"].leased[0] = 2 * static_cast<uint64_t>(i);
    node.tenants["busy-child"].leased[0] = static_cast<uint64_t>(i);
    if (i % 20 == 0) ++node.tenants["calm"].leased[0];
    history.Add(At(i), node.Measure());
    EXPECT_LE(history.used(), kMost);
  }
  const auto all = history.Read(At(200), node.Measure(), {}, size_t{0});
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(all[2].tenant, "calm");
  EXPECT_FALSE(all[2].cut);
  EXPECT_THAT(all[2].points, SizeIs(10));
  for (const size_t busy : {0, 1}) {
    EXPECT_TRUE(all[busy].cut) << all[busy].tenant;
    // About half of the other units, the newest.
    EXPECT_GT(all[busy].points.size(), 25u);
    EXPECT_EQ(all[busy].points.back().time, At(199));
  }
}

// As many as the daemon admits, each a family, on eight devices, while all of them change.
// A small family that would need the room keeps what it has, and so does the large one that asks.
TEST(HistoryBoundTest, ALargerFamilyTakesNothingFromOthers) {
  constexpr size_t kMost = 60;
  History history({.most = kMost});
  Node node;
  node.tenants["small"].leased[0] = 1;
  for (int i = 0; i < 10; ++i) {
    ++node.tenants["small"].leased[0];
    history.Add(At(i), node.Measure());
  }
  const auto before = history.Read(At(10), node.Measure(), {"small"}, size_t{0});
  ASSERT_THAT(before, SizeIs(1));
  // Tenants without a change have no interval that they could lose.
  for (int i = 0; i < 20; ++i) {
    node.tenants["large"];
    Node::Tenant& member = node.tenants[absl::StrCat("member-", i)];
    member.parent = "large";
    member.leased[0] = 1;
  }
  history.Add(At(11), node.Measure());
  EXPECT_LE(history.used(), kMost);
  const auto after = history.Read(At(12), node.Measure(), {"small"}, size_t{0});
  ASSERT_THAT(after, SizeIs(1));
  EXPECT_FALSE(after[0].cut);
  EXPECT_EQ(after[0].points.size(), before[0].points.size());
}

TEST(HistoryBoundTest, WithoutRoomItTellsThePresent) {
  History history({.most = History::kTenantUnits + 1});
  Node node;
  for (const uint64_t bytes : {5, 7}) {
    node.tenants["a"].leased = {bytes, bytes};
    history.Add(At(static_cast<int64_t>(bytes)), node.Measure());
  }
  const auto all = history.Read(At(9), node.Measure(), {}, std::nullopt);
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_THAT(Tell(all[0]), ElementsAre("7:7"));
  EXPECT_TRUE(all[0].cut);
  EXPECT_THAT(Tell(all[1]), ElementsAre("9:7")) << "the second device has no series";
  EXPECT_FALSE(history.Read(At(3607), node.Measure(), {}, size_t{0})[0].cut);
  history.Add(At(9), {});
  EXPECT_EQ(history.used(), 0u) << "the tenant has ended and left no interval";
}

TEST(HistoryBoundTest, FourThousandTenantsOnEightDevicesTakeFourMiB) {
  const size_t before = mallinfo2().uordblks;
  LedgerMeasures measures;
  for (int i = 0; i < 4096; ++i) {
    LedgerMeasures::Tenant& tenant = measures.tenants.emplace_back();
    tenant.name = absl::StrCat("a-tenant-with-a-long-name-of-up-to-sixty-three-characters-", i);
    tenant.devices.resize(8);
  }
  const size_t of_measures = mallinfo2().uordblks - before;
  History history;
  for (int round = 0; round < 20; ++round) {
    for (LedgerMeasures::Tenant& tenant : measures.tenants) {
      for (LedgerMeasures::OnDevice& on : tenant.devices) {
        on.charged[kLeased] = 1 + static_cast<uint64_t>(round);
      }
    }
    history.Add(At(round * 10), measures);
    ASSERT_LE(history.used(), History::kMostUnits);
  }
  EXPECT_GT(history.used(), History::kMostUnits - 100);
  const size_t bytes = mallinfo2().uordblks - before - of_measures;
  EXPECT_LE(bytes, size_t{4} << 20);
  EXPECT_THAT(history.Read(At(200), measures, {}, std::nullopt), SizeIs(4096 * 8));
}

// Tenants that come and go leave no more than the bound either.
TEST(HistoryBoundTest, TenantsWithoutEndAreForgotten) {
  History history({.most = 1000});
  Node node;
  node.tenants["calm"].leased[0] = 1;
  for (int i = 0; i < 2000; ++i) {
    if (i % 100 == 0) ++node.tenants["calm"].leased[0];
    Node now = node;
    now.tenants["team"];
    now.tenants[absl::StrCat("fresh-", i)] = {.parent = "team", .leased = {1, 1}};
    history.Add(At(i), now.Measure());
    ASSERT_LE(history.used(), 1000u);
  }
  const auto calm = history.Read(At(2000), node.Measure(), {"calm"}, size_t{0});
  ASSERT_THAT(calm, SizeIs(1));
  EXPECT_FALSE(calm[0].cut);
  EXPECT_THAT(calm[0].points, SizeIs(20));
}

// --- A model -------------------------------------------------------------------------------------

// Keeps everything.
struct Model {
  std::map<std::pair<std::string, size_t>, std::vector<HistoryPoint>> series;

  void Add(absl::Time now, const LedgerMeasures& measures) {
    std::set<std::pair<std::string, size_t>> seen;
    for (const LedgerMeasures::Tenant& tenant : measures.tenants) {
      for (size_t i = 0; i < tenant.devices.size(); ++i) {
        const LedgerMeasures::OnDevice& on = tenant.devices[i];
        auto found = series.find({tenant.name, i});
        if (found == series.end() && !on.ever_charged) continue;
        seen.emplace(tenant.name, i);
        Set(now, series[{tenant.name, i}],
            {.charged = on.charged[kLeased], .limit = on.limit, .leased = on.charged[kLeased]});
      }
    }
    for (auto& [key, points] : series) {
      if (!seen.contains(key)) Set(now, points, {});
    }
  }
  static void Set(absl::Time now, std::vector<HistoryPoint>& points, const HistoryValues& values) {
    if (points.empty() || points.back().values != values) points.push_back({now, values});
  }
};

// Tenants come, go, change and move to other families.
TEST(HistoryModelTest, KeptPointsAreThoseOfTheModel) {
  for (const int seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto pick = [&](int most) {
      return static_cast<int>(random() % static_cast<unsigned>(most));
    };
    const size_t most = seed % 2 == 0 ? 150 : History::kMostUnits;
    History history({.most = most, .kept = absl::Seconds(300)});
    Model model;
    Node node;
    for (int step = 0, now = 0; step < 1500; ++step, now += 1 + pick(11)) {
      const std::string name = absl::StrCat("t", pick(9));
      switch (pick(6)) {
        case 0:
          node.tenants.erase(name);
          break;
        case 1: {
          const std::string parent = absl::StrCat("t", pick(3));
          if (name > "t3") node.tenants[name].parent = pick(2) == 0 ? "" : parent;
          break;
        }
        default:
          node.tenants[name].leased[static_cast<size_t>(pick(2))] = static_cast<uint64_t>(pick(4));
      }
      const LedgerMeasures measures = node.Measure();
      history.Add(At(now), measures);
      model.Add(At(now), measures);
      ASSERT_LE(history.used(), most);
      const absl::Time since = history.Since(At(now));
      for (const HistorySeries& kept : history.Read(At(now), measures, {}, std::nullopt)) {
        const auto& all = model.series.at({kept.tenant, kept.device});
        // Each is a point of the model, but for the first, which may begin where others ended.
        ASSERT_FALSE(kept.points.empty());
        auto place = std::find_if(all.rbegin(), all.rend(), [&](const HistoryPoint& point) {
          return point.time <= kept.points.front().time;
        });
        ASSERT_NE(place, all.rend());
        std::vector<HistoryPoint> expected(std::prev(place.base()), all.end());
        expected.front().time = kept.points.front().time;
        ASSERT_EQ(kept.points.size(), expected.size()) << seed << " " << step << " " << kept.tenant;
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(kept.points[i].time, expected[i].time) << seed << " " << step;
          ASSERT_EQ(kept.points[i].values, expected[i].values) << seed << " " << step;
        }
        if (most < 1000 || kept.points.front().time == since) continue;
        // Nothing before it is missing: it begins with the tenant, perhaps one of an earlier name.
        ASSERT_FALSE(kept.cut);
        ASSERT_EQ(kept.points.front().time, std::prev(place.base())->time);
        ASSERT_TRUE(std::prev(place.base()) == all.begin() ||
                    std::prev(std::prev(place.base()))->values == HistoryValues())
            << seed << " " << step << " " << kept.tenant;
      }
    }
    node.tenants.clear();
    history.Add(At(100'000), node.Measure());
    history.Add(At(200'000), node.Measure());
    EXPECT_EQ(history.used(), 0u);
  }
}

}  // namespace
}  // namespace gpumemd
