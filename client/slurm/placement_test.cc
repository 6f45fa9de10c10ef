// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/bytes.h"

namespace gpumem::slurm {
namespace {

using ::testing::HasSubstr;

v1::Device Gpu(const std::string& uuid, uint64_t bytes) {
  v1::Device gpu;
  gpu.set_device_uuid(uuid);
  gpu.set_capacity_bytes(bytes);
  gpu.add_kinds(v1::KIND_VMM);
  return gpu;
}

v1::ListTenantsResponse Guaranteed(const std::string& uuid, uint64_t bytes) {
  v1::ListTenantsResponse tenants;
  v1::DeviceUsage* device = tenants.add_tenants()->mutable_usage()->add_devices();
  device->set_device_uuid(uuid);
  device->set_guarantee_bytes(bytes);
  return tenants;
}

const std::vector<v1::Device>& Two() {
  static const auto& gpus =
      *new std::vector<v1::Device>{Gpu("GPU-0", 8 * kGiB), Gpu("GPU-1", 8 * kGiB)};
  return gpus;
}

TEST(SlurmPlacementTest, TheGpuWithMostRoomIsTriedFirst) {
  const auto quotas = Quotas({.mib = 2048}, {}, Two(), Guaranteed("GPU-0", kGiB));
  ASSERT_TRUE(quotas.ok()) << quotas.status();
  ASSERT_EQ(quotas->size(), 2u);
  EXPECT_EQ((*quotas)[0].devices(0).device_uuid(), "GPU-1");
  EXPECT_EQ((*quotas)[1].devices(0).device_uuid(), "GPU-0");
  const v1::Quota& first = (*quotas)[0];
  EXPECT_EQ(first.limit_bytes(), 0u) << "nothing on other GPUs";
  EXPECT_TRUE(first.has_limit_bytes());
  EXPECT_EQ(first.total_limit_bytes(), 2 * kGiB);
  EXPECT_EQ(first.devices(0).limit_bytes(), 2 * kGiB);
  EXPECT_EQ(first.guarantees(0).guarantee_bytes(), 2 * kGiB);
}

TEST(SlurmPlacementTest, GpusOfTheJobShareItsMemory) {
  const auto quotas = Quotas({.mib = 2048, .gpus = {0, 1}}, {}, Two(), {});
  ASSERT_TRUE(quotas.ok()) << quotas.status();
  ASSERT_EQ(quotas->size(), 1u);
  const v1::Quota& quota = quotas->front();
  EXPECT_EQ(quota.total_limit_bytes(), 2 * kGiB);
  ASSERT_EQ(quota.devices_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(quota.devices(i).limit_bytes(), kGiB);
    EXPECT_EQ(quota.guarantees(i).guarantee_bytes(), kGiB);
  }
  EXPECT_THAT(Quotas({.mib = 1, .gpus = {2}}, {}, Two(), {}).status().message(),
              HasSubstr("has chosen GPU 2, and gpumemd has 2"));
}

TEST(SlurmPlacementTest, TheGuaranteeMayBeLessButNotMore) {
  const auto less = Quotas({.mib = 2048}, {.guarantee_mib = 512}, Two(), {});
  EXPECT_EQ((*less)[0].guarantees(0).guarantee_bytes(), 512 * kMiB);
  const auto none = Quotas({.mib = 2048}, {.guarantee_mib = 0}, Two(), {});
  EXPECT_EQ((*none)[0].guarantees_size(), 0);
  const auto more = Quotas({.mib = 2048}, {.guarantee_mib = 4096}, Two(), {});
  EXPECT_EQ((*more)[0].guarantees(0).guarantee_bytes(), 2 * kGiB);
}

TEST(SlurmPlacementTest, AGpuIsLargeEnoughOrRefused) {
  const auto quotas =
      Quotas({.mib = 4096}, {}, {Gpu("GPU-0", 2 * kGiB), Gpu("GPU-1", 4 * kGiB)}, {});
  ASSERT_EQ(quotas->size(), 1u);
  EXPECT_EQ((*quotas)[0].devices(0).device_uuid(), "GPU-1");
  EXPECT_EQ(Quotas({.mib = 8193}, {}, Two(), {}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(SlurmPlacementTest, TheConfigurationCountsGpusAlone) {
  v1::Device pinned;
  pinned.set_device_uuid("PINNED-0");
  pinned.set_capacity_bytes(64 * kGiB);
  pinned.add_kinds(v1::KIND_PINNED);
  const std::vector<v1::Device> gpus =
      Gpus({Gpu("GPU-0", 80 * kGiB), Gpu("GPU-1", 80 * kGiB + kMiB / 2), pinned});
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(ConfigurationLines("n1", "gpumem", gpus),
            "# slurm.conf\nGresTypes=gpumem\nNodeName=n1 Gres=gpumem:163840\n"
            "# gres.conf\nNodeName=n1 Name=gpumem Count=163840\n");
  EXPECT_EQ(ConfigurationLines("n1", "shard", gpus),
            "# slurm.conf\nGresTypes=gpu,shard\nNodeName=n1 Gres=gpu:2,shard:163840\n"
            "# gres.conf\n"
            "NodeName=n1 Name=gpu File=/dev/nvidia0\n"
            "NodeName=n1 Name=shard Count=81920 File=/dev/nvidia0\n"
            "NodeName=n1 Name=gpu File=/dev/nvidia1\n"
            "NodeName=n1 Name=shard Count=81920 File=/dev/nvidia1\n");
}

}  // namespace
}  // namespace gpumem::slurm
