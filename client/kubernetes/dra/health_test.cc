// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"

namespace gpumem::kubernetes {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

const DeviceHealth kGood = {Health::kHealthy, ""};
const DeviceHealth kGone = {Health::kUnhealthy, "gpumemd has no such GPU any more"};

TEST(HealthTest, DevicesThatGpumemdHasAreHealthy) {
  EXPECT_THAT(HealthOf({}, NodeDevices{{"a", {}}, {"b", {}}}),
              UnorderedElementsAre(Pair("a", kGood), Pair("b", kGood)));
  EXPECT_THAT(HealthOf({}, absl::UnavailableError("no daemon")), IsEmpty());
}

TEST(HealthTest, LostDevicesAreUnhealthyAndComeBack) {
  const HealthByDevice lost = HealthOf({{"a", kGood}, {"b", kGood}}, NodeDevices{{"b", {}}});
  EXPECT_THAT(lost, UnorderedElementsAre(Pair("a", kGone), Pair("b", kGood)));
  const HealthByDevice away = HealthOf(lost, absl::UnavailableError("no daemon"));
  const DeviceHealth unknown = {Health::kUnknown, "gpumemd: no daemon"};
  EXPECT_THAT(away, UnorderedElementsAre(Pair("a", unknown), Pair("b", unknown)));
  EXPECT_THAT(HealthOf(away, NodeDevices{{"b", {}}}),
              UnorderedElementsAre(Pair("a", kGone), Pair("b", kGood)));
  EXPECT_THAT(HealthOf(lost, NodeDevices{{"a", {}}, {"b", {}}}),
              UnorderedElementsAre(Pair("a", kGood), Pair("b", kGood)));
}

TEST(HealthTest, WatchersWaitForUpdatesAndTheEnd) {
  HealthFeed feed;
  EXPECT_EQ(feed.Wait(0, absl::InfinitePast()).number, 0);
  std::thread other([&] { feed.Update(NodeDevices{{"a", {}}}); });
  const HealthFeed::News first = feed.Wait(0, absl::InfiniteFuture());
  other.join();
  EXPECT_THAT(first.devices, UnorderedElementsAre(Pair("a", kGood)));
  feed.Close();
  const HealthFeed::News last = feed.Wait(first.number, absl::InfiniteFuture());
  EXPECT_TRUE(last.closed);
  EXPECT_EQ(last.number, first.number);
}

}  // namespace
}  // namespace gpumem::kubernetes
