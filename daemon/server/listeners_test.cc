// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/listeners.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/unix_channel.h"
#include "daemon/server/runtime_dir.h"

namespace gpumemd {
namespace {

using gpumem::ConnectUnix;
using gpumem::ListenUnix;
using gpumem::UniqueFd;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ListenersTest : public ::testing::Test {
 protected:
  ListenersTest() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
    config_ = DefaultConfig();
    config_.runtime_dir = folder_ + "/run";
  }
  ~ListenersTest() override { std::filesystem::remove_all(folder_); }

  // As the manager makes it; blocking, as systemd's are.
  NamedFd Made(const std::string& name, int type, const std::string& file, mode_t mode = 0666) {
    mkdir(config_.runtime_dir.c_str(), 0755);
    absl::StatusOr<UniqueFd> socket = ListenUnix(config_.runtime_dir + "/" + file, type, mode);
    EXPECT_TRUE(socket.ok()) << socket.status();
    fcntl(socket->get(), F_SETFL, 0);
    return {name, *std::move(socket)};
  }
  std::vector<NamedFd> All() {
    std::vector<NamedFd> all;
    all.push_back(Made("admin", SOCK_STREAM, "admin.sock", 0660));
    all.push_back(Made("session", SOCK_SEQPACKET, "session.sock"));
    all.push_back(Made("view", SOCK_STREAM, "view.sock", 0660));
    return all;
  }
  absl::Status Refused(NamedFd one) {
    std::vector<NamedFd> handed_over;
    handed_over.push_back(std::move(one));
    return Listeners::Open(config_, std::move(handed_over)).status();
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    if (!std::filesystem::exists(config_.runtime_dir)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(config_.runtime_dir)) {
      if (entry.path().filename() == RuntimeDir::kMadeMark) continue;
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  bool CanConnect(const std::string& file, int type) const {
    return ConnectUnix(config_.runtime_dir + "/" + file, type).ok();
  }

  std::string folder_;
  Config config_;
};

TEST_F(ListenersTest, MakesThemAndTakesThemAway) {
  {
    auto made = Listeners::Open(config_, {});
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_THAT(Files(), ElementsAre("admin.sock", "session.sock", "view.sock"));
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    EXPECT_TRUE(CanConnect("admin.sock", SOCK_STREAM));
    EXPECT_TRUE(CanConnect("view.sock", SOCK_STREAM));
    EXPECT_EQ(made->handed_over, 0);
    EXPECT_EQ(Listeners::Open(config_, {}).status().code(), absl::StatusCode::kAlreadyExists);
    // What failed has left what there was.
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
  }
  EXPECT_FALSE(std::filesystem::exists(config_.runtime_dir));
}

TEST_F(ListenersTest, UsesThoseThatWereHandedOverAndLeavesThem) {
  {
    auto taken = Listeners::Open(config_, All());
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->handed_over, 3);
    EXPECT_THAT(taken->notices, IsEmpty());
    for (const UniqueFd* socket : {&taken->session, &taken->admin, &taken->view}) {
      ASSERT_TRUE(socket->valid());
      EXPECT_NE(fcntl(socket->get(), F_GETFL) & O_NONBLOCK, 0);
    }
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    UniqueFd accepted(accept4(taken->session.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(accepted.valid());
    taken->RemoveFiles();
  }
  EXPECT_THAT(Files(), ElementsAre("admin.sock", "session.sock", "view.sock"));
}

TEST_F(ListenersTest, MakesThoseThatAreMissing) {
  std::vector<NamedFd> one;
  one.push_back(Made("session", SOCK_SEQPACKET, "session.sock"));
  auto listeners = Listeners::Open(config_, std::move(one));
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  EXPECT_EQ(listeners->handed_over, 1);
  EXPECT_TRUE(CanConnect("admin.sock", SOCK_STREAM));
  EXPECT_TRUE(CanConnect("view.sock", SOCK_STREAM));
  listeners->RemoveFiles();
  EXPECT_THAT(Files(), ElementsAre("session.sock"));
}

TEST_F(ListenersTest, WhatIsNoneOfThemIsRefusedByName) {
  const absl::Status unknown = Refused(Made("gpumemd.socket", SOCK_STREAM, "x.sock"));
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"gpumemd.socket\""));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("FileDescriptorName="));

  const absl::Status stream = Refused(Made("session", SOCK_STREAM, "session.sock"));
  EXPECT_EQ(stream.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(stream.message()), HasSubstr("ListenSequentialPacket="));

  NamedFd tcp{"admin", UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  EXPECT_EQ(Refused(std::move(tcp)).code(), absl::StatusCode::kInvalidArgument);

  std::vector<NamedFd> twice;
  twice.push_back(Made("admin", SOCK_STREAM, "admin.sock"));
  twice.push_back(Made("admin", SOCK_STREAM, "admin2.sock"));
  EXPECT_EQ(Listeners::Open(config_, std::move(twice)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ListenersTest, TellsWhereUnitAndConfigurationDiffer) {
  std::vector<NamedFd> all = All();
  config_.session_socket_mode = 0660;
  config_.admin_gid = getegid() + 1;
  config_.view_gid = getegid() + 1;
  auto listeners = Listeners::Open(config_, std::move(all));
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  EXPECT_THAT(listeners->notices,
              ElementsAre(HasSubstr("session.sock has mode 0666"),
                          HasSubstr("members of admin_group cannot connect; set SocketGroup="),
                          HasSubstr("members of view_group cannot connect; set SocketGroup=")));
}

TEST_F(ListenersTest, TellsOfASocketWhereNoClientLooks) {
  std::vector<NamedFd> one;
  one.push_back(Made("admin", SOCK_STREAM, "admin2.sock", 0660));
  auto listeners = Listeners::Open(config_, std::move(one));
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  EXPECT_THAT(listeners->notices, ElementsAre(HasSubstr("admin2.sock")));
}

TEST_F(ListenersTest, KeptOnesGoOnAsTheConfigurationSays) {
  std::vector<NamedFd> kept = All();
  config_.session_socket_mode = 0600;
  {
    auto listeners = Listeners::Open(config_, std::move(kept), /*kept=*/true);
    ASSERT_TRUE(listeners.ok()) << listeners.status();
    EXPECT_EQ(listeners->handed_over, 3);
    EXPECT_THAT(listeners->notices, IsEmpty());
    struct stat file;
    ASSERT_EQ(stat((config_.runtime_dir + "/session.sock").c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u);
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    // With another daemon to follow, they stay.
    listeners->LeaveForNext();
  }
  EXPECT_THAT(Files(), ElementsAre("admin.sock", "session.sock", "view.sock"));
}

TEST_F(ListenersTest, KeptOnesThatNoPathLeadsToAreMadeAnew) {
  std::vector<NamedFd> kept = All();
  ASSERT_EQ(unlink((config_.runtime_dir + "/session.sock").c_str()), 0);
  {
    auto listeners = Listeners::Open(config_, std::move(kept), /*kept=*/true);
    ASSERT_TRUE(listeners.ok()) << listeners.status();
    EXPECT_EQ(listeners->handed_over, 2);
    ASSERT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    const UniqueFd accepted(accept4(listeners->session.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(accepted.valid());
    listeners->Serves();
  }
  // Without another daemon to follow, all of them go.
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(ListenersTest, AStartThatFailsTakesAwayWhatItMadeAlone) {
  std::vector<NamedFd> kept = All();
  ASSERT_EQ(unlink((config_.runtime_dir + "/session.sock").c_str()), 0);
  ASSERT_TRUE(Listeners::Open(config_, std::move(kept), /*kept=*/true).ok());
  EXPECT_THAT(Files(), ElementsAre("admin.sock", "view.sock"));
}

TEST_F(ListenersTest, TheFolderGoesWithTheLastDaemonThatServes) {
  {
    auto first = Listeners::Open(config_, {});
    ASSERT_TRUE(first.ok()) << first.status();
    first->Serves();
    first->LeaveForNext();
  }
  EXPECT_TRUE(std::filesystem::exists(config_.runtime_dir));
  // A start that fails.
  ASSERT_TRUE(Listeners::Open(config_, {}, /*kept=*/true).ok());
  EXPECT_TRUE(std::filesystem::exists(config_.runtime_dir));
  {
    auto last = Listeners::Open(config_, {}, /*kept=*/true);
    ASSERT_TRUE(last.ok()) << last.status();
    last->Serves();
  }
  EXPECT_FALSE(std::filesystem::exists(config_.runtime_dir));
  // One that no daemon has made stays.
  ASSERT_EQ(mkdir(config_.runtime_dir.c_str(), 0755), 0);
  {
    auto other = Listeners::Open(config_, {});
    ASSERT_TRUE(other.ok()) << other.status();
    other->Serves();
  }
  EXPECT_TRUE(std::filesystem::is_empty(config_.runtime_dir));
}

TEST_F(ListenersTest, AFolderThatOthersMayWriteToIsRefused) {
  std::vector<NamedFd> all = All();
  chmod(config_.runtime_dir.c_str(), 0777);
  EXPECT_EQ(Listeners::Open(config_, std::move(all)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ListenersTest, AFolderThatOthersMayReplaceIsRefused) {
  const std::string parent = folder_ + "/parent";
  ASSERT_EQ(mkdir(parent.c_str(), 0755), 0);
  config_.runtime_dir = parent + "/between/run";
  const auto open = [&] { return Listeners::Open(config_, {}).status(); };
  EXPECT_EQ(open(), absl::OkStatus());
  chmod(parent.c_str(), 0777);
  const absl::Status others = open();
  EXPECT_EQ(others.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(others.message()), HasSubstr("any user may write to " + parent + ","));
  // In a sticky folder, as /tmp, users can change only their own files.
  chmod(parent.c_str(), 01777);
  EXPECT_EQ(open(), absl::OkStatus());
  // By a link it is the same folder.
  chmod(parent.c_str(), 0777);
  ASSERT_EQ(symlink(parent.c_str(), (folder_ + "/link").c_str()), 0);
  config_.runtime_dir = folder_ + "/link/between/run";
  EXPECT_EQ(open().code(), absl::StatusCode::kFailedPrecondition);
  chmod(parent.c_str(), 0755);
  EXPECT_EQ(open(), absl::OkStatus());
  if (chown(parent.c_str(), 12345, 0) != 0) {
    GTEST_SKIP() << "only root of the machine can give a folder to another user";
  }
  const absl::Status owned = open();
  EXPECT_EQ(owned.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(owned.message()), HasSubstr("uid 12345 owns"));
  ASSERT_EQ(chown(parent.c_str(), 0, 12345), 0);
  chmod(parent.c_str(), 0775);
  EXPECT_THAT(std::string(open().message()), HasSubstr("group 12345 may write to"));
}

TEST_F(ListenersTest, EachLinkOnTheWayIsSafeFromOthers) {
  const std::string open = folder_ + "/open", safe = folder_ + "/safe";
  ASSERT_EQ(mkdir(open.c_str(), 0755), 0);
  ASSERT_EQ(mkdir(safe.c_str(), 0755), 0);
  // By the folder that others may write to, which is in no path that is named, nor in the last.
  ASSERT_EQ(symlink("../safe", (open + "/second").c_str()), 0);
  ASSERT_EQ(symlink("open/second", (folder_ + "/first").c_str()), 0);
  config_.runtime_dir = folder_ + "/first/run";
  EXPECT_EQ(Listeners::Open(config_, {}).status(), absl::OkStatus());
  chmod(open.c_str(), 0777);
  const absl::Status refused = Listeners::Open(config_, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("any user may write to " + open + ","));
  chmod(open.c_str(), 0755);
  ASSERT_EQ(symlink("loop", (folder_ + "/loop").c_str()), 0);
  config_.runtime_dir = folder_ + "/loop/run";
  EXPECT_FALSE(Listeners::Open(config_, {}).ok());
}

bool Write(const char* path, const std::string& text) {
  const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  return write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// As in sandboxes for ordinary users: the namespace maps only the uid of the user.
TEST_F(ListenersTest, InAUserNamespaceWithoutRootItStartsToo) {
  constexpr int kNoNamespaces = 77;
  constexpr uid_t kUser = 12345;
  const pid_t child = fork();
  if (child == 0) {
    const uid_t user = geteuid() == 0 ? kUser : geteuid();
    if (geteuid() == 0 && (setgid(kUser) != 0 || setuid(kUser) != 0)) _exit(kNoNamespaces);
    // So that the files in /proc/self belong to the user.
    prctl(PR_SET_DUMPABLE, 1);
    if (unshare(CLONE_NEWUSER) != 0 || !Write("/proc/self/setgroups", "deny") ||
        !Write("/proc/self/uid_map", absl::StrCat(user, " ", user, " 1"))) {
      _exit(kNoNamespaces);
    }
    struct stat root;
    if (stat("/", &root) != 0 || root.st_uid == 0 || root.st_uid == user) _exit(kNoNamespaces);
    char made[] = "/tmp/gpumem-test-XXXXXX";
    const std::string folder = mkdtemp(made);
    int wrong = 0;
    config_.runtime_dir = folder + "/between/run";
    if (!Listeners::Open(config_, {}).ok()) wrong = 1;
    chmod((folder + "/between").c_str(), 0777);
    if (!absl::IsFailedPrecondition(Listeners::Open(config_, {}).status())) wrong = 2;
    std::filesystem::remove_all(folder);
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kNoNamespaces) {
    GTEST_SKIP() << "an ordinary user may make no user namespace here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gpumemd
