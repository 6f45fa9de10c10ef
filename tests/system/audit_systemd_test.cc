// SPDX-License-Identifier: Apache-2.0
// The audit in the journal of a real systemd: by the fields, as an operator asks for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/systemd_machine.h"

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using testing::SystemdMachine;
using Json = nlohmann::json;

std::string Absolute(const std::string& path) { return std::filesystem::absolute(path).string(); }

class AuditUnderSystemd : public ::testing::Test {
 protected:
  void SetUp() override {
    auto machine = SystemdMachine::Boot();
    if (absl::IsFailedPrecondition(machine.status())) GTEST_SKIP() << machine.status().message();
    ASSERT_TRUE(machine.ok()) << machine.status();
    machine_ = *std::move(machine);
    if (access(kJournald, X_OK) != 0) GTEST_SKIP() << "systemd-journald is not installed here";
    machine_->WriteUnit("systemd-journald.service",
                        absl::StrCat("[Unit]\nDefaultDependencies=no\n[Service]\nType=notify\n",
                                     "StandardOutput=null\nExecStart=", kJournald, "\n"));
    Start("systemd-journald");
    std::ofstream(machine_->folder() + "/gpumemd.toml")
        << "[[tenant]]\nname = \"team\"\n[[rule]]\ntenant = \"team\"\ndefault = true\n";
    machine_->WriteUnit(
        "gpumemd.service",
        absl::StrCat("[Unit]\nDefaultDependencies=no\n[Service]\nType=notify\n",
                     "StandardOutput=journal\nStandardError=journal\nExecStart=",
                     Absolute(testing::ProgramPath("gpumemd")), " --backend host --runtime-dir ",
                     machine_->folder(), "/run --state-dir ", machine_->folder(),
                     "/state --config ", machine_->folder(), "/gpumemd.toml\n"));
    Start("gpumemd");
  }
  void Start(const std::string& unit) {
    const auto started = machine_->Systemctl({"start", unit});
    ASSERT_EQ(started.code, 0) << started.output << machine_->Log();
  }
  // Returns journalctl's records with these fields.
  std::vector<Json> Find(std::vector<std::string> fields) {
    fields.insert(fields.begin(), {"journalctl", "-D", "/run/log/journal", "-u", "gpumemd", "-o",
                                   "json", "--no-pager", "-q"});
    const auto result = machine_->Run(fields);
    EXPECT_EQ(result.code, 0) << result.output;
    std::vector<Json> entries;
    std::istringstream lines(result.output);
    for (std::string line; std::getline(lines, line);) {
      entries.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
      EXPECT_TRUE(entries.back().is_object()) << line;
    }
    return entries;
  }
  // The only one, now or soon.
  Json One(const std::vector<std::string>& fields) {
    std::vector<Json> found;
    EXPECT_TRUE(testing::Eventually([&] {
      found = Find(fields);
      return !found.empty();
    })) << fields.front();
    EXPECT_EQ(found.size(), 1u) << fields.front();
    return found.empty() ? Json::object() : found.front();
  }
  SystemdMachine::Result Ctl(std::vector<std::string> args) {
    args.insert(args.begin(), {Absolute(testing::ProgramPath("gpumemctl")), "--runtime-dir",
                               machine_->folder() + "/run"});
    return machine_->Run(args);
  }

  static constexpr char kJournald[] = "/lib/systemd/systemd-journald";
  std::unique_ptr<SystemdMachine> machine_;
};

TEST_F(AuditUnderSystemd, IsFoundByItsFields) {
  const Json started = One({"GPUMEM_EVENT=started"});
  EXPECT_EQ(started.value("SYSLOG_IDENTIFIER", ""), "gpumemd");
  EXPECT_EQ(started.value("GPUMEM_BACKEND", ""), "host");
  EXPECT_EQ(started.value("PRIORITY", ""), "5");
  EXPECT_THAT(started.value("MESSAGE", ""), HasSubstr("started, host backend"));
  EXPECT_EQ(started.value("_PID", ""), machine_->Property("gpumemd", "MainPID"));

  const auto held = Ctl({"hold", "--size", "4MiB", "--for", "10ms"});
  ASSERT_EQ(held.code, 0) << held.output;
  const Json granted = One({"GPUMEM_EVENT=granted", "GPUMEM_TENANT=team"});
  EXPECT_EQ(granted.value("GPUMEM_BYTES", ""), "4194304");
  EXPECT_EQ(granted.value("PRIORITY", ""), "6");
  EXPECT_EQ(One({absl::StrCat("GPUMEM_LEASE=", granted.value("GPUMEM_LEASE", "")),
                 "GPUMEM_EVENT=granted"}),
            granted);

  const auto set = Ctl({"quota", "set", "team", "--limit", "1GiB"});
  ASSERT_EQ(set.code, 0) << set.output;
  // By the UUID of its kind, too.
  const Json quota = One({"MESSAGE_ID=275e4312efee4041bc6fc712645f7a9f"});
  EXPECT_EQ(quota.value("GPUMEM_EVENT", ""), "quota-set");
  EXPECT_EQ(quota.value("GPUMEM_TENANT", ""), "team");
  EXPECT_EQ(quota.value("GPUMEM_BY_UID", ""), "0");
  EXPECT_THAT(quota.value("GPUMEM_CHANGE", ""), HasSubstr("1073741824"));
  EXPECT_EQ(One({"GPUMEM_EVENT=quota-set", "GPUMEM_TENANT=team"}), quota);

  ASSERT_EQ(machine_->Systemctl({"stop", "gpumemd"}).code, 0);
  const Json stopped = One({"GPUMEM_EVENT=stopped"});
  EXPECT_EQ(stopped.value("GPUMEM_WHY", ""), "SIGTERM");
  EXPECT_EQ(stopped.value("GPUMEM_BY_PID", ""), "1");
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
