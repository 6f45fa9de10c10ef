// SPDX-License-Identifier: Apache-2.0
// A machine whose /proc hides processes of other users (hidepid, proc(5)), and a daemon that is
// not privileged: it sees no client. Sessions survive its death there, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/daemon_process.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Hear;
using testing::KeptDaemon;
using testing::PatientOptions;
using testing::ProgramPath;
using testing::Say;

class HiddenProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "only root mounts a /proc that hides others";
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    // Without capabilities it is not shown a process that has them, though both are root's. Group 0
    // would be shown all.
    const auto unprivileged = [](const std::string& command) {
      return absl::StrCat("exec unshare --mount sh -c '\n",
                          "  mount -t proc -o hidepid=2 proc /proc && exec setpriv --regid=65534 "
                          "--clear-groups --bounding-set=-all ",
                          command, "' sh \"$@\"\n");
    };
    const std::string probe =
        unprivileged(absl::StrCat("[ -e /proc/self -a ! -e /proc/", getpid(), " ]"));
    if (Child({"/bin/sh", "-c", probe}).Wait() != 0) {
      GTEST_SKIP() << "this machine mounts no /proc that hides processes";
    }
    const std::string program = folder_ + "/gpumemd";
    std::ofstream(program) << "#!/bin/sh\n"
                           << unprivileged(ProgramPath("gpumemd_mortal") + " \"$@\"");
    chmod(program.c_str(), 0755);
    setenv("GPUMEM_GPUMEMD_UNPRIVILEGED", program.c_str(), 1);
    auto daemon = KeptDaemon::Start(
        {.config = "[host]\ndevice_bytes = \"8MiB\"\n", .program = "gpumemd_unprivileged"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  void TearDown() override {
    daemon_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string folder_;
  std::unique_ptr<KeptDaemon> daemon_;
};

TEST_F(HiddenProcessesTest, KeepTheirSessionsAndMemoryWhenTheDaemonIsKilled) {
  auto client = Client::Connect(PatientOptions(daemon_->runtime_dir()));
  ASSERT_TRUE(client.ok()) << client.status();
  auto segment = (*client)->Acquire({.bytes = 4 * kMiB});
  ASSERT_TRUE(segment.ok()) << segment.status();
  for (int death = 1; death <= 2; ++death) {
    ASSERT_TRUE(daemon_->Kill().ok());
    EXPECT_TRUE(segment->Share().ok()) << death;
    EXPECT_THAT(daemon_->Log(),
                ::testing::HasSubstr("1 session is of a process that cannot be told"));
    // No other client is given its memory.
    auto other = Client::Connect(PatientOptions(daemon_->runtime_dir()));
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_TRUE(absl::IsResourceExhausted((*other)->Acquire({.bytes = 8 * kMiB}).status()));
    EXPECT_TRUE((*other)->Acquire({.bytes = 4 * kMiB}).ok());
  }
}

TEST_F(HiddenProcessesTest, EndTheirSessionsIfTheyDieWhileThereIsNoDaemon) {
  Child other = Child::Self({"--hold", daemon_->runtime_dir()});
  ASSERT_EQ(Hear(other.channel()), "holds");
  ASSERT_TRUE(daemon_->Freeze());  // it hears of no death
  other.Signal(SIGKILL);
  other.Wait();
  ASSERT_TRUE(daemon_->Kill().ok());
  EXPECT_THAT(daemon_->Log(), ::testing::HasSubstr("1 session's process has ended"));
}

int Hold(const std::string& runtime_dir) {
  auto client = Client::Connect(PatientOptions(runtime_dir));
  if (!client.ok()) return 1;
  auto segment = (*client)->Acquire({.bytes = 4 * kMiB});
  Say(testing::kParentChannel, segment.ok() ? "holds" : segment.status().ToString());
  pause();
  return 0;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--hold") return gpumem::Hold(argv[2]);
  return RUN_ALL_TESTS();
}
