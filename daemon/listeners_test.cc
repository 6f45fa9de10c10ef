#include "daemon/listeners.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/unix_channel.h"

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
    EXPECT_THAT(Files(), ElementsAre("admin.sock", "session.sock"));
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    EXPECT_TRUE(CanConnect("admin.sock", SOCK_STREAM));
    EXPECT_TRUE(CanConnect("admin.sock", SOCK_STREAM));
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
    EXPECT_EQ(taken->handed_over, 2);
    EXPECT_THAT(taken->notices, IsEmpty());
    for (const UniqueFd* socket : {&taken->session, &taken->admin}) {
      ASSERT_TRUE(socket->valid());
      EXPECT_NE(fcntl(socket->get(), F_GETFL) & O_NONBLOCK, 0);
    }
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    UniqueFd accepted(accept4(taken->session.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(accepted.valid());
    taken->RemoveFiles();
  }
  EXPECT_THAT(Files(), ElementsAre("admin.sock", "session.sock"));
}

TEST_F(ListenersTest, MakesThoseThatAreMissing) {
  std::vector<NamedFd> one;
  one.push_back(Made("session", SOCK_SEQPACKET, "session.sock"));
  auto listeners = Listeners::Open(config_, std::move(one));
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  EXPECT_EQ(listeners->handed_over, 1);
  EXPECT_TRUE(CanConnect("admin.sock", SOCK_STREAM));
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
  auto listeners = Listeners::Open(config_, std::move(all));
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  EXPECT_THAT(listeners->notices,
              ElementsAre(HasSubstr("session.sock has mode 0666"), HasSubstr("SocketGroup=")));
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
    EXPECT_EQ(listeners->handed_over, 2);
    EXPECT_THAT(listeners->notices, IsEmpty());
    struct stat file;
    ASSERT_EQ(stat((config_.runtime_dir + "/session.sock").c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u);
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    // With another daemon to follow, they stay.
    listeners->LeaveForNext();
  }
  EXPECT_THAT(Files(), ElementsAre("admin.sock", "session.sock"));
}

TEST_F(ListenersTest, KeptOnesThatNoPathLeadsToAreMadeAnew) {
  std::vector<NamedFd> kept = All();
  ASSERT_EQ(unlink((config_.runtime_dir + "/session.sock").c_str()), 0);
  {
    auto listeners = Listeners::Open(config_, std::move(kept), /*kept=*/true);
    ASSERT_TRUE(listeners.ok()) << listeners.status();
    EXPECT_EQ(listeners->handed_over, 1);
    ASSERT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    const UniqueFd accepted(accept4(listeners->session.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(accepted.valid());
  }
  // Without another daemon to follow, all of them go.
  EXPECT_THAT(Files(), IsEmpty());
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
  // In a sticky folder, as /tmp, each can change only what is his.
  chmod(parent.c_str(), 01777);
  EXPECT_EQ(open(), absl::OkStatus());
  // By a link it is the same folder.
  chmod(parent.c_str(), 0777);
  ASSERT_EQ(symlink(parent.c_str(), (folder_ + "/link").c_str()), 0);
  config_.runtime_dir = folder_ + "/link/between/run";
  EXPECT_EQ(open().code(), absl::StatusCode::kFailedPrecondition);
  chmod(parent.c_str(), 0755);
  EXPECT_EQ(open(), absl::OkStatus());
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  ASSERT_EQ(chown(parent.c_str(), 12345, 0), 0);
  const absl::Status owned = open();
  EXPECT_EQ(owned.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(owned.message()), HasSubstr("uid 12345 owns"));
  ASSERT_EQ(chown(parent.c_str(), 0, 12345), 0);
  chmod(parent.c_str(), 0775);
  EXPECT_THAT(std::string(open().message()), HasSubstr("group 12345 may write to"));
}

}  // namespace
}  // namespace gpumemd
