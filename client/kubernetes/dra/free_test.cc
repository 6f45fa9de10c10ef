// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/free.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpumem::kubernetes {
namespace free_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr uint64_t kMib = 1 << 20, kGib = uint64_t{1} << 30;

v1::TenantInfo* Add(const std::string& name, const std::string& parent, uint64_t guarantee,
                    v1::ListTenantsResponse* tenants) {
  v1::TenantInfo* const info = tenants->add_tenants();
  info->mutable_usage()->set_tenant(name);
  info->mutable_made()->set_parent(parent);
  v1::DeviceUsage* const device = info->mutable_usage()->add_devices();
  device->set_device_uuid("GPU-a");
  device->set_guarantee_bytes(guarantee);
  return info;
}

NodeDevices Devices(uint64_t bytes = 80 * kGib) {
  return {{"gpu-a", {.uuid = "GPU-a", .product = "", .bytes = bytes}},
          {"gpu-b", {.uuid = "GPU-b", .product = "", .bytes = 8 * kGib}}};
}

TEST(FreeTest, GuaranteesAreTakenOff) {
  v1::ListTenantsResponse tenants;
  NodeDevices devices = Devices();
  SetFree(tenants, &devices);
  EXPECT_EQ(devices["gpu-a"].free, 80 * kGib);
  Add("one", "", 10 * kGib, &tenants);
  Add("two", "gone", 5 * kGib + 1, &tenants);
  // The team's members draw on its guarantee.
  v1::TenantInfo* const team = Add("team", "", 20 * kGib, &tenants);
  team->clear_made();
  Add("a", "team", 7 * kGib, &tenants);
  Add("b", "team", 8 * kGib, &tenants);
  SetFree(tenants, &devices);
  EXPECT_EQ(devices["gpu-a"].free, 45 * kGib - 2 * kMib) << "in whole steps";
  EXPECT_EQ(devices["gpu-b"].free, 8 * kGib);
  // Together they need more than it has.
  Add("c", "team", 9 * kGib, &tenants);
  SetFree(tenants, &devices);
  EXPECT_EQ(devices["gpu-a"].free, 41 * kGib - 2 * kMib);
  Add("all", "", 200 * kGib, &tenants);
  Add("more", "", UINT64_MAX, &tenants);
  SetFree(tenants, &devices);
  EXPECT_EQ(devices["gpu-a"].free, 0u);
}

TEST(FreeTest, CirclesEnd) {
  v1::ListTenantsResponse tenants;
  Add("root", "", 1 * kGib, &tenants);
  Add("a", "b", 1 * kGib, &tenants);
  Add("b", "a", 1 * kGib, &tenants);
  NodeDevices devices = Devices();
  SetFree(tenants, &devices);
  EXPECT_EQ(devices["gpu-a"].free, 79 * kGib);
}

TEST(FreeTest, ThePublishedAmountsAreRead) {
  EXPECT_THAT(FreeIn(R"({"spec": {"devices": [
      {"name": "gpu-a", "attributes": {"free": {"int": 7}}}, {"name": "gpu-b"},
      {"name": "gpu-c", "attributes": {"free": {"int": -7}}}, 5]}})"),
              ElementsAre(Pair("gpu-a", 7u)));
  EXPECT_THAT(FreeIn(""), IsEmpty());
  EXPECT_THAT(FreeIn("{}"), IsEmpty());
}

TEST(FreeTest, SmallChangesAreKeptBack) {
  const auto kept = [](uint64_t bytes, uint64_t was, uint64_t is, bool may_change = true) {
    NodeDevices devices = Devices(bytes);
    devices["gpu-a"].free = is;
    KeepFree({{"gpu-a", was}}, may_change, &devices);
    return devices["gpu-a"].free;
  };
  EXPECT_EQ(kept(80 * kGib, 10 * kGib, 11 * kGib - 2 * kMib), 10 * kGib);
  EXPECT_EQ(kept(80 * kGib, 10 * kGib, 11 * kGib), 11 * kGib);
  EXPECT_EQ(kept(80 * kGib, 10 * kGib, 9 * kGib), 9 * kGib);
  EXPECT_EQ(kept(80 * kGib, 10 * kGib, 0, /*may_change=*/false), 10 * kGib);
  EXPECT_EQ(kept(6400 * kMib, 1000 * kMib, 1098 * kMib), 1000 * kMib) << "1/64 is 100 MiB";
  EXPECT_EQ(kept(6400 * kMib, 1000 * kMib, 1100 * kMib), 1100 * kMib);
  EXPECT_EQ(kept(16, 5, 5), 5u);
  // One notable change has all of them written. A new device has the present amount.
  NodeDevices devices = Devices();
  devices["gpu-a"].free = 20 * kGib;
  devices["gpu-b"].free = 5 * kGib;
  KeepFree({{"gpu-a", 10 * kGib}, {"gpu-b", 5 * kGib + kMib}}, true, &devices);
  EXPECT_EQ(devices["gpu-b"].free, 5 * kGib);
  KeepFree({{"gpu-a", 10 * kGib}}, false, &devices);
  EXPECT_EQ(devices["gpu-a"].free, 10 * kGib);
  EXPECT_EQ(devices["gpu-b"].free, 5 * kGib);
}

}  // namespace free_test
}  // namespace gpumem::kubernetes
