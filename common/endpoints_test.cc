// SPDX-License-Identifier: Apache-2.0
#include "common/endpoints.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/unix_channel.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace {

constexpr uid_t kSomeUser = 54321;

// Runs as a user other than root if it can, since root has a separate folder.
class EndpointsTest : public ::testing::Test {
 protected:
  EndpointsTest() {
    char name[] = "/tmp/endpoints-XXXXXX";
    folder_ = mkdtemp(name);
    unsetenv("GPUMEM_RUNTIME_DIR");
    setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
  }
  void SetUp() override {
    if (geteuid() != 0) return;
    was_root_ = true;
    if (chown(folder_.c_str(), kSomeUser, kSomeUser) < 0 || seteuid(kSomeUser) < 0) {
      GTEST_SKIP() << "root of a namespace without other users";
    }
  }
  ~EndpointsTest() override {
    BecomeRoot();
    std::filesystem::remove_all(folder_);
  }

  bool BecomeRoot() { return was_root_ && seteuid(0) == 0; }

  UniqueFd ListenIn(const std::string& dir) {
    std::filesystem::create_directories(dir);
    return ListenUnix(SocketPath(dir, kSessionSocket), SOCK_SEQPACKET, 0600).value();
  }

  std::string folder_;
  bool was_root_ = false;
};

TEST_F(EndpointsTest, TheEnvironmentDecides) {
  setenv("GPUMEM_RUNTIME_DIR", "/somewhere", 1);
  EXPECT_EQ(DaemonRuntimeDir(), "/somewhere");
  EXPECT_EQ(ClientRuntimeDir(), "/somewhere");
}

TEST_F(EndpointsTest, ADaemonOfAUserIsInItsRuntimeFolder) {
  EXPECT_EQ(DaemonRuntimeDir(), folder_ + "/gpumem");
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(DaemonRuntimeDir(), absl::StrCat("/tmp/gpumem-", geteuid()));
  if (BecomeRoot()) {
    EXPECT_EQ(DaemonRuntimeDir(), "/run/gpumem");
  }
}

TEST_F(EndpointsTest, TheStateIsWhereTheServiceManagerOrTheUserKeepsIt) {
  unsetenv("STATE_DIRECTORY");
  setenv("XDG_STATE_HOME", "/state", 1);
  setenv("HOME", "/home/user", 1);
  EXPECT_EQ(DaemonStateDir(), "/state/gpumem");
  unsetenv("XDG_STATE_HOME");
  EXPECT_EQ(DaemonStateDir(), "/home/user/.local/state/gpumem");
  unsetenv("HOME");
  EXPECT_EQ(DaemonStateDir(), "");
  if (BecomeRoot()) {
    EXPECT_EQ(DaemonStateDir(), "/var/lib/gpumem");
  }
  setenv("STATE_DIRECTORY", "/var/lib/a:/var/lib/b", 1);
  EXPECT_EQ(DaemonStateDir(), "/var/lib/a");
  unsetenv("STATE_DIRECTORY");
}

TEST_F(EndpointsTest, AClientLooksForTheUsersDaemonFirst) {
  EXPECT_EQ(ClientRuntimeDir(), "/run/gpumem");
  UniqueFd listener = ListenIn(folder_ + "/gpumem");
  EXPECT_EQ(ClientRuntimeDir(), folder_ + "/gpumem");
}

TEST_F(EndpointsTest, AFolderOfSomebodyElseIsNotTrusted) {
  if (!was_root_) GTEST_SKIP() << "needs root to give a folder away";
  UniqueFd listener = ListenIn(folder_ + "/gpumem");
  ASSERT_TRUE(BecomeRoot());
  ASSERT_EQ(chown((folder_ + "/gpumem").c_str(), kSomeUser + 1, kSomeUser + 1), 0);
  ASSERT_EQ(seteuid(kSomeUser), 0);
  EXPECT_EQ(ClientRuntimeDir(), "/run/gpumem");
}

}  // namespace
}  // namespace gpumem
