// SPDX-License-Identifier: Apache-2.0
#include "client/cli/effects/effects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/bytes.h"

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DeviceList TwoGpus() {
  DeviceList devices(2);
  devices[0].set_device_uuid("GPU-aaaa");
  devices[1].set_index(1);
  devices[1].set_device_uuid("GPU-bbbb");
  return devices;
}

v1::Usage UsageOf(const std::string& tenant, uint64_t charged, uint64_t retained) {
  v1::Usage usage;
  usage.set_tenant(tenant);
  for (const char* uuid : {"GPU-aaaa", "GPU-bbbb"}) {
    v1::DeviceUsage* device = usage.add_devices();
    device->set_device_uuid(uuid);
    device->set_charged_bytes(charged);
    device->set_retained_bytes(retained);
  }
  return usage;
}

TEST(EffectsTest, DrainTakesFromThoseWhoComeLater) {
  v1::GetStatusResponse status;
  status.set_sessions(2);
  status.set_segments(1);
  const Effects drain = DrainEffects(status, /*resume=*/false);
  EXPECT_TRUE(drain.takes);
  EXPECT_THAT(drain.lines,
              ElementsAre("no new sessions or requests are admitted",
                          "present sessions keep what they hold: 2 sessions, 1 segment"));
  EXPECT_THAT(DrainEffects(status, /*resume=*/true).lines, IsEmpty());
  status.set_draining(true);
  EXPECT_THAT(DrainEffects(status, /*resume=*/false).lines, IsEmpty());
  const Effects undrain = DrainEffects(status, /*resume=*/true);
  EXPECT_FALSE(undrain.takes);
  EXPECT_THAT(undrain.lines, ElementsAre("new sessions and requests are admitted again"));
}

TEST(EffectsTest, AReloadHasTheChangesAndTheNoticesOfItsCheck) {
  v1::ReloadResponse checked;
  EXPECT_THAT(ReloadEffects(checked).lines, IsEmpty());
  checked.add_changes("tenant \"a\": new");
  checked.add_notices("only a restart can apply that");
  const Effects effects = ReloadEffects(checked);
  EXPECT_FALSE(effects.takes);
  EXPECT_THAT(effects.lines, ElementsAre("tenant \"a\": new"));
  EXPECT_THAT(effects.notices, ElementsAre("only a restart can apply that"));
}

TEST(EffectsTest, TrimNamesThoseWithMoreThanIsKept) {
  v1::ListTenantsResponse tenants;
  *tenants.add_tenants()->mutable_usage() = UsageOf("a", 2 * kGiB, 2 * kGiB);
  *tenants.add_tenants()->mutable_usage() = UsageOf("b", kGiB, kGiB);
  v1::TrimRequest request;
  request.set_keep_bytes(kGiB);
  request.set_device_uuid("GPU-bbbb");
  const absl::StatusOr<Effects> effects = TrimEffects(request, tenants, TwoGpus(), false);
  ASSERT_TRUE(effects.ok()) << effects.status();
  EXPECT_TRUE(effects->takes);
  EXPECT_THAT(effects->lines,
              ElementsAre("tenant a on device 1 GPU-bbbb: keeps at most 1.00 GiB of 2.00 GiB "
                          "retained"));
  request.set_tenant("b");
  EXPECT_THAT(TrimEffects(request, tenants, TwoGpus(), false)->lines, IsEmpty());
  EXPECT_FALSE(TrimEffects(request, tenants, TwoGpus(), false)->takes);
  request.set_tenant("c");
  EXPECT_TRUE(absl::IsNotFound(TrimEffects(request, tenants, TwoGpus(), false).status()));
}

TEST(EffectsTest, TrimTakesFromATenantWhatItRetainsWithoutThoseUnderIt) {
  v1::ListTenantsResponse tenants;
  *tenants.add_tenants()->mutable_usage() = UsageOf("team", 3 * kGiB, 3 * kGiB);
  v1::TenantInfo* member = tenants.add_tenants();
  *member->mutable_usage() = UsageOf("member", 2 * kGiB, 2 * kGiB);
  member->mutable_quota()->set_parent("team");
  v1::TrimRequest request;
  request.set_device_uuid("GPU-bbbb");
  EXPECT_THAT(TrimEffects(request, tenants, TwoGpus(), false)->lines,
              ElementsAre("tenant member on device 1 GPU-bbbb: keeps at most 0 B of 2.00 GiB "
                          "retained",
                          "tenant team on device 1 GPU-bbbb: keeps at most 0 B of 1.00 GiB "
                          "retained"));
  request.set_tenant("team");
  request.set_keep_bytes(kGiB);
  EXPECT_THAT(TrimEffects(request, tenants, TwoGpus(), false)->lines, IsEmpty());
}

TEST(EffectsTest, SuspendNamesThePublication) {
  v1::ListPublicationsResponse list;
  v1::PublicationInfo& weights = *list.add_publications();
  weights.set_tenant("a");
  weights.set_name("weights");
  weights.set_version(3);
  weights.set_segments(2);
  weights.set_bytes(8 * kMiB);
  const auto suspend = SuspendPublicationEffects("a/weights", /*resume=*/false, list, false);
  ASSERT_TRUE(suspend.ok()) << suspend.status();
  EXPECT_TRUE(suspend->takes);
  EXPECT_THAT(suspend->lines,
              ElementsAre("a/weights, version 3: 2 segments, 8.00 MiB, move to the host tier",
                          "the next session that attaches brings them back"));
  const auto nothing = SuspendPublicationEffects("a/weights", /*resume=*/true, list, false);
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_TRUE(nothing->lines.empty());
  weights.set_suspended_segments(2);
  const auto resume = SuspendPublicationEffects("a/weights", /*resume=*/true, list, false);
  ASSERT_TRUE(resume.ok()) << resume.status();
  EXPECT_FALSE(resume->takes);
  EXPECT_THAT(resume->lines,
              ElementsAre("a/weights, version 3: 2 segments come back from the host tier"));
  EXPECT_TRUE(absl::IsNotFound(SuspendPublicationEffects("a/x", false, list, false).status()));
}

TEST(EffectsTest, UnpublishNamesThePublication) {
  v1::ListPublicationsResponse list;
  v1::PublicationInfo* each = list.add_publications();
  each->set_tenant("a");
  each->set_name("llama");
  each->set_version(3);
  each->set_segments(2);
  each->set_bytes(kGiB);
  each->set_attached_sessions(1);
  for (const char* name : {"a/llama", "llama"}) {
    const absl::StatusOr<Effects> effects = UnpublishEffects(name, "a", list, false);
    ASSERT_TRUE(effects.ok()) << effects.status();
    EXPECT_THAT(effects->lines,
                ElementsAre("a/llama, version 3, ends (2 segments, 1.00 GiB)",
                            "attached sessions keep it: 1; no session can attach to it any more"));
  }
  EXPECT_TRUE(absl::IsNotFound(UnpublishEffects("llama", "b", list, false).status()));
}

TEST(EffectsTest, AQuotaBelowTheUseTakes) {
  v1::GetQuotaResponse now;
  now.mutable_quota()->set_limit_bytes(8 * kGiB);
  *now.mutable_usage() = UsageOf("a", 5 * kGiB, 0);
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_limit_bytes(6 * kGiB);
  request.add_clear("max_segments");
  Effects effects = QuotaSetEffects(request, now, TwoGpus(), false);
  EXPECT_FALSE(effects.takes);
  EXPECT_THAT(effects.lines,
              ElementsAre("limit: 6.00 GiB (now 8.00 GiB)", "max_segments: none (now none)"));
  v1::DeviceLimit* limit = request.mutable_quota()->add_devices();
  limit->set_device_uuid("GPU-bbbb");
  limit->set_limit_bytes(kGiB);
  effects = QuotaSetEffects(request, now, TwoGpus(), false);
  EXPECT_TRUE(effects.takes);
  EXPECT_THAT(effects.lines.back(), HasSubstr("device 1 GPU-bbbb: 5.00 GiB of 1.00 GiB in use"));
  request.Clear();
  request.mutable_quota()->set_total_limit_bytes(9 * kGiB);
  effects = QuotaSetEffects(request, now, TwoGpus(), false);
  EXPECT_TRUE(effects.takes);
  EXPECT_THAT(effects.lines.back(), HasSubstr("all devices: 10.00 GiB of 9.00 GiB in use"));
}

TEST(EffectsTest, ACountBelowTheUseTakes) {
  v1::GetQuotaResponse now;
  now.mutable_usage()->set_segments(5);
  now.mutable_usage()->set_sessions(2);
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_max_segments(4);
  request.mutable_quota()->set_max_sessions(2);
  const Effects effects = QuotaSetEffects(request, now, TwoGpus(), false);
  EXPECT_TRUE(effects.takes);
  EXPECT_THAT(effects.lines,
              ElementsAre("max_segments: 4 (now none)", "max_sessions: 2 (now none)",
                          "segments: 5 of 4 in use: nothing new until usage is below the limit"));
  request.mutable_quota()->set_max_segments(5);
  EXPECT_FALSE(QuotaSetEffects(request, now, TwoGpus(), false).takes);
}

TEST(EffectsTest, ALimitForAllDevicesReplacesThoseOfSingleOnes) {
  v1::GetQuotaResponse now;
  v1::DeviceLimit* limit = now.mutable_quota()->add_devices();
  limit->set_device_uuid("GPU-bbbb");
  limit->set_limit_bytes(kGiB);
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_limit_bytes(2 * kGiB);
  EXPECT_THAT(
      QuotaSetEffects(request, now, TwoGpus(), false).lines,
      ElementsAre("limit: 2.00 GiB (now none)", "device: none (now 1 GPU-bbbb = 1.00 GiB)"));
  request.Clear();
  request.add_clear("limit_bytes");
  request.add_clear("priority");
  EXPECT_THAT(QuotaSetEffects(request, now, TwoGpus(), false).lines,
              ElementsAre("limit: none (now none)", "device: none (now 1 GPU-bbbb = 1.00 GiB)",
                          "priority: the default (now none)"));
}

TEST(EffectsTest, AGuaranteeTakesRevocableMemory) {
  v1::GetQuotaResponse now;
  now.mutable_quota()->set_guarantee_bytes(kGiB);
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_guarantee_bytes(2 * kGiB);
  request.mutable_quota()->set_revocable(false);
  Effects effects = QuotaSetEffects(request, now, TwoGpus(), false);
  EXPECT_TRUE(effects.takes);
  EXPECT_THAT(effects.lines.back(), HasSubstr("may be revoked"));
  EXPECT_THAT(effects.lines[1], HasSubstr("revocable: off (now none)"));
  request.mutable_quota()->set_guarantee_bytes(kGiB);
  EXPECT_FALSE(QuotaSetEffects(request, now, TwoGpus(), false).takes);
}

TEST(EffectsTest, UnsetNamesWhatIsOverridden) {
  v1::GetQuotaResponse now;
  now.add_overridden("limit_bytes");
  now.add_overridden("scrub");
  v1::UnsetQuotaRequest request;
  EXPECT_THAT(QuotaUnsetEffects(request, now).lines,
              ElementsAre("limit_bytes follows the configuration again",
                          "scrub follows the configuration again"));
  request.add_fields("scrub");
  request.add_fields("priority");
  EXPECT_THAT(QuotaUnsetEffects(request, now).lines,
              ElementsAre("scrub follows the configuration again"));
}

TEST(EffectsTest, PoolsAreFoundByDevice) {
  std::vector<v1::PoolInfo> pools(1);
  pools[0].set_tenant("a");
  pools[0].set_device_uuid("GPU-bbbb");
  pools[0].set_reserved_bytes(4 * kGiB);
  pools[0].set_used_bytes(kGiB);
  v1::TrimPoolRequest trim;
  absl::StatusOr<Effects> effects = PoolTrimEffects(trim, pools, TwoGpus(), false);
  ASSERT_TRUE(effects.ok());
  EXPECT_THAT(effects->lines, ElementsAre("pool of tenant a on device 1 GPU-bbbb: returns up to "
                                          "3.00 GiB of 4.00 GiB reserved"));
  trim.set_keep_bytes(4 * kGiB);
  EXPECT_THAT(PoolTrimEffects(trim, pools, TwoGpus(), false)->lines, IsEmpty());
  trim.set_device_uuid("GPU-aaaa");
  EXPECT_TRUE(absl::IsNotFound(PoolTrimEffects(trim, pools, TwoGpus(), false).status()));
  v1::SetPoolRequest set;
  set.set_release_threshold_bytes(0);
  set.set_reuse_allow_opportunistic(false);
  EXPECT_THAT(PoolSetEffects(set, pools, TwoGpus(), true)->lines,
              ElementsAre("pool of tenant a on device 1 GPU-bbbb: release threshold 0, "
                          "opportunistic reuse off"));
}

}  // namespace
}  // namespace gpumem::cli
