// SPDX-License-Identifier: Apache-2.0
// Quotas where operators reload the configuration: which changes are told, and what cannot be kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/system/testing/quota_fixture.h"

namespace gpumem {
namespace {

using ::testing::Contains;
using testing::DaemonProcess;
using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::QuotaTest;

TEST_F(QuotaTest, AReloadReportsItsChangesAndKeepsOverrides) {
  auto same = Reload();
  ASSERT_OK(same);
  EXPECT_EQ(same->config_file(), ConfigFile());
  EXPECT_THAT(same->changes(), IsEmpty());

  ASSERT_OK(SetLimit("team", 16 * kMiB));
  std::string changed = absl::StrReplaceAll(
      kConfig, {{"limit = \"32MiB\"", "limit = \"31MiB\"\nguarantee = \"1MiB\""}});
  absl::StrAppend(&changed, "[[tenant]]\nname = \"new\"\n[daemon]\nlog_level = \"debug\"\n");
  WriteConfig(changed);
  auto reloaded = Reload();
  ASSERT_OK(reloaded);
  EXPECT_THAT(reloaded->changes(), ElementsAre("tenant \"team\": changed limit, guarantee",
                                               "tenant \"new\": new", "log_level: changed"));
  EXPECT_EQ(Get("team").quota().limit_bytes(), 16 * kMiB);
  EXPECT_EQ(Get("team").quota().guarantee_bytes(), 1 * kMiB);
  EXPECT_THAT(Get("team").overridden(), ElementsAre("limit_bytes"));
  ASSERT_OK(Unset("team"));
  EXPECT_EQ(Get("team").quota().limit_bytes(), 31 * kMiB);
}

TEST_F(QuotaTest, ACheckSaysWhatAReloadWouldAndChangesNothing) {
  auto same = CheckReload();
  ASSERT_OK(same);
  EXPECT_EQ(same->config_file(), ConfigFile());
  EXPECT_THAT(same->changes(), IsEmpty());

  v1::SetQuotaRequest request = For("team");
  request.mutable_quota()->set_guarantee_bytes(32 * kMiB);
  ASSERT_OK(Set(request));
  const std::string before = Get("team").ShortDebugString();
  const size_t said = daemon_->Log().size();
  WriteConfig(absl::StrCat(
      absl::StrReplaceAll(kConfig, {{"name = \"other\"", "name = \"other\"\nguarantee = \"40MiB\""},
                                    {"limit = \"32MiB\"", "limit = \"31MiB\""}}),
      "[[tenant]]\nname = \"new\"\n[daemon]\nmax_sessions = 7\n"));
  auto checked = CheckReload();
  ASSERT_OK(checked);
  EXPECT_THAT(checked->changes(),
              ElementsAre("tenant \"team\": changed limit", "tenant \"other\": changed guarantee",
                          "tenant \"new\": new"));
  EXPECT_THAT(checked->notices(), Contains(HasSubstr("what only a restart can apply")));
  EXPECT_THAT(checked->notices(), Contains(HasSubstr("the overrides of tenant \"team\"")));
  EXPECT_EQ(CheckReload()->ShortDebugString(), checked->ShortDebugString());
  EXPECT_EQ(Get("team").ShortDebugString(), before);
  EXPECT_EQ(daemon_->Log().find("reload", said), std::string::npos);

  auto reloaded = Reload();
  ASSERT_OK(reloaded);
  EXPECT_EQ(reloaded->ShortDebugString(), checked->ShortDebugString());

  WriteConfig("[daemon]\nlimt = 1\n");
  EXPECT_STATUS(CheckReload(), kInvalidArgument, ConfigFile() + ":2");
  EXPECT_EQ(daemon_->Log().find("stays", said), std::string::npos);
}

TEST_F(QuotaTest, AReloadWithAMistakeChangesNothing) {
  const std::string before = Get("team").quota().ShortDebugString();
  // One that the text shows, and one that only the device does.
  for (const auto& [bad, why] :
       {std::pair{"limit = \"31MiB\"\nlimt = 1", ":6: tenant.limt: unknown key"},
        {"limit = \"65MiB\"\nguarantee = \"65MiB\"",
         ":6: tenant.guarantee: the guarantees of all tenants add up to 65.00 MiB"}}) {
    WriteConfig(absl::StrReplaceAll(kConfig, {{"limit = \"32MiB\"", bad}}));
    EXPECT_STATUS(Reload(), kInvalidArgument, ConfigFile() + why);
    EXPECT_EQ(Get("team").quota().ShortDebugString(), before);
    // A signal does the same, with the same sentence.
    const size_t said = daemon_->Log().size();
    daemon_->child().Signal(SIGHUP);
    EXPECT_TRUE(Eventually(
        [&, words = why] { return daemon_->Log().find(words, said) != std::string::npos; }));
    EXPECT_EQ(Get("team").quota().ShortDebugString(), before);
  }
  std::filesystem::remove(ConfigFile());
  EXPECT_STATUS(Reload(), kNotFound, ConfigFile());
  EXPECT_EQ(Get("team").quota().ShortDebugString(), before);
}

TEST_F(QuotaTest, ADaemonDoesNotStartWithGuaranteesThatItsDevicesCannotKeep) {
  auto daemon =
      DaemonProcess::Start({.config = "[host]\ndevice_bytes = \"64MiB\"\n[[tenant]]\nname = \"a\"\n"
                                      "guarantee = \"65MiB\"\n"});
  EXPECT_STATUS(daemon, kUnavailable, "gpumemd.toml:5: tenant.guarantee");
}

TEST_F(QuotaTest, WithoutAFileThereIsNothingToReload) {
  auto daemon = DaemonProcess::Start();
  ASSERT_OK(daemon);
  daemon_ = *std::move(daemon);
  EXPECT_STATUS(Reload(), kFailedPrecondition, "");
  EXPECT_STATUS(CheckReload(), kFailedPrecondition, "");
}

TEST_F(QuotaTest, AnOverrideThatTheFileRulesOutIsSkippedAndReported) {
  v1::SetQuotaRequest request = For("team");
  request.mutable_quota()->set_guarantee_bytes(32 * kMiB);
  ASSERT_OK(Set(request));
  WriteConfig(absl::StrReplaceAll(
      kConfig, {{"name = \"other\"", "name = \"other\"\nguarantee = \"40MiB\""}}));
  auto reloaded = Reload();
  ASSERT_OK(reloaded);
  EXPECT_THAT(reloaded->notices(), Contains(HasSubstr("the overrides of tenant \"team\"")));
  EXPECT_FALSE(Get("team").quota().has_guarantee_bytes());
  EXPECT_THAT(Get("team").overridden(), IsEmpty());
  EXPECT_THAT(daemon_->Log(), HasSubstr("not in force"));
  // A client that changes something else is told of the conflict.
  request = For("team");
  request.mutable_quota()->set_priority(3);
  EXPECT_STATUS(Set(request), kFailedPrecondition, "gpumemctl quota unset team");
  WriteConfig(kConfig);
  reloaded = Reload();
  ASSERT_OK(reloaded);
  EXPECT_THAT(reloaded->notices(), Not(Contains(HasSubstr("the overrides of"))));
  EXPECT_EQ(Get("team").quota().guarantee_bytes(), 32 * kMiB);
}

TEST_F(QuotaTest, TheHostTierIsADeviceForOperatorsAlone) {
  const std::string tier = "[tier]\ncapacity = \"16MiB\"\nhuge_pages = false\n";
  auto daemon = DaemonProcess::Start(
      {.config = absl::StrCat(tier, "[tenant_defaults]\ntier_limit = \"25%\"\n", kConfig)});
  ASSERT_OK(daemon);
  daemon_ = *std::move(daemon);
  const auto status = Call(&Stub::GetStatus, v1::GetStatusRequest());
  ASSERT_OK(status);
  ASSERT_GT(status->devices_size(), 1);
  const v1::Device& last = status->devices(status->devices_size() - 1);
  EXPECT_EQ(last.device_uuid(), "TIER-00000000-0000-0000-0000-000000000000");
  EXPECT_EQ(last.capacity_bytes(), 16 * kMiB);
  EXPECT_EQ(last.kinds(0), v1::KIND_TIER);
  EXPECT_EQ(Get("team").quota().tier_limit_bytes(), 4 * kMiB);

  auto client = daemon_->Connect("team");
  ASSERT_OK(client);
  const auto seen = (*client)->Devices();
  ASSERT_OK(seen);
  EXPECT_EQ(seen->size() + 1, static_cast<size_t>(status->devices_size()));
  const auto usage = (*client)->GetUsage();
  ASSERT_OK(usage);
  EXPECT_EQ(usage->devices.back().device_uuid, last.device_uuid());
  EXPECT_EQ(usage->devices.back().limit_bytes, 4 * kMiB);

  WriteConfig(absl::StrReplaceAll(tier, {{"16MiB", "32MiB"}}));
  const auto reloaded = Reload();
  ASSERT_OK(reloaded);
  EXPECT_THAT(reloaded->notices(), Contains(HasSubstr("[tier]")));
}

}  // namespace
}  // namespace gpumem
