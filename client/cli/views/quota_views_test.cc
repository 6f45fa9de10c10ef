// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/views/views.h"
#include "client/cli/views/views_samples.h"
#include "common/quota_keys.h"

namespace gpumem::cli {
namespace {

TEST(ViewsTest, Tenants) {
  EXPECT_EQ(TenantsView(TwoTenants(), false),
            "TENANT       CHARGED      LIMIT  TOTAL LIMIT    PINNED     LIMIT  SEGMENTS  SESSIONS  "
            "DENIALS  MADE BY\n"
            "training   64.00 MiB   4.00 GiB         none  8.00 MiB  1.00 GiB   2 of 16         1  "
            "      0  config\n"
            "user-1001   1.00 GiB  by device     2.00 GiB       0 B      none         1         1  "
            "      3  rule\n");
  EXPECT_EQ(TenantsView({}, false), "No tenants.\n");
}

// The daemon's answer for a tenant with a limit, an override of it, and pinned memory.
v1::GetQuotaResponse TrainingQuota() {
  v1::GetQuotaResponse response;
  v1::Quota& quota = *response.mutable_quota();
  quota.set_limit_bytes(4 * kGiB);
  quota.set_max_segments(16);
  quota.set_max_retained_bytes(0);
  quota.set_pinned_limit_bytes(kGiB);
  v1::Usage& usage = *response.mutable_usage();
  usage.set_tenant("training");
  usage.set_charged_bytes(64 * kMiB);
  usage.set_segments(1);
  usage.set_sessions(2);
  v1::DeviceUsage* device = usage.add_devices();
  device->set_device_uuid(kUuid0);
  device->set_charged_bytes(64 * kMiB);
  device->set_leased_bytes(64 * kMiB);
  device->set_limit_bytes(4 * kGiB);
  device->set_peak_bytes(kGiB);
  device = usage.add_devices();
  device->set_device_uuid(kPinnedUuid);
  device->set_charged_bytes(2 * kMiB);
  device->set_retained_bytes(2 * kMiB);
  device->set_limit_bytes(kGiB);
  device->set_peak_bytes(2 * kMiB);
  return response;
}

DeviceList TwoDevicesAndPinnedMemory() {
  DeviceList devices = TwoDevices();
  devices.push_back(GpusAndPinnedMemory().back());
  return devices;
}

TEST(ViewsTest, Quota) {
  EXPECT_EQ(
      QuotaView(TrainingQuota(), TwoDevicesAndPinnedMemory(), false),
      "TENANT training                     USED     LIMIT\n"
      "bytes on all devices           64.00 MiB      none\n"
      "bytes of pinned host memory     2.00 MiB  1.00 GiB\n"
      "segments                               1        16\n"
      "sessions                               2      none\n"
      "calls in flight                        0      none\n"
      "requests that wait                     0      none\n"
      "retained bytes on each device                  0 B\n"
      "denials                                0         -\n"
      "\n"
      "SETTING\n"
      "under tenant  -\n"
      "priority      0\n"
      "kind          the device's default\n"
      "scrub         no\n"
      "revocable     no\n"
      "release       trust\n"
      "\n"
      "DEVICE             CHARGED     LIMIT  USED     LEASED  RETAINED  LINGERING      PEAK\n"
      "0 HOST-00000000  64.00 MiB  4.00 GiB    2%  64.00 MiB       0 B        0 B  1.00 GiB\n"
      "3 PINNED          2.00 MiB  1.00 GiB   <1%        0 B  2.00 MiB        0 B  2.00 MiB\n");
}

TEST(ViewsTest, QuotaWithoutHeadersHasRowsAlone) {
  const Layout bare(kAnyWidth, /*with_headers=*/false);
  v1::GetQuotaResponse response = TrainingQuota();
  response.add_overridden("limit_bytes");
  const std::string quota = QuotaView(response, TwoDevicesAndPinnedMemory(), false, bare);
  for (const char* const word : {"TENANT", "USED", "SETTING", "DEVICE", "as operators set it"}) {
    EXPECT_EQ(quota.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(quota.find("bytes on all devices"), 0u) << quota;
  v1::ListTenantsResponse tenants = TwoTenants();
  tenants.mutable_tenants(0)->add_overridden("limit_bytes");
  const std::string list = TenantsView(tenants, false, bare);
  EXPECT_EQ(list.find("training"), 0u) << list;
  EXPECT_EQ(list.find("as operators set it"), std::string::npos);
}

TEST(ViewsTest, TheWideFormOfQuotasHasWhatTablesHide) {
  const Layout wide(kAnyWidth, true, /*with_details=*/true);
  v1::ListTenantsResponse tenants = TwoTenants();
  v1::TenantInfo& tenant = *tenants.mutable_tenants(0);
  tenant.add_overridden("limit_bytes");
  tenant.add_overridden("priority");
  tenant.mutable_usage()->set_in_flight(2);
  tenant.mutable_usage()->mutable_devices(0)->set_retained_bytes(8 * kMiB);
  v1::DenialCount& denials = *tenant.mutable_usage()->add_denials_by_cause();
  denials.set_cause(v1::Denial::CAUSE_DEVICE_LIMIT);
  denials.set_count(3);
  const std::string list = TenantsView(tenants, false, wide);
  EXPECT_NE(list.find("  RETAINED  IN FLIGHT  DENIED FOR       SET BY OPERATORS\n"),
            std::string::npos)
      << list;
  EXPECT_NE(list.find("  8.00 MiB          2  device limit: 3  limit_bytes,priority\n"),
            std::string::npos)
      << list;

  v1::GetQuotaResponse response = TrainingQuota();
  v1::DeviceUsage& device = *response.mutable_usage()->mutable_devices(0);
  device.set_revocable_bytes(kMiB);
  device.set_obtainable_bytes(3 * kGiB);
  const std::string quota = QuotaView(response, TwoDevicesAndPinnedMemory(), false, wide);
  EXPECT_NE(quota.find("  REVOCABLE  UNBROKERED  OBTAINABLE  DEVICE UUID\n"), std::string::npos)
      << quota;
  EXPECT_NE(quota.find(absl::StrCat("   1.00 MiB         0 B    3.00 GiB  ", kUuid0, "\n")),
            std::string::npos)
      << quota;
}

TEST(ViewsTest, QuotaHasTheRowOfEachKeyOnce) {
  v1::GetQuotaResponse response;
  response.mutable_quota()->set_max_publications(1);
  response.mutable_quota()->set_tier_limit_bytes(1);
  response.mutable_quota()->set_swappable(true);
  response.mutable_usage()->set_preload(v1::PRELOAD_MODE_ACCOUNT);
  const std::string view = "\n" + QuotaView(response, {}, false);
  for (const QuotaKey& key : kQuotaKeys) {
    if (key.row.empty()) continue;
    const std::string row = absl::StrCat("\n", key.row, "  ");
    const size_t found = view.find(row);
    ASSERT_NE(found, std::string::npos) << key.row;
    EXPECT_EQ(view.find(row, found + 1), std::string::npos) << key.row;
  }
}

TEST(ViewsTest, QuotaOfASwappableTenantSaysWhenItsSessionsAreAsked) {
  v1::GetQuotaResponse response;
  response.mutable_quota()->set_min_residence_ms(30'000);
  EXPECT_EQ(QuotaView(response, {}, false).find("residence"), std::string::npos);
  // An operator has set it: it holds for sessions that offer themselves.
  response.add_overridden("min_residence_ms");
  EXPECT_NE(QuotaView(response, {}, false).find("\nminimum residence  30s*\n"), std::string::npos)
      << QuotaView(response, {}, false);
  response.clear_overridden();
  response.mutable_quota()->set_swappable(true);
  const std::string view = QuotaView(response, {}, false);
  for (const char* row : {"\nswappable              yes\n", "\nminimum residence      30s\n",
                          "\nsuspend when idle for  0\n"}) {
    EXPECT_NE(view.find(row), std::string::npos) << view;
  }
}

TEST(ViewsTest, QuotaWithGuaranteeAndWhatOperatorsSet) {
  v1::GetQuotaResponse response = TrainingQuota();
  v1::Quota& quota = *response.mutable_quota();
  quota.set_guarantee_bytes(32 * kMiB);
  quota.set_priority(-5);
  quota.set_kind(v1::KIND_IPC);
  quota.set_scrub(true);
  quota.set_revocable(true);
  quota.set_release(v1::RELEASE_POLICY_ON_EXIT);
  quota.set_parent("lab");
  quota.set_max_waiting(4);
  quota.set_max_publications(8);
  v1::Usage& usage = *response.mutable_usage();
  usage.set_waiting(1);
  usage.set_preload(v1::PRELOAD_MODE_BROKER);  // of "lab"
  usage.mutable_devices(0)->set_borrowed_bytes(32 * kMiB);
  usage.mutable_devices(0)->set_waiting(1);
  usage.mutable_devices(0)->set_waiting_bytes(8 * kMiB);
  for (const char* field : {"guarantee_bytes", "limit_bytes", "pinned_limit_bytes", "priority",
                            "max_waiting", "scrub"}) {
    response.add_overridden(field);
  }
  EXPECT_EQ(
      QuotaView(response, TwoDevicesAndPinnedMemory(), false),
      "TENANT training                     USED      LIMIT\n"
      "bytes on all devices           64.00 MiB       none\n"
      "bytes of pinned host memory     2.00 MiB  1.00 GiB*\n"
      "segments                               1         16\n"
      "sessions                               2       none\n"
      "calls in flight                        0       none\n"
      "requests that wait                     1         4*\n"
      "publications                           0          8\n"
      "retained bytes on each device                   0 B\n"
      "denials                                0          -\n"
      "\n"
      "SETTING\n"
      "under tenant  lab\n"
      "priority      -5*\n"
      "kind          ipc\n"
      "scrub         yes*\n"
      "revocable     yes\n"
      "release       on-exit\n"
      "preload       broker\n"
      "\n"
      "DEVICE             CHARGED   GUARANTEE   BORROWED      LIMIT  USED     LEASED  RETAINED  "
      "LINGERING      PEAK  WAITING FOR\n"
      "0 HOST-00000000  64.00 MiB  32.00 MiB*  32.00 MiB  4.00 GiB*    2%  64.00 MiB       0 B  "
      "      0 B  1.00 GiB     8.00 MiB\n"
      "3 PINNED          2.00 MiB           -          -  1.00 GiB*   <1%        0 B  2.00 MiB  "
      "      0 B  2.00 MiB          0 B\n"
      "* as operators set it, over what the configuration says (gpumemctl quota unset training "
      "takes it back)\n");
  EXPECT_NE(QuotaView(response, TwoDevicesAndPinnedMemory(), true).find(" 33554432* "),
            std::string::npos);
}

TEST(ViewsTest, TheHostTierIsShownWhereItIsUsedOrLimited) {
  constexpr char kTierUuid[] = "TIER-00000000-0000-0000-0000-000000000000";
  v1::GetQuotaResponse quota = TrainingQuota();
  EXPECT_EQ(QuotaView(quota, TwoDevices(), false).find("host tier"), std::string::npos);
  EXPECT_EQ(TenantsView(TwoTenants(), false).find("TIER"), std::string::npos);
  v1::DeviceUsage* tier = quota.mutable_usage()->add_devices();
  tier->set_device_uuid(kTierUuid);
  tier->set_charged_bytes(6 * kMiB);
  tier->set_limit_bytes(2 * kGiB);
  quota.mutable_quota()->set_tier_limit_bytes(2 * kGiB);
  const std::string text = QuotaView(quota, TwoDevices(), false);
  EXPECT_NE(text.find("bytes in the host tier          6.00 MiB  2.00 GiB"), std::string::npos)
      << text;
  EXPECT_NE(text.find("bytes of pinned host memory     2.00 MiB  1.00 GiB"), std::string::npos)
      << text;

  v1::ListTenantsResponse tenants = TwoTenants();
  *tenants.mutable_tenants(1)->mutable_usage()->add_devices() = *tier;
  const std::string list = TenantsView(tenants, false);
  EXPECT_NE(list.find("TIER  LIMIT"), std::string::npos) << list;
  EXPECT_NE(list.find("6.00 MiB   none"), std::string::npos) << list;
}

TEST(ViewsTest, TenantsStandUnderThatWhichTheyAreUnder) {
  v1::ListTenantsResponse response;
  const auto add = [&](const char* name, const char* parent) {
    v1::TenantInfo& tenant = *response.add_tenants();
    tenant.mutable_usage()->set_tenant(name);
    tenant.mutable_quota()->set_parent(parent);
    for (const char* uuid : {kUuid0, kUuid1, kPinnedUuid}) {
      v1::DeviceUsage& device = *tenant.mutable_usage()->add_devices();
      device.set_device_uuid(uuid);
      device.set_limit_bytes(4 * kGiB);
    }
    return &tenant;
  };
  v1::TenantInfo* alice = add("alice", "lab");
  alice->mutable_quota()->set_priority(3);
  alice->add_overridden("priority");
  alice->mutable_usage()->set_waiting(2);
  alice->mutable_quota()->set_max_waiting(4);
  v1::TenantInfo* lab = add("lab", "");
  lab->set_configured(true);
  // On equal devices a percentage is the same number of bytes.
  lab->mutable_quota()->add_devices()->set_device_uuid(kUuid0);
  v1::DeviceGuarantee& guarantee = *lab->mutable_quota()->add_guarantees();
  guarantee.set_device_uuid(kUuid0);
  guarantee.set_guarantee_bytes(kGiB);
  add("left", "gone")->add_overridden("scrub");
  EXPECT_EQ(TenantsView(response, false),
            "TENANT   CHARGED  GUARANTEE     LIMIT  PRIORITY  WAITING  SEGMENTS  SESSIONS  DENIALS "
            " MADE BY\n"
            "lab          0 B  by device  4.00 GiB         0        0         0         0        0 "
            " config\n"
            "  alice      0 B          -      none        3*   2 of 4         0         0        0 "
            " rule\n"
            "left         0 B          -      none         0        0         0         0        0 "
            " rule*\n"
            "* as operators set it (gpumemctl quota get TENANT shows what; quota unset takes it "
            "back)\n");
}

}  // namespace
}  // namespace gpumem::cli
