// SPDX-License-Identifier: Apache-2.0
// The audit of operators' acts: who changed a quota, a pool or the configuration, and how; and the
// audit's own configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/wire.h"
#include "tests/system/testing/audit_fixture.h"

namespace gpumem {
namespace {

using testing::AuditTest;
using testing::Child;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Json;
using testing::kAuditConfig;

TEST_F(AuditTest, WhoChangedAQuotaAndHow) {
  Start();
  // Another operator is connected all the while, and observes.
  v1::Admin::Stub other(testing::ChannelTo(daemon_->Socket("admin.sock")));
  v1::GetStatusResponse status;
  ASSERT_TRUE(other.GetStatus(testing::ContextWith().get(), {}, &status).ok());
  Child set = Ctl({"quota", "set", "team", "--limit", "16MiB"});
  const pid_t setter = set.pid();
  ASSERT_EQ(set.Wait(), 0);
  const Json was_set = audit_.One("quota-set");
  EXPECT_EQ(was_set["tenant"], "team");
  EXPECT_EQ(was_set["by_pid"], Json::array({setter}));
  EXPECT_EQ(was_set["by_uid"], Json::array({geteuid()}));
  EXPECT_THAT(was_set["change"].dump(), HasSubstr(absl::StrCat(" -> ", 16 * kMiB)));
  Child unset = Ctl({"quota", "unset", "team"});
  const pid_t unsetter = unset.pid();
  ASSERT_EQ(unset.Wait(), 0);
  const Json was_unset = audit_.One("quota-unset");
  EXPECT_EQ(was_unset["by_pid"], Json::array({unsetter}));
  // A refused change has not been made.
  ASSERT_NE(Ctl({"quota", "set", "nobody", "--limit", "1MiB"}).Wait(), 0);

  // For a client without a name, the audit lists the processes of all such clients.
  v1::Admin::Stub third(testing::ChannelTo(daemon_->Socket("admin.sock")));
  ASSERT_TRUE(third.Drain(testing::ContextWith().get(), {}, &status).ok());
  EXPECT_EQ(audit_.One("draining")["by_pid"], Json::array({getpid()}));
  v1::DrainRequest resume;
  resume.set_resume(true);
  ASSERT_TRUE(third.Drain(testing::ContextWith().get(), resume, &status).ok());
  audit_.One("admitting");
  v1::TrimResponse trimmed;
  ASSERT_TRUE(third.Trim(testing::ContextWith().get(), {}, &trimmed).ok());
  EXPECT_EQ(audit_.One("trimmed")["bytes"], 0);
  Stop();
  EXPECT_EQ(audit_.Of("quota-set").size(), 1u);
}

TEST_F(AuditTest, ReloadsByWhomAndWhatTheyChanged) {
  Start();
  daemon_->Reconfigure(audit_.Config(absl::StrReplaceAll(kAuditConfig, {{"32MiB", "24MiB"}})));
  const Json reloaded = audit_.One("reloaded");
  EXPECT_EQ(reloaded["by_pid"], Json::array({getpid()}));
  EXPECT_THAT(reloaded["change"].dump(), HasSubstr("changed limit"));
  daemon_->Reconfigure("[nonsense]\n");
  const Json refused = audit_.One("reload-refused");
  EXPECT_THAT(refused["why"].get<std::string>(), HasSubstr("nonsense"));
  EXPECT_EQ(refused["by_pid"], Json::array({getpid()}));
  Child ctl = Ctl({"reload"});
  const pid_t pid = ctl.pid();
  EXPECT_NE(ctl.Wait(), 0);
  ASSERT_TRUE(audit_.Await("reload-refused", 2));
  EXPECT_EQ(audit_.Of("reload-refused")[1]["by_pid"], Json::array({pid}));
  Stop();
}

TEST_F(AuditTest, WhoChangedAPoolAndHow) {
  Start();
  auto team = daemon_->Connect("team");
  ASSERT_TRUE(team.ok()) << team.status();
  auto segment = (*team)->Acquire({.bytes = 4 * kMiB, .kind = Kind::kMempool});
  ASSERT_TRUE(segment.ok()) << segment.status();
  Child set = Ctl({"pool", "set", "team", "--release-threshold", "1MiB"});
  const pid_t setter = set.pid();
  EXPECT_EQ(set.Wait(), 0);
  const Json changed = audit_.One("pool-set");
  EXPECT_EQ(changed["tenant"], "team");
  EXPECT_EQ(changed["by_uid"], Json::array({getuid()}));
  EXPECT_EQ(changed["by_pid"], Json::array({setter}));
  EXPECT_THAT(changed["change"].dump(), HasSubstr("release_threshold"));
  Child trim = Ctl({"pool", "trim", "team"});
  const pid_t trimmer = trim.pid();
  EXPECT_EQ(trim.Wait(), 0);
  const Json trimmed = audit_.One("pool-trimmed");
  EXPECT_EQ(trimmed["tenant"], "team");
  EXPECT_EQ(trimmed["by_pid"], Json::array({trimmer}));
  Stop();
}

TEST_F(AuditTest, GrantsCanBeLeftOut) {
  Start(absl::StrReplaceAll(kAuditConfig, {{"[audit]\n", "[audit]\ngrants = false\n"}}));
  auto client = daemon_->Connect("team");
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->Acquire({.bytes = 1}).ok());
  client->reset();
  Stop();
  EXPECT_EQ(audit_.Of("session-opened").size(), 1u);
  EXPECT_THAT(audit_.Of("granted"), IsEmpty());
  EXPECT_THAT(audit_.Of("released"), IsEmpty());
}

TEST_F(AuditTest, WithoutAFileItGoesToStandardError) {
  Start(absl::StrReplaceAll(kAuditConfig, {{"path = \"PATH\"\n", ""}}));
  EXPECT_TRUE(
      Eventually([&] { return absl::StrContains(daemon_->Log(), "\"event\":\"started\""); }));
  daemon_->child().Signal(SIGTERM);
  EXPECT_EQ(daemon_->child().Wait(), 0);
  EXPECT_TRUE(absl::StrContains(daemon_->Log(), "\"event\":\"stopped\""));
}

TEST_F(AuditTest, AFileThatWasMovedAwayIsFollowedByAnotherAfterAReload) {
  Start();
  audit_.One("started");
  std::filesystem::rename(audit_.path(), audit_.path() + ".1");
  daemon_->child().Signal(SIGHUP);
  audit_.One("reloaded");
  EXPECT_THAT(audit_.Of("started"), IsEmpty());
}

TEST_F(AuditTest, TheDaemonsStartAndStop) {
  Start();
  EXPECT_EQ(audit_.One("started")["backend"], "host");
  EXPECT_THAT(audit_.One("started")["config"].get<std::string>(), HasSubstr("gpumemd.toml"));
  Stop();
  const Json stopped = audit_.One("stopped");
  EXPECT_EQ(stopped["why"], "SIGTERM");
  EXPECT_EQ(stopped["by_pid"], Json::array({getpid()}));
  EXPECT_EQ(stopped["by_uid"], Json::array({getuid()}));
  EXPECT_EQ(audit_.Lines().back(), stopped);
}

}  // namespace
}  // namespace gpumem
