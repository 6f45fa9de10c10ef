// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/map_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/views/holdings.h"
#include "client/cli/views/views_samples.h"

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

void Add(v1::ListTenantsResponse* tenants, const std::string& name, uint64_t leased,
         uint64_t retained = 0, uint64_t lingering = 0, const std::string& parent = "") {
  v1::TenantInfo* tenant = tenants->add_tenants();
  tenant->mutable_usage()->set_tenant(name);
  tenant->mutable_quota()->set_parent(parent);
  v1::DeviceUsage* usage = tenant->mutable_usage()->add_devices();
  usage->set_device_uuid(kUuid0);
  usage->set_leased_bytes(leased);
  usage->set_retained_bytes(retained);
  usage->set_lingering_bytes(lingering);
  usage->set_charged_bytes(leased + retained + lingering);
}

DeviceList OneDevice() {
  DeviceList devices = TwoDevices();
  devices.pop_back();
  return devices;
}

std::string Shown(const DeviceList& devices, const v1::ListTenantsResponse& tenants,
                  const MapOptions& options) {
  return ToString(MapView(devices, tenants, options), false, options.columns);
}

TEST(HoldingsTest, ATenantIsToldWithoutThoseUnderIt) {
  v1::ListTenantsResponse tenants;
  Add(&tenants, "team", 3 * kGiB, kGiB);
  Add(&tenants, "member", 2 * kGiB, kGiB, 0, "team");
  Add(&tenants, "idle", 0);
  DeviceList devices = TwoDevices();
  devices[0].set_driver_free_bytes(3 * kGiB);
  const DeviceHoldings holdings = HoldingsOn(devices[0], tenants);
  ASSERT_THAT(holdings.tenants, SizeIs(2));
  EXPECT_EQ(holdings.tenants[0].tenant, "member");
  EXPECT_EQ(holdings.tenants[0].held(), 3 * kGiB);
  EXPECT_EQ(holdings.tenants[1].tenant, "team");
  EXPECT_EQ(holdings.tenants[1].leased, kGiB);
  EXPECT_EQ(holdings.tenants[1].retained, 0u);
  EXPECT_EQ(holdings.all.held(), 4 * kGiB);
  EXPECT_EQ(holdings.outside, kGiB);
  EXPECT_EQ(holdings.free, 3 * kGiB);
}

TEST(ApportionTest, BySizeWithACellForEachPart) {
  EXPECT_THAT(Apportion({50, 25, 25}, 8), ElementsAre(4, 2, 2));
  EXPECT_THAT(Apportion({1, 1, 1}, 10), ElementsAre(4, 3, 3));
  EXPECT_THAT(Apportion({1, 0, 1'000'000}, 100), ElementsAre(1, 0, 99));
  EXPECT_THAT(Apportion({1, 1, 1'000'000, 500'000}, 11), ElementsAre(1, 1, 6, 3));
  EXPECT_THAT(Apportion({0, 0}, 10), ElementsAre(0, 0));
  EXPECT_THAT(Apportion({1, 1, 1}, 2), ElementsAre(1, 1, 1));  // not enough cells
  for (uint64_t seed = 1; seed < 200; ++seed) {
    const std::vector<uint64_t> parts = {seed * 7919 % 97, seed * 104729 % 1009, seed, seed * seed};
    const std::vector<size_t> cells = Apportion(parts, 312);
    EXPECT_EQ(std::accumulate(cells.begin(), cells.end(), size_t{0}), 312u);
  }
}

TEST(MapViewTest, BlocksAreProportionalToBytes) {
  v1::ListTenantsResponse tenants;
  Add(&tenants, "training", 2 * kGiB, kGiB, kGiB / 2);
  Add(&tenants, "b", kGiB / 2);
  const std::string text = Shown(OneDevice(), tenants, {.columns = 80, .rows = 2});
  EXPECT_EQ(text,
            "0 HOST-00000000  host memory  8.00 GiB, 50% held\n"
            "  AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAaaaaaaaaaaaaaaaaaaa~~~~~~~~~~BBBBBBBBBB\n"
            "  ..............................................................................\n"
            "     TENANT        LEASED  RETAINED   LINGERING         ALL  SHARE\n"
            "  A  training    2.00 GiB  1.00 GiB  512.00 MiB    3.50 GiB    44%\n"
            "  B  b         512.00 MiB       0 B         0 B  512.00 MiB     6%\n"
            "  .  (free)                                        4.00 GiB    50%\n"
            "\n"
            "A leased, a retained, ~ lingering behind the letters of the tenant\n");
}

TEST(MapViewTest, WhatIsNotTheBrokersAndWhatIsOnItsWayIsShown) {
  v1::ListTenantsResponse tenants;
  Add(&tenants, "a", kGiB);
  tenants.mutable_tenants(0)->mutable_usage()->mutable_devices(0)->set_charged_bytes(2 * kGiB);
  DeviceList devices = OneDevice();
  devices[0].set_driver_free_bytes(4 * kGiB);
  const std::string text = Shown(devices, tenants, {.columns = 18, .rows = 1, .exact = true});
  EXPECT_THAT(text, HasSubstr("\n  AA++xxxx........\n"));
  const std::string wide = Shown(devices, tenants, {.columns = 80, .rows = 1, .exact = true});
  EXPECT_THAT(wide, HasSubstr("  x  (past the broker)"));
  EXPECT_THAT(wide, HasSubstr(absl::StrCat(2 * kGiB)));
}

TEST(MapViewTest, MoreTenantsThanLettersShareOne) {
  v1::ListTenantsResponse tenants;
  for (int i = 0; i < 30; ++i) Add(&tenants, absl::StrCat("t", i), (100 - i) * kMiB);
  const std::string text = Shown(OneDevice(), tenants, {.columns = 80, .rows = 4});
  EXPECT_THAT(text, HasSubstr("  Z  t25"));
  EXPECT_THAT(text, HasSubstr("  *  t26"));
  EXPECT_THAT(text, HasSubstr("  *  t29"));
}

TEST(MapViewTest, EveryLineFitsAndColoursAddNoCharacter) {
  v1::ListTenantsResponse tenants;
  Add(&tenants, "a-tenant-with-a-rather-long-name", 2 * kGiB, kGiB, kGiB / 2);
  for (const size_t columns : {5u, 40u, 80u, 133u}) {
    for (const Line& line : MapView(TwoDevices(), tenants, {.columns = columns})) {
      if (columns >= 80) {
        EXPECT_LE(line.width(), columns);
      }
      EXPECT_LE(line.ToString(false, columns).size(), columns);
    }
  }
  EXPECT_THAT(ToString(MapView(TwoDevices(), tenants, {}), true, 80), HasSubstr("\x1b[30;46mAAAA"));
  EXPECT_THAT(MapView({}, {}, {}), SizeIs(1));
}

TEST(MapViewTest, TheNamesOfColumnsCanBeLeftOut) {
  v1::ListTenantsResponse tenants;
  Add(&tenants, "training", 2 * kGiB);
  const std::string with = Shown(OneDevice(), tenants, {.columns = 80});
  const std::string without = Shown(OneDevice(), tenants, {.columns = 80, .headers = false});
  EXPECT_THAT(with, HasSubstr("TENANT"));
  EXPECT_THAT(with, HasSubstr("A leased, a retained"));
  EXPECT_EQ(without.find("TENANT"), std::string::npos);
  EXPECT_EQ(without.find("A leased, a retained"), std::string::npos);
  EXPECT_THAT(without, HasSubstr("\n  A  training"));
}

}  // namespace
}  // namespace gpumem::cli
