// SPDX-License-Identifier: Apache-2.0
// The descriptors that gpumem-keeper stores for a service. They outlive the service, and no act of
// the service or another process disturbs the keeper.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/puppet.h"
#include "tests/system/testing/keeper_fixture.h"

namespace gpumem {
namespace {

using testing::CountFds;
using ::testing::HasSubstr;
using testing::KeeperTest;
using testing::Puppet;

// True if a process has a file open whose path contains `name`.
bool HasOpen(pid_t pid, const std::string& name) {
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"))) {
    std::error_code gone;
    if (absl::StrContains(std::filesystem::read_symlink(entry, gone).string(), name)) return true;
  }
  return false;
}

TEST_F(KeeperTest, WhatIsStoredOutlivesTheService) {
  Run({});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("names"), ".");
  for (const char* one : {"store z last", "store a weights", "store m meta", "store a more"}) {
    EXPECT_EQ(puppet.Ask(one), "OK");
  }
  EXPECT_EQ(puppet.Ask("remove m"), "OK");

  puppet = NextAfterKill(puppet);
  EXPECT_EQ(puppet.Ask("names"), "z,a,a.");  // in the order of storing
  EXPECT_EQ(puppet.Ask("read z"), "last");
  EXPECT_EQ(puppet.Ask("read a"), "weights");
  EXPECT_EQ(puppet.Ask("store b new"), "OK");
  EXPECT_EQ(puppet.Ask("remove z"), "OK");

  puppet = NextAfterKill(puppet);
  EXPECT_EQ(puppet.Ask("names"), "a,a,b.");
  EXPECT_EQ(puppet.Ask("read b"), "new");
  puppet.Exit(0);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(KeeperTest, HundredsComeBackEachByItsName) {
  Run({});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store-many s 900"), "OK");
  EXPECT_EQ(puppet.Ask("remove-many s 300"), "OK");
  EXPECT_EQ(puppet.Ask("store-many t 100"), "OK");
  for (int restarts = 0; restarts < 2; ++restarts) {
    puppet = NextAfterKill(puppet);
    for (int i = 0; i < 900; ++i) {
      EXPECT_EQ(puppet.Ask(absl::StrCat("read s", i)), i < 300 ? "none" : absl::StrCat(i));
    }
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(puppet.Ask(absl::StrCat("read t", i)), absl::StrCat(i));
    }
  }
}

TEST_F(KeeperTest, MessagesSentJustBeforeADeathCount) {
  Run({});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store early x"), "OK");
  // The keeper learns of words and death at once; of as many words as the queue takes.
  int queue = 10;
  std::ifstream("/proc/sys/net/unix/max_dgram_qlen") >> queue;
  const int late = std::min(queue - 2, 200);
  keeper_.Signal(SIGSTOP);
  for (int i = 0; i < late; ++i) EXPECT_EQ(puppet.Ask(absl::StrCat("store late", i, " y")), "OK");
  EXPECT_EQ(puppet.Ask("remove early"), "OK");
  puppet.Kill(SIGKILL);
  puppet.AwaitEnd();
  keeper_.Signal(SIGCONT);
  puppet = Next();
  EXPECT_EQ(puppet.Ask("read early"), "none");
  for (int i = 0; i < late; ++i) EXPECT_EQ(puppet.Ask(absl::StrCat("read late", i)), "y");
}

TEST_F(KeeperTest, CratesOutliveTheService) {
  Run({});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("pack-many s 40"), "OK");
  EXPECT_EQ(puppet.Ask("unpack-many s 39"), "OK");
  puppet = NextAfterKill(puppet);
  EXPECT_EQ(puppet.Ask("names"), "s39.");
  EXPECT_EQ(puppet.Ask("read s39"), "39");
}

TEST_F(KeeperTest, TheServiceInheritsNothingButTheStore) {
  const UniqueFd inherited_by_mistake(memfd_create("gpumem-mistake", 0));  // across exec
  Run({"--max-fds", "7"}, {},
      {{"LISTEN_FDS", "3"}, {"LISTEN_PID", "1"}, {"LISTEN_FDNAMES", "a:b:c"}});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("capacity"), "7");
  EXPECT_EQ(puppet.Ask("names"), ".");
  const std::string fds = puppet.Ask("fds");
  for (const char* name : {"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "FDSTORE"}) {
    EXPECT_EQ(puppet.Ask(absl::StrCat("env ", name)), "none");
  }
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  EXPECT_EQ(puppet.Ask("close a"), "1");
  puppet = NextAfterKill(puppet);
  EXPECT_EQ(puppet.Ask("close a"), "1");
  // None of the keeper's own descriptors, or of its parent's.
  EXPECT_EQ(puppet.Ask("fds"), fds);
  EXPECT_TRUE(HasOpen(keeper_.pid(), "gpumem-mistake"));
  EXPECT_FALSE(HasOpen(puppet.pid(), "gpumem-mistake"));
  EXPECT_EQ(CountFds(puppet.pid()), std::atoi(fds.c_str()));
}

TEST_F(KeeperTest, AFullStoreRefusesAndSaysSo) {
  Run({"--max-fds", "3"});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("check-room"), "OK");
  EXPECT_EQ(puppet.Ask("store-many s 3"), "OK");
  EXPECT_THAT(puppet.Ask("check-room"), HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_EQ(puppet.Ask("store one-more x"), "OK");  // a datagram gets no answer
  EXPECT_EQ(puppet.Ask("raw 9 FDSTORE=1\nFDNAME=nine-more"), "OK");
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  EXPECT_THAT(Log(), HasSubstr("the store is full with 3"));
  EXPECT_EQ(puppet.Ask("remove s1"), "OK");
  EXPECT_EQ(puppet.Ask("check-room"), "OK");
  EXPECT_EQ(puppet.Ask("store fits x"), "OK");
  EXPECT_EQ(NextAfterKill(puppet).Ask("names"), "s0,s2,fits.");
}

TEST_F(KeeperTest, HostileMessagesChangeNothing) {
  Run({"--max-fds", "100"});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store kept x"), "OK");
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  const int fds = CountFds(keeper_.pid());
  const std::vector<std::string> messages = {
      "1 FDSTORE=1\nFDNAME=a:b",
      "1 FDSTORE=1\nFDNAME=",
      absl::StrCat("1 FDSTORE=1\nFDNAME=", std::string(256, 'n')),
      absl::StrCat("1 FDSTORE=1\nFDNAME=", std::string(3000, 'n')),
      absl::StrCat("1 FDSTORE=1\nFDNAME=cut\n", std::string(60'000, 'x')),
      "1 FDNAME=no-verb",
      "253 FDNAME=no-verb",
      "0 FDSTORE=1\nFDNAME=no-descriptor",
      "0 FDSTOREREMOVE=1\nFDNAME=unknown",
      "0 FDSTOREREMOVE=1\nFDNAME=kept\n" + std::string(5000, '\n'),
      "0 FDSTOREREMOVE=1\nFDNAME=" + std::string(300, 'k'),
      "5 BARRIER=1\nFDSTORE=1\nFDNAME=with-barrier",
      "3 \xff\xfe\xfd",
      "0 =",
  };
  for (const std::string& message : messages) EXPECT_EQ(puppet.Ask("raw " + message), "OK");
  // From a process other than the service's main process.
  EXPECT_EQ(puppet.Ask("raw-child 1 FDSTORE=1\nFDNAME=evil"), "OK");
  EXPECT_EQ(puppet.Ask("raw-child 0 FDSTOREREMOVE=1\nFDNAME=kept"), "OK");
  // A stranger of the same user.
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = NotifySocket();
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string evil = "FDSTOREREMOVE=1\nFDNAME=kept";
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(send(socket.get(), evil.data(), evil.size(), 0), static_cast<ssize_t>(evil.size()));
    EXPECT_EQ(send(socket.get(), "", 0, 0), 0);
  }
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  EXPECT_EQ(CountFds(keeper_.pid()), fds);
  // It does not fill the log either.
  EXPECT_THAT(Log(), HasSubstr("are not reported"));
  EXPECT_LT(Log().size(), 3000);
  EXPECT_EQ(NextAfterKill(puppet).Ask("names"), "kept.");
}

TEST_F(KeeperTest, OnlyItsUserMayEnterTheSocketsFolder) {
  Run({});
  (void)Next();
  const std::filesystem::path folder = std::filesystem::path(NotifySocket()).parent_path();
  EXPECT_EQ(std::filesystem::status(folder).permissions(), std::filesystem::perms::owner_all);
}

TEST_F(KeeperTest, ThousandStoresAndRestartsLeaveNothingBehind) {
  Run({"--healthy-after", "0"});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store kept x"), "OK");
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  const int fds = CountFds(keeper_.pid());
  EXPECT_EQ(puppet.Ask("store-many s 1000"), "OK");
  EXPECT_EQ(CountFds(keeper_.pid()), fds + 1000);
  EXPECT_EQ(puppet.Ask("remove-many s 1000"), "OK");
  EXPECT_EQ(CountFds(keeper_.pid()), fds);

  puppet = NextAfterKill(puppet);
  const std::string of_service = puppet.Ask("fds");
  for (int i = 0; i < 1000; ++i) {
    puppet = NextAfterKill(puppet);
    if (HasFailure()) break;
  }
  EXPECT_EQ(puppet.Ask("read kept"), "x");
  EXPECT_EQ(puppet.Ask("fds"), of_service);
  EXPECT_EQ(CountFds(keeper_.pid()), fds);
  EXPECT_EQ(testing::ChildrenOf(keeper_.pid()).size(), 1u);
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--puppet") return gpumem::testing::RunPuppet(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
