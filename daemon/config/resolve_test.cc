// SPDX-License-Identifier: Apache-2.0
// Quotas and pinned memory: percentages and defaults once the devices are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "daemon/config/config.h"

namespace gpumemd {
namespace resolve_test {

using ::testing::IsEmpty;

using gpumem::kGiB;

absl::StatusOr<Config> Parse(absl::string_view text) {
  return ParseConfig(text, "gpumem.toml", SystemNames());
}

TEST(ConfigTest, ATenantsLimitGoesBeforeTheDefaultsOfADevice) {
  absl::StatusOr<Config> config = Parse(R"(
[[tenant]]
name = "own"
limit = "3GiB"
[[tenant]]
name = "inherits"
[tenant_defaults]
limit = "2GiB"
device = [{uuid = "GPU-1", limit = "1GiB"}]
[[rule]]
tenant = "own"
uid = 1
[[rule]]
tenant = "inherits"
default = true
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(QuotaOf(*config, "own").device_limits, IsEmpty());
  EXPECT_EQ(QuotaOf(*config, "own").limit, SizeLimit{.bytes = 3 * kGiB});
  EXPECT_EQ(QuotaOf(*config, "inherits"), config->tenant_defaults);
  EXPECT_EQ(QuotaOf(*config, "nobody"), config->tenant_defaults);
}

TEST(ConfigTest, ResolvesPercentagesOnEachDevice) {
  QuotaConfig quota{.limit = SizeLimit{.percent = 50},
                    .device_limits = {{"B", {.percent = 10}}, {"gone", {.bytes = 1}}},
                    .total_limit_bytes = 7,
                    .max_segments = 1,
                    .max_sessions = 2,
                    .max_in_flight = 3,
                    .max_retained = SizeLimit{.percent = 25},
                    .release = ReleasePolicy::kOnExit};
  std::vector<DeviceInfo> devices = {{.uuid = "A", .capacity_bytes = 1001},
                                     {.uuid = "B", .capacity_bytes = 2000}};
  EXPECT_EQ(ResolveQuota(quota, devices), (Quota{.device_limits = {{"A", 500}, {"B", 200}},
                                                 .total_limit_bytes = 7,
                                                 .max_segments = 1,
                                                 .max_sessions = 2,
                                                 .max_in_flight = 3,
                                                 .device_max_retained = {{"A", 250}, {"B", 500}},
                                                 .release = ReleasePolicy::kOnExit}));
  EXPECT_EQ(ResolveQuota({.limit = SizeLimit{.bytes = 5}, .max_retained = SizeLimit{.bytes = 6}},
                         devices),
            (Quota{.limit_bytes = 5, .max_retained_bytes = 6}));
  EXPECT_EQ(ResolveQuota({}, devices), Quota{});
  EXPECT_EQ(SizeLimit{.percent = 100}.Of(141'000'000'000), 141'000'000'000u);
}

TEST(ConfigTest, PinnedMemoryHasALimitOfItsOwn) {
  const std::vector<DeviceInfo> devices = {
      {.uuid = "GPU-1", .capacity_bytes = 1000, .kinds = {Kind::kVmm, Kind::kIpc}},
      {.uuid = "PINNED-0", .capacity_bytes = 400, .kinds = {Kind::kPinned}}};
  // Limits for devices do not apply to it, and its limit applies to no device.
  QuotaConfig quota{.limit = SizeLimit{.percent = 50}};
  EXPECT_EQ(ResolveQuota(quota, devices), (Quota{.device_limits = {{"GPU-1", 500}}}));
  quota = {.pinned_limit = SizeLimit{.percent = 25}};
  EXPECT_EQ(ResolveQuota(quota, devices), (Quota{.pinned_limit_bytes = 100}));
  quota = {.pinned_limit = SizeLimit{.bytes = 7}};
  EXPECT_EQ(ResolveQuota(quota, devices), (Quota{.pinned_limit_bytes = 7}));
  quota = {.pinned_limit = SizeLimit{.bytes = 0}};
  EXPECT_EQ(ResolveQuota(quota, devices), (Quota{.pinned_limit_bytes = 0}));
  // Its retained bytes count like a device's.
  quota = {.max_retained = SizeLimit{.percent = 10}};
  EXPECT_EQ(ResolveQuota(quota, devices),
            (Quota{.device_max_retained = {{"GPU-1", 100}, {"PINNED-0", 40}}}));
  // On a node that has none of it, bytes are still bytes, and a share is one of nothing.
  const auto gpu_alone = absl::MakeConstSpan(devices).first(1);
  quota = {.pinned_limit = SizeLimit{.bytes = 7}};
  EXPECT_EQ(ResolveQuota(quota, gpu_alone), (Quota{.pinned_limit_bytes = 7}));
  quota = {.pinned_limit = SizeLimit{.percent = 25}};
  EXPECT_EQ(ResolveQuota(quota, gpu_alone), Quota{});
}

TEST(ConfigTest, TheHostTierHasALimitOfItsOwn) {
  const std::vector<DeviceInfo> devices = {
      {.uuid = "GPU-1", .capacity_bytes = 1000, .kinds = {Kind::kVmm}},
      {.uuid = "PINNED-0", .capacity_bytes = 400, .kinds = {Kind::kPinned}},
      {.uuid = "TIER-0", .capacity_bytes = 800, .kinds = {Kind::kTier}}};
  QuotaConfig quota = {.pinned_limit = SizeLimit{.percent = 25},
                       .tier_limit = SizeLimit{.percent = 50}};
  EXPECT_EQ(ResolveQuota(quota, devices),
            (Quota{.pinned_limit_bytes = 100, .tier_limit_bytes = 400}));
  quota = {.tier_limit = SizeLimit{.bytes = 7}};
  EXPECT_EQ(ResolveQuota(quota, devices), (Quota{.tier_limit_bytes = 7}));
  quota = {.limit = SizeLimit{.percent = 50}};
  EXPECT_EQ(ResolveQuota(quota, devices), (Quota{.device_limits = {{"GPU-1", 500}}}));
}

TEST(ConfigTest, TierCapacityIsOfTheMachinesMemory) {
  EXPECT_EQ(TierCapacity(Parse("").value(), 16 * kGiB).value(), 0u);
  EXPECT_EQ(TierCapacity(Parse("[tier]\nprefault = true").value(), 16 * kGiB).value(), 0u);
  EXPECT_EQ(TierCapacity(Parse("[tier]\ncapacity = \"50%\"").value(), 16 * kGiB).value(), 8 * kGiB);
  EXPECT_EQ(TierCapacity(Parse("[tier]\ncapacity = \"16GiB\"").value(), 12 * kGiB).status(),
            absl::InvalidArgumentError(
                "the configuration sets 16.00 GiB of the host tier, and this machine has 12.00 "
                "GiB of memory; write a smaller [tier] capacity, or a percentage"));
}

TEST(ConfigTest, PinnedCapacityIsOfTheMachinesMemory) {
  EXPECT_EQ(PinnedCapacity(Parse("").value(), 16 * kGiB).value(), 4 * kGiB);
  EXPECT_EQ(PinnedCapacity(Parse("[pinned]\ncapacity = \"0\"").value(), 16 * kGiB).value(), 0u);
  EXPECT_EQ(PinnedCapacity(Parse("[pinned]\ncapacity = 0").value(), 16 * kGiB).value(), 0u);
  const Config config = Parse("[pinned]\ncapacity = \"16GiB\"").value();
  EXPECT_EQ(PinnedCapacity(config, 16 * kGiB).value(), 16 * kGiB);
  EXPECT_EQ(PinnedCapacity(config, 12 * kGiB).status(),
            absl::InvalidArgumentError(
                "the configuration sets 16.00 GiB of pinned memory, and this machine has 12.00 "
                "GiB of memory; write a smaller [pinned] capacity, or a percentage"));
}

}  // namespace resolve_test
}  // namespace gpumemd
