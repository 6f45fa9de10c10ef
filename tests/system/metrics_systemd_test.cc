// SPDX-License-Identifier: Apache-2.0
// A daemon without a network, and systemd's proxy before its unix socket, as
// docs/reference/metrics.md has it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/daemon_process.h"
#include "tests/support/http_get.h"
#include "tests/support/systemd_machine.h"

namespace gpumem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SystemdMachine;

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(MetricsUnderSystemd, AreReachedThroughTheProxy) {
  auto booted = SystemdMachine::Boot();
  if (absl::IsFailedPrecondition(booted.status())) GTEST_SKIP() << booted.status().message();
  ASSERT_TRUE(booted.ok()) << booted.status();
  SystemdMachine& machine = **booted;
  const std::string& folder = machine.folder();
  std::ofstream(folder + "/gpumemd.toml")
      << "[metrics]\nlisten = \"unix:" << folder << "/run/metrics.sock\"\nsocket_mode = \"0666\"\n";
  machine.WriteUnit(
      "gpumemd.service",
      absl::StrCat("[Unit]\nDefaultDependencies=no\n[Service]\nType=notify\nPrivateNetwork=yes\n",
                   "StandardError=append:", folder, "/log\nExecStart=",
                   std::filesystem::absolute(testing::ProgramPath("gpumemd")).string(),
                   " --backend host --runtime-dir ", folder, "/run --state-dir ", folder,
                   "/state --config ", folder, "/gpumemd.toml\n"));
  // As delivered, but for names: this machine has no users beside root and no device files to hide,
  // and its daemon has another folder.
  for (const char* unit : {"gpumem-metrics.socket", "gpumem-metrics.service"}) {
    std::string text = ReadFile(absl::StrCat("deploy/prometheus/", unit));
    ASSERT_THAT(text, HasSubstr("[Unit]\n"));
    text = absl::StrReplaceAll(
        text, {{"[Unit]\n", "[Unit]\nDefaultDependencies=no\n"},
               {"[Service]\n", absl::StrCat("[Service]\nStandardError=append:", folder, "/log\n")},
               {"/run/gpumem/metrics.sock", absl::StrCat(folder, "/run/metrics.sock")},
               {"DynamicUser=yes\n", ""},
               {"User=gpumem-metrics-proxy\n", ""},
               {"PrivateDevices=yes\n", ""},
               {"SupplementaryGroups=gpumem-metrics\n", ""}});
    machine.WriteUnit(unit, text);
  }
  for (const char* unit : {"gpumemd.service", "gpumem-metrics.socket"}) {
    const auto started = machine.Systemctl({"start", unit});
    ASSERT_EQ(started.code, 0) << started.output << machine.Log() << ReadFile(folder + "/log")
                               << machine.Systemctl({"status", "gpumem-metrics.service"}).output;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto get = machine.Run({self, "--get", "http://127.0.0.1:9400/metrics"});
  EXPECT_EQ(get.code, 0) << machine.Log() << ReadFile(folder + "/log")
                         << machine.Systemctl({"status", "gpumem-metrics.service"}).output;
  EXPECT_THAT(get.output, AllOf(HasSubstr("gpumem_build_info{"), HasSubstr("\nprocess_max_fds ")));
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--get") {
    const auto answer = gpumem::testing::HttpGet(argv[2]);
    std::cout << (answer.ok() ? answer->body : answer.status().ToString());
    return answer.ok() && answer->code == 200 ? 0 : 1;
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
