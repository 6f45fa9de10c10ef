// SPDX-License-Identifier: Apache-2.0
// Conditions under which gpumemd refuses to start, and its messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cuda/toolkit.h"
#include "common/unix_channel.h"
#include "common/version.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"

namespace gpumem {
namespace {

using ::testing::AllOf;
using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using ::testing::HasSubstr;

class Startup : public ::testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/gpumem-test-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  struct Outcome {
    int code = -1;
    std::string output;  // both streams
  };
  // Runs gpumemd until it ends by itself.
  Outcome Run(const std::vector<std::string>& args) {
    const std::string log = dir_ + "/output";
    Child child({"/bin/sh", "-c",
                 absl::StrCat("exec ", testing::ProgramPath("gpumemd"), " ",
                              absl::StrJoin(args, " "), " >", log, " 2>&1")});
    Outcome outcome{.code = child.Wait()};
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    outcome.output = text.str();
    return outcome;
  }
  Outcome RunHostIn(const std::string& runtime_dir) {
    return Run({"--backend", "host", "--runtime-dir", runtime_dir, "--state-dir", dir_ + "/state"});
  }
  std::string WriteConfig(const std::string& text) {
    std::string path = dir_ + "/gpumemd.toml";
    std::ofstream(path) << text;
    return path;
  }

  std::string dir_;
};

TEST_F(Startup, CheckConfigAcceptsAGoodFileAndNamesTheLineOfAMistake) {
  const std::string good =
      WriteConfig("[[tenant]]\nname = \"a\"\n[[rule]]\ntenant = \"a\"\ndefault = true\n");
  const Outcome fine = Run({"--check-config", "--config", good});
  EXPECT_EQ(fine.code, 0) << fine.output;
  EXPECT_THAT(fine.output, HasSubstr("gpumemd.toml: ok, tenants: 1, rules: 1"));
  EXPECT_EQ(Run({"--check-config"}).code, 0);

  const std::string bad = WriteConfig("[daemon]\nmax_sessions = 5\nmax_sesions = 5\n");
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--check-config", "--config", bad},
        std::vector<std::string>{"--config", bad, "--runtime-dir", dir_ + "/run"}}) {
    const Outcome refused = Run(args);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.output, AllOf(HasSubstr("gpumemd.toml:3"), HasSubstr("max_sesions")));
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/run")) << "it began to serve";
  EXPECT_EQ(Run({"--check-config", "--config", dir_ + "/none"}).code, 2);
}

TEST_F(Startup, TheVersionSaysWhetherItIsBuiltWithCuda) {
  const Outcome version = Run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.output, absl::StrCat("gpumemd ", GPUMEM_VERSION, " (", BuiltWith(), ")\n"));
  EXPECT_EQ(BuiltWith(), CudaToolkit().empty() ? "host backend, built without CUDA"
                                               : absl::StrCat("CUDA ", CudaToolkit()));
}

TEST_F(Startup, FlagsThatMakeNoSenseAreRefused) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--backend", "abacus"},
                                               {"--host-devices", "0"},
                                               {"--host-devices", "65"},
                                               {"--host-device-bytes", "lots"},
                                               {"--log-level", "loud"},
                                               {"--no-such-flag"},
                                               {"stray"}}) {
    const Outcome refused = Run(args);
    EXPECT_EQ(refused.code, 2) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("gpumemd: "));
  }
}

TEST_F(Startup, DevicesTooLargeToCountAreRefused) {
  const Outcome refused =
      Run({"--backend", "host", "--host-device-bytes", "8EiB", "--runtime-dir", dir_ + "/run"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("at most 16 PiB"));
}

TEST_F(Startup, ASecondDaemonInTheSameFolderIsRefusedAndTheFirstGoesOn) {
  auto daemon = DaemonProcess::Start();
  ASSERT_OK(daemon);
  auto client = (*daemon)->Connect();
  ASSERT_OK(client);
  for (int i = 0; i < 3; ++i) {
    const Outcome refused = RunHostIn((*daemon)->runtime_dir());
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.output, HasSubstr("another process listens on"));
  }
  EXPECT_OK((*client)->GetUsage());
  EXPECT_OK((*daemon)->Connect());
}

TEST_F(Startup, AFolderThatAnybodyMayWriteToIsRefused) {
  const std::string open = dir_ + "/open";
  ASSERT_EQ(mkdir(open.c_str(), 0777), 0);
  ASSERT_EQ(chmod(open.c_str(), 0777), 0);
  Outcome refused = RunHostIn(open);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, AllOf(HasSubstr("any user may write"), HasSubstr("chmod o-w")));
  EXPECT_TRUE(std::filesystem::is_empty(open));
  if (testing::CanBeOtherUsers()) {
    const std::string foreign = dir_ + "/foreign";
    ASSERT_EQ(mkdir(foreign.c_str(), 0755), 0);
    ASSERT_EQ(chown(foreign.c_str(), 65534, 65534), 0);
    refused = RunHostIn(foreign);
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.output, HasSubstr("belongs to uid 65534"));
  }
  const std::string file = dir_ + "/file";
  std::ofstream(file) << "x";
  refused = RunHostIn(file);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("is not a folder"));
  refused = RunHostIn(dir_ + "/" + std::string(100, 'd'));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("choose a shorter folder"));
}

TEST_F(Startup, AFileAtTheSocketsPathIsNotRemoved) {
  const std::string run = dir_ + "/run";
  ASSERT_EQ(mkdir(run.c_str(), 0755), 0);
  std::ofstream(run + "/admin.sock") << "a file of others";
  const Outcome refused = RunHostIn(run);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("admin.sock exists and is not a socket"));
  EXPECT_TRUE(std::filesystem::is_regular_file(run + "/admin.sock"));
}

TEST_F(Startup, SocketsOfAKilledDaemonAreReplaced) {
  const std::string run = dir_ + "/run";
  for (int life = 0; life < 3; ++life) {
    Child daemon({testing::ProgramPath("gpumemd"), "--backend", "host", "--runtime-dir", run,
                  "--state-dir", dir_ + "/state", "--log-level", "error"});
    ASSERT_TRUE(Eventually([&] { return Client::Connect({.runtime_dir = run}).ok(); }));
    daemon.Signal(SIGKILL);
    daemon.Wait();
    EXPECT_TRUE(std::filesystem::is_socket(run + "/session.sock"));
    EXPECT_STATUS(Client::Connect({.runtime_dir = run, .wait = false}), kUnavailable,
                  "no daemon listens");
  }
}

}  // namespace
}  // namespace gpumem
