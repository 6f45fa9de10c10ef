// SPDX-License-Identifier: Apache-2.0
// Quotas that operators change: at once, over restarts, and back again.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
using testing::QuotaTest;

// --- Over a restart ------------------------------------------------------------------

TEST_F(QuotaTest, OverridesSurviveARestartAndOtherFieldsFollowTheFile) {
  v1::SetQuotaRequest request = For("team");
  request.mutable_quota()->set_limit_bytes(16 * kMiB);
  request.mutable_quota()->set_guarantee_bytes(8 * kMiB);
  request.mutable_quota()->set_priority(-7);
  request.mutable_quota()->set_scrub(true);
  ASSERT_OK(Set(request));
  WriteConfig(absl::StrReplaceAll(kConfig, {{"max_segments = 10", "max_segments = 11"}}));
  ASSERT_OK(daemon_->Restart());
  v1::GetQuotaResponse team = Get("team");
  EXPECT_EQ(team.quota().limit_bytes(), 16 * kMiB);
  EXPECT_EQ(team.quota().guarantee_bytes(), 8 * kMiB);
  EXPECT_EQ(team.quota().priority(), -7);
  EXPECT_TRUE(team.quota().scrub());
  EXPECT_EQ(team.quota().max_segments(), 11u);
  EXPECT_THAT(team.overridden(),
              ElementsAre("limit_bytes", "guarantee_bytes", "priority", "scrub"));
  EXPECT_THAT(Get("other").overridden(), IsEmpty());

  // It is in force, too, and not only shown.
  auto client = daemon_->Connect("team");
  ASSERT_OK(client);
  auto held = (*client)->Acquire({.bytes = 16 * kMiB});
  ASSERT_OK(held);
  EXPECT_STATUS((*client)->Acquire({.bytes = kMiB}), kResourceExhausted, "");

  auto unset = Unset("team", {"limit_bytes", "scrub"});
  ASSERT_OK(unset);
  EXPECT_EQ(unset->quota().limit_bytes(), 32 * kMiB);
  EXPECT_THAT(unset->overridden(), ElementsAre("guarantee_bytes", "priority"));
  ASSERT_OK(Unset("team"));
  EXPECT_STATUS(Unset("team"), kFailedPrecondition, "");
  ASSERT_OK(daemon_->Restart());
  team = Get("team");
  EXPECT_EQ(team.quota().limit_bytes(), 32 * kMiB);
  EXPECT_FALSE(team.quota().has_guarantee_bytes());
  EXPECT_THAT(team.overridden(), IsEmpty());
}

TEST_F(QuotaTest, AnAnsweredChangeSurvivesAKill) {
  for (uint64_t limit = 1; limit <= 5; ++limit) {
    ASSERT_OK(SetLimit("team", limit * kMiB));
    daemon_->child().Signal(SIGKILL);
    daemon_->child().Wait();
    ASSERT_OK(daemon_->RunAgain());
    EXPECT_EQ(Get("team").quota().limit_bytes(), limit * kMiB);
  }
}

TEST_F(QuotaTest, AUserTenantKeepsItsOverrideWithoutSessions) {
  const std::string tenant = absl::StrCat("user-", getuid());
  {
    auto client = daemon_->Connect(tenant);
    ASSERT_OK(client);
    ASSERT_OK(SetLimit(tenant, 4 * kMiB));
  }
  ASSERT_OK(daemon_->Restart());
  auto client = daemon_->Connect(tenant);
  ASSERT_OK(client);
  EXPECT_STATUS((*client)->Acquire({.bytes = 5 * kMiB}), kResourceExhausted, "");
  ASSERT_OK((*client)->Acquire({.bytes = 4 * kMiB}));
}

TEST_F(QuotaTest, OperatorsSeeWhatIsOverridden) {
  ASSERT_OK(SetLimit("team", 16 * kMiB));
  auto list = Call(&Stub::ListTenants, v1::ListTenantsRequest());
  ASSERT_OK(list);
  for (const v1::TenantInfo& tenant : list->tenants()) {
    EXPECT_EQ(tenant.overridden_size(), tenant.usage().tenant() == "team" ? 1 : 0);
  }
}

// --- Refusals -------------------------------------------------------------------------

TEST_F(QuotaTest, QuotasThatCannotBeKeptAreRefusedAndChangeNothing) {
  v1::SetQuotaRequest request = For("other");
  request.mutable_quota()->set_guarantee_bytes(40 * kMiB);
  ASSERT_OK(Set(request));
  const std::string before = Get("team").quota().ShortDebugString();
  request = For("team");
  request.mutable_quota()->set_max_sessions(3);
  request.mutable_quota()->set_guarantee_bytes(25 * kMiB);
  EXPECT_STATUS(Set(request), kFailedPrecondition, "65.00 MiB");
  request.mutable_quota()->set_guarantee_bytes(33 * kMiB);
  EXPECT_STATUS(Set(request), kInvalidArgument, "32.00 MiB");
  request = For("team");
  request.mutable_quota()->set_parent("other");
  EXPECT_STATUS(Set(request), kInvalidArgument, "");
  EXPECT_STATUS(Unset("team", {"colour"}), kFailedPrecondition, "");
  EXPECT_STATUS(Unset("nobody"), kNotFound, "\"nobody\"");
  EXPECT_EQ(Get("team").quota().ShortDebugString(), before);
}

TEST_F(QuotaTest, AChangeThatCannotBeStoredIsNotMade) {
  // A folder in the way, since root may write anywhere.
  std::filesystem::create_directories(daemon_->state_dir() + "/overrides.txt.new");
  EXPECT_STATUS(SetLimit("team", kMiB), kFailedPrecondition, OverridesFile());
  EXPECT_EQ(Get("team").quota().limit_bytes(), 32 * kMiB);
  EXPECT_THAT(Get("team").overridden(), IsEmpty());
  std::filesystem::remove(daemon_->state_dir() + "/overrides.txt.new");
  EXPECT_OK(SetLimit("team", kMiB));
}

TEST_F(QuotaTest, ABrokenOverridesFileIsKeptAsideAndReported) {
  ASSERT_OK(SetLimit("team", kMiB));
  std::ofstream(OverridesFile(), std::ios::app) << "overrides {";
  ASSERT_OK(daemon_->Restart());
  EXPECT_EQ(Get("team").quota().limit_bytes(), 32 * kMiB);
  auto status = Call(&Stub::GetStatus, v1::GetStatusRequest());
  ASSERT_OK(status);
  EXPECT_THAT(status->notices(), Contains(HasSubstr("overrides.txt.broken")));
  EXPECT_THAT(daemon_->Log(), HasSubstr("error: the quotas that operators set are NOT in force"));
  EXPECT_TRUE(std::filesystem::exists(OverridesFile() + ".broken"));
  EXPECT_OK(SetLimit("team", 2 * kMiB));
}

TEST_F(QuotaTest, TwoDaemonsDoNotShareAStateFolder) {
  auto second = DaemonProcess::Start({.state_dir = daemon_->state_dir()});
  ASSERT_OK(second);
  std::swap(daemon_, *second);
  const std::string tenant = absl::StrCat("user-", getuid());
  auto client = daemon_->Connect(tenant);
  ASSERT_OK(client);
  EXPECT_STATUS(SetLimit(tenant, kMiB), kFailedPrecondition, "another daemon uses");
  auto status = Call(&Stub::GetStatus, v1::GetStatusRequest());
  ASSERT_OK(status);
  EXPECT_THAT(status->notices(), Contains(HasSubstr("another daemon uses")));
}

// --- Holders -------------------------------------------------------------------------

TEST_F(QuotaTest, ALimitBelowTheUsageRevokesNothing) {
  auto client = daemon_->Connect("team");
  ASSERT_OK(client);
  auto held = (*client)->Acquire({.bytes = 24 * kMiB});
  ASSERT_OK(held);
  static_cast<char*>(held->data())[0] = 42;
  ASSERT_OK(SetLimit("team", 8 * kMiB));
  EXPECT_EQ(Get("team").usage().charged_bytes(), 24 * kMiB);
  EXPECT_EQ(static_cast<char*>(held->data())[0], 42);
  static_cast<char*>(held->data())[24 * kMiB - 1] = 43;
  EXPECT_STATUS((*client)->Acquire({.bytes = kMiB}), kResourceExhausted, "");
  EXPECT_EQ(Get("team").usage().sessions(), 1u);
  // Once usage is below, there is memory again; memory released above the limit is not kept.
  *held = Segment();
  ASSERT_TRUE(Eventually([&] { return Get("team").usage().charged_bytes() == 0; }));
  EXPECT_OK((*client)->Acquire({.bytes = 8 * kMiB}));
}

TEST_F(QuotaTest, OperatorsWhoChangeTheSameTenantAtOnceLoseNothing) {
  std::vector<std::thread> operators;
  for (int who = 0; who < 4; ++who) {
    operators.emplace_back([this, who] {
      for (uint32_t i = 1; i <= 20; ++i) {
        v1::SetQuotaRequest request = For("team");
        v1::Quota& quota = *request.mutable_quota();
        if (who == 0) quota.set_max_segments(i);
        if (who == 1) quota.set_max_sessions(i + 100);
        if (who == 2) quota.set_priority(static_cast<int32_t>(i));
        if (who == 3) quota.set_max_waiting(i);
        EXPECT_OK(Set(request));
        if (i % 5 == 0) {
          EXPECT_OK(Reload());
        }
      }
    });
  }
  for (std::thread& one : operators) one.join();
  for (int life = 0; life < 2; ++life) {
    const v1::Quota quota = Get("team").quota();
    EXPECT_EQ(quota.max_segments(), 20u);
    EXPECT_EQ(quota.max_sessions(), 120u);
    EXPECT_EQ(quota.priority(), 20);
    EXPECT_EQ(quota.max_waiting(), 20u);
    ASSERT_OK(daemon_->Restart());
  }
}

// Writes at and beyond the memory that `fd` is of, and asks for more of it, in every way. Returns
// the bytes that the kernel holds for it then.
uint64_t FillAllOf(int fd, uint64_t beyond) {
  const std::string bytes(kMiB, 'x');
  const auto end = static_cast<off_t>(beyond);
  EXPECT_EQ(ftruncate(fd, end), -1);
  EXPECT_EQ(fallocate(fd, 0, 0, end), -1);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, end), -1);
  bool all = true;
  for (off_t at = 0; at < end; at += static_cast<off_t>(bytes.size())) {
    all = pwrite(fd, bytes.data(), bytes.size(), at) > 0 && all;
  }
  EXPECT_FALSE(all);
  struct stat file = {};
  EXPECT_EQ(fstat(fd, &file), 0);
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

TEST_F(QuotaTest, NoDescriptorThatAClientGetsHoldsMoreThanIsCharged) {
  auto client = daemon_->Connect("team");
  ASSERT_OK(client);
  for (const Kind kind : {Kind::kVmm, Kind::kMempool}) {
    auto segment = (*client)->Acquire({.bytes = 2 * kMiB, .kind = kind});
    ASSERT_OK(segment);
    const absl::StatusOr<int> fd = kind == Kind::kVmm ? segment->fd() : segment->pool_fd();
    ASSERT_OK(fd);
    EXPECT_LE(FillAllOf(*fd, 64 * kMiB), segment->size()) << KindName(kind);
  }
}

}  // namespace
}  // namespace gpumem
