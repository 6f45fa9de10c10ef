// SPDX-License-Identifier: Apache-2.0
// gpumem-keeper with a service that it keeps running: starts, ends, signals, its command line.
// keeper_store_test.cc has what it stores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/puppet.h"
#include "tests/system/testing/keeper_fixture.h"

namespace gpumem {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;
using testing::KeeperTest;
using testing::Puppet;
using testing::ThisProgram;

// --- Lives and deaths ------------------------------------------------------------------

TEST_F(KeeperTest, QuickDeathsAreFollowedByLongerPauses) {
  Run({});
  Puppet puppet = Next();
  const absl::Time start = absl::Now();
  puppet = NextAfterKill(puppet);
  for (int i = 0; i < 3; ++i) {
    puppet.Exit(7);
    puppet = Next();
  }
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(100 + 200 + 400));
  EXPECT_THAT(Log(), ::testing::ContainsRegex("killed by signal 9 after .* again in 0\\.0 s\n"
                                              "(.*\n)+.*exit code 7 after .* again in 0\\.1 s\n"
                                              "(.*\n)+.*exit code 7 after .* again in 0\\.2 s\n"
                                              "(.*\n)+.*exit code 7 after .* again in 0\\.4 s\n"));
}

TEST_F(KeeperTest, HealthyOnesStartAgainAtOnce) {
  Run({"--healthy-after", "0"});
  Puppet puppet = Next();
  for (int i = 0; i < 10; ++i) puppet = NextAfterKill(puppet);
  EXPECT_THAT(Log(), ::testing::Not(HasSubstr("in 0.1 s")));
}

TEST_F(KeeperTest, SignalsReachTheService) {
  Run({});
  Puppet puppet = Next();
  keeper_.Signal(SIGHUP);  // which ends a puppet
  puppet = Next();
  EXPECT_THAT(Log(), HasSubstr("was killed by signal 1 after"));
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}}) {
    if (!keeper_.running()) {
      Run({});
      puppet = Next();
    }
    keeper_.Signal(signal);
    EXPECT_EQ(Wait(), 128 + signal);
    puppet.AwaitEnd();
    EXPECT_THAT(Log(), HasSubstr(absl::StrCat(name, ": stopping")));
  }
}

TEST_F(KeeperTest, AProgramThatIsBeingReplacedIsTriedAgain) {
  const std::string program = folder_ + "/service";
  std::filesystem::create_symlink(ThisProgram(), program);
  Run({}, {program, "--puppet", stage_->path()});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  const auto vanish = [&] {
    const size_t said = Log().size();
    std::filesystem::remove(program);
    puppet.Kill(SIGKILL);
    EXPECT_TRUE(Eventually([&] {
      return Log().find("cannot run " + program + ": No such file", said) != std::string::npos;
    }));
  };
  vanish();
  std::filesystem::create_symlink(ThisProgram(), program);
  puppet = Next();
  EXPECT_EQ(puppet.Ask("read a"), "x");
  // And when it is stopped while nothing runs, it ends.
  vanish();
  keeper_.Signal(SIGTERM);
  EXPECT_EQ(Wait(), 127);
}

TEST_F(KeeperTest, AServiceThatEndsWellEndsTheKeeper) {
  Run({});
  Next().Exit(0);
  EXPECT_EQ(Wait(), 0);
  EXPECT_THAT(Log(), HasSubstr("ended with exit code 0"));
}

TEST_F(KeeperTest, WrongConfigurationEndsItAtTheFirstStartOnly) {
  Run({});
  Next().Exit(2);
  EXPECT_EQ(Wait(), 2);

  Run({});
  Puppet puppet = Next();
  puppet.Exit(1);  // any other error is worth another try
  puppet = Next();
  puppet.Exit(2);
  puppet = Next();
  puppet.Exit(0);
  EXPECT_EQ(Wait(), 0);

  Run({});
  puppet = Next();
  EXPECT_EQ(puppet.Ask("ready up"), "OK");
  puppet.Exit(2);  // not at its start
  Next().Exit(0);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(KeeperTest, TheServiceOutlivesTheKeeperAndIsTold) {
  Run({});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  keeper_.Signal(SIGKILL);
  EXPECT_EQ(keeper_.Wait(), 128 + SIGKILL);
  EXPECT_EQ(puppet.Ask("lost"), "UNAVAILABLE: gpumem-keeper has ended");
  EXPECT_THAT(puppet.Ask("store b y"), HasSubstr("UNAVAILABLE"));
  EXPECT_EQ(puppet.Ask("close a"), "1");
  puppet.Exit(0);
}

TEST_F(KeeperTest, StateNotificationsAreForwardedToTheKeepersManager) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = folder_ + "/manager";
  memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd manager(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(manager.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  Run({}, {}, {{"NOTIFY_SOCKET", path}});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  EXPECT_EQ(puppet.Ask("ready 2-GPUs"), "OK");
  char text[256];
  const ssize_t size = recv(manager.get(), text, sizeof(text), 0);
  EXPECT_EQ(std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0))),
            "READY=1\nSTATUS=2-GPUs\n");
  EXPECT_EQ(NextAfterKill(puppet).Ask("names"), "a.");  // the store is the puppet's keeper's
}

// --- Its command line ------------------------------------------------------------------

TEST_F(KeeperTest, SaysWhatIsWrongWithItsUsage) {
  const auto fails = [this](const std::vector<std::string>& args, int code) {
    Run(args, {"--"});
    EXPECT_EQ(Wait(), code) << Log();
    return Log();
  };
  EXPECT_THAT(fails({}, 2), HasSubstr("no command to run"));
  EXPECT_THAT(fails({"--max-fds", "0"}, 2), HasSubstr("--max-fds has to be 1 to 1000000"));
  EXPECT_THAT(fails({"--max-fds=1e99"}, 2), HasSubstr("not \"1e99\""));
  EXPECT_THAT(fails({"--max-fds=1.5"}, 2), HasSubstr("not \"1.5\""));
  EXPECT_THAT(fails({"--healthy-after", "-1"}, 2), HasSubstr("--healthy-after has to be"));
  EXPECT_THAT(fails({"--healthy-after", "nan"}, 2), HasSubstr("not \"nan\""));
  EXPECT_THAT(fails({"--unknown"}, 2), HasSubstr("--unknown"));
  EXPECT_THAT(fails({"--help"}, 0), HasSubstr("usage: gpumem-keeper"));
  EXPECT_THAT(fails({"--version"}, 0), HasSubstr("gpumem-keeper 0."));
  EXPECT_THAT(fails({"/nonexistent/gpumemd"}, 127),
              HasSubstr("cannot run /nonexistent/gpumemd: No such file"));
}

TEST_F(KeeperTest, NeedsAPlaceForItsSocket) {
  Run({}, {}, {{"TMPDIR", std::string(200, 'x')}, {"XDG_RUNTIME_DIR", folder_ + "/gone"}});
  // A relative path, and one that does not exist: the next one serves.
  Next().Exit(0);
  EXPECT_EQ(keeper_.Wait(), 0);
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--puppet") return gpumem::testing::RunPuppet(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
