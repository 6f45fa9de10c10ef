// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "client/cli/views/views.h"
#include "client/cli/views/views_samples.h"
#include "common/bytes.h"

namespace gpumem::cli {
namespace {

// A job that runs for the second time.
v1::GetTenantUsageResponse AJob() {
  v1::GetTenantUsageResponse response;
  v1::TenantUsage& now = *response.add_usages();
  now.set_tenant("job-17");
  now.set_owner("slurm");
  now.set_user(1000);
  now.set_created_ms(1'700'000'000'000);  // 2023-11-14 22:13:20 UTC
  v1::TenantDeviceUsage& device = *now.add_devices();
  device.set_device_uuid(kUuid0);
  device.set_charged_bytes(kGiB);
  device.set_limit_bytes(40 * kGiB);
  device.set_guarantee_bytes(40 * kGiB);
  device.set_peak_bytes(2 * kGiB);
  device.set_byte_seconds(kGiB * 5400);
  now.add_devices()->set_device_uuid(kUuid1);  // it may have nothing there
  v1::TenantDeviceUsage& pinned = *now.add_devices();
  pinned.set_device_uuid(kPinnedUuid);
  pinned.set_limit_bytes(kGiB);
  v1::TenantUsage& before = *response.add_usages();
  before = now;
  before.set_created_ms(1'699'990'000'000);
  before.set_ended_ms(1'699'993'600'000);
  before.mutable_devices(0)->set_charged_bytes(0);
  before.mutable_devices(2)->set_peak_bytes(kMiB);
  return response;
}

TEST(UsageViewTest, HasATableForEachRunOfAJob) {
  EXPECT_EQ(UsageView(AJob(), TwoDevicesAndPinnedMemory(), false, 80),
            "Tenant job-17 of slurm, uid 1000\n"
            "  from 2023-11-14 22:13:20 UTC: is there\n"
            "DEVICE            CHARGED      LIMIT  GUARANTEE      PEAK  GIB-HOURS\n"
            "0 HOST-00000000  1.00 GiB  40.00 GiB  40.00 GiB  2.00 GiB       1.50\n"
            "\n"
            "Tenant job-17 of slurm, uid 1000\n"
            "  from 2023-11-14 19:26:40 to 2023-11-14 20:26:40 UTC: has ended\n"
            "DEVICE           CHARGED      LIMIT  GUARANTEE      PEAK  GIB-HOURS\n"
            "0 HOST-00000000        -  40.00 GiB  40.00 GiB  2.00 GiB       1.50\n"
            "3 PINNED               -   1.00 GiB        0 B  1.00 MiB          0\n");
}

TEST(UsageViewTest, IsExactOnDemand) {
  v1::GetTenantUsageResponse job = AJob();
  job.mutable_usages()->RemoveLast();
  job.mutable_usages(0)->set_ending(true);
  EXPECT_EQ(UsageView(job, TwoDevices(), true),
            "Tenant job-17 of slurm, uid 1000\n"
            "  from 2023-11-14 22:13:20 UTC: has ended, and still has memory or sessions\n"
            "DEVICE              CHARGED        LIMIT    GUARANTEE        PEAK   BYTE-SECONDS\n"
            "0 HOST-00000000  1073741824  42949672960  42949672960  2147483648  5798205849600\n");
}

TEST(UsageViewTest, OfAConfiguredTenantItHasNoTimes) {
  v1::GetTenantUsageResponse response;
  v1::TenantUsage& usage = *response.add_usages();
  usage.set_tenant("lab\x1b[2J");
  v1::TenantDeviceUsage& device = *usage.add_devices();
  device.set_device_uuid(kUuid1);
  device.set_limit_bytes(kGiB);
  EXPECT_EQ(UsageView(response, TwoDevices(), false),
            "Tenant lab?[2J\n"
            "DEVICE           CHARGED     LIMIT  GUARANTEE  PEAK  GIB-HOURS\n"
            "1 HOST-00000001      0 B  1.00 GiB        0 B   0 B          0\n");
  EXPECT_EQ(UsageView(response, TwoDevices(), false, Layout(80, /*with_headers=*/false)),
            "1 HOST-00000001      0 B  1.00 GiB        0 B   0 B          0\n");
}

}  // namespace
}  // namespace gpumem::cli
