// gpumem-keeper with a service that it keeps running. Stored descriptors outlive the service, and
// no act of the service or another process disturbs the keeper.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/puppet.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::CountFds;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::Puppet;
using testing::PuppetStage;

std::string ThisProgram() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  return std::string(path, size > 0 ? static_cast<size_t>(size) : 0);
}

// $GPUMEM_KEEPER, or the one in the folder of this program.
std::string KeeperPath() {
  if (const char* path = std::getenv("GPUMEM_KEEPER")) return path;
  return (std::filesystem::path(ThisProgram()).parent_path() / "gpumem-keeper").string();
}

// True if a process has a file open whose path contains `name`.
bool HasOpen(pid_t pid, const std::string& name) {
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"))) {
    std::error_code gone;
    if (absl::StrContains(std::filesystem::read_symlink(entry, gone).string(), name)) return true;
  }
  return false;
}

class KeeperTest : public ::testing::Test {
 protected:
  KeeperTest() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
    auto stage = PuppetStage::Open(folder_);
    EXPECT_TRUE(stage.ok()) << stage.status();
    stage_ = *std::move(stage);
  }
  ~KeeperTest() override {
    keeper_ = Child();
    std::filesystem::remove_all(folder_);
  }

  // Runs the keeper with these options and this command; the puppet where none is given.
  void Run(std::vector<std::string> options, std::vector<std::string> command = {},
           std::vector<std::pair<std::string, std::string>> env = {}) {
    if (command.empty()) command = {ThisProgram(), "--puppet", stage_->path()};
    // In the shell's place, with a log instead of standard error.
    const std::string shell = absl::StrCat("exec \"$0\" \"$@\" >>", folder_, "/log 2>&1");
    std::vector<std::string> args = {"/bin/sh", "-c", shell, KeeperPath()};
    args.insert(args.end(), options.begin(), options.end());
    args.insert(args.end(), command.begin(), command.end());
    if (env.empty() || env[0].first != "TMPDIR") env.emplace_back("TMPDIR", folder_);
    keeper_ = Child(args, env);
  }
  Puppet Next() {
    absl::StatusOr<Puppet> next = stage_->Next();
    EXPECT_TRUE(next.ok()) << next.status() << "\n" << Log();
    return next.ok() ? *std::move(next) : Puppet();
  }
  Puppet NextAfterKill(const Puppet& puppet) {
    puppet.Kill(SIGKILL);
    return Next();
  }
  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(folder_ + "/log").rdbuf();
    return text.str();
  }
  // The keeper's exit code, with nothing of it left in the folder.
  int Wait() {
    const int code = keeper_.Wait();
    EXPECT_EQ(NotifySocket(), "") << "left behind";
    return code;
  }
  // The path of the keeper's socket; empty: there is none.
  std::string NotifySocket() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (absl::StartsWith(entry.path().filename().string(), "gpumem-keeper-")) {
        return (entry.path() / "notify").string();
      }
    }
    return "";
  }

  std::string folder_;
  std::unique_ptr<PuppetStage> stage_;
  Child keeper_;
};

// --- Descriptors -----------------------------------------------------------------------

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

TEST_F(KeeperTest, TheLastWordsOfTheDyingCount) {
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

TEST_F(KeeperTest, KeepsCratesToo) {
  Run({});
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("pack-many s 40"), "OK");
  EXPECT_EQ(puppet.Ask("unpack-many s 39"), "OK");
  puppet = NextAfterKill(puppet);
  EXPECT_EQ(puppet.Ask("names"), "s39.");
  EXPECT_EQ(puppet.Ask("read s39"), "39");
}

TEST_F(KeeperTest, TheServiceGetsNothingElse) {
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
  EXPECT_THAT(puppet.Ask("check-room"), HasSubstr("RESOURCE_EXHAUSTED: the service manager does"));
  EXPECT_EQ(puppet.Ask("store one-more x"), "OK");  // a datagram gets no answer
  EXPECT_EQ(puppet.Ask("raw 9 FDSTORE=1\nFDNAME=nine-more"), "OK");
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  EXPECT_THAT(Log(), HasSubstr("there is no room for more than 3"));
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
  EXPECT_THAT(Log(), HasSubstr("does not report"));
  EXPECT_LT(Log().size(), 3000);
  EXPECT_EQ(NextAfterKill(puppet).Ask("names"), "kept.");
}

TEST_F(KeeperTest, OnlyItsUserComesNearTheSocket) {
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
  EXPECT_EQ(testing::CountChildren(keeper_.pid()), 1);
}

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

TEST_F(KeeperTest, WordsAboutTheStateGoToItsOwnManager) {
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
