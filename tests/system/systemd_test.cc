// SPDX-License-Identifier: Apache-2.0
// The FD store of the machine's own systemd, as FdStore finds it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/puppet.h"
#include "tests/support/systemd_machine.h"

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using testing::Puppet;
using testing::PuppetStage;
using testing::SystemdMachine;

std::string ThisProgram() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  return std::string(path, size > 0 ? static_cast<size_t>(size) : 0);
}

class SystemdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto machine = SystemdMachine::Boot();
    if (absl::IsFailedPrecondition(machine.status())) GTEST_SKIP() << machine.status().message();
    ASSERT_TRUE(machine.ok()) << machine.status();
    machine_ = *std::move(machine);
    auto stage = PuppetStage::Open(machine_->folder());
    ASSERT_TRUE(stage.ok()) << stage.status();
    stage_ = *std::move(stage);
  }

  // Starts the service with these lines in its unit.
  void Start(const std::string& lines, const std::string& before_program = "") {
    machine_->WriteUnit("puppet.service",
                        absl::StrCat("[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\n",
                                     "[Service]\nNotifyAccess=main\nRestart=on-failure\n",
                                     "RestartSec=0\nStandardError=append:", machine_->folder(),
                                     "/puppet.log\nExecStart=", before_program, ThisProgram(),
                                     " --puppet ", stage_->path(), "\n", lines, "\n"));
    const auto started = machine_->Systemctl({"start", "--no-block", "puppet"});
    EXPECT_EQ(started.code, 0) << started.output;
  }
  Puppet Next() {
    absl::StatusOr<Puppet> next = stage_->Next();
    EXPECT_TRUE(next.ok()) << next.status() << "\n" << machine_->Log();
    return next.ok() ? *std::move(next) : Puppet();
  }
  Puppet NextAfterKill(const Puppet& puppet) {
    puppet.Kill(SIGKILL);
    return Next();
  }
  // Sorted: systemd promises no order.
  static std::vector<std::string> Names(const Puppet& puppet) {
    const std::string answer = puppet.Ask("names");
    std::vector<std::string> names =
        absl::StrSplit(absl::StripSuffix(answer, "."), ',', absl::SkipEmpty());
    std::sort(names.begin(), names.end());
    return names;
  }
  int Stored() const {
    int stored = -1;
    (void)absl::SimpleAtoi(machine_->Property("puppet", "NFileDescriptorStore"), &stored);
    return stored;
  }

  std::unique_ptr<SystemdMachine> machine_;
  std::unique_ptr<PuppetStage> stage_;
};

TEST_F(SystemdTest, WhatIsStoredOutlivesTheService) {
  Start("FileDescriptorStoreMax=100");
  Puppet puppet = Next();
  EXPECT_THAT(Names(puppet), ::testing::IsEmpty());
  for (const char* one : {"store z last", "store a weights", "store m meta", "store b more"}) {
    EXPECT_EQ(puppet.Ask(one), "OK");
  }
  EXPECT_EQ(puppet.Ask("remove m"), "OK");
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  EXPECT_EQ(Stored(), 3);
  for (int deaths = 0; deaths < 3; ++deaths) {
    puppet = NextAfterKill(puppet);
    EXPECT_THAT(Names(puppet), ::testing::ElementsAre("a", "b", "z"));
    EXPECT_EQ(puppet.Ask("read z"), "last");
    EXPECT_EQ(puppet.Ask("read a"), "weights");
    EXPECT_EQ(puppet.Ask("read b"), "more");
    EXPECT_EQ(puppet.Ask("read m"), "none");
  }
}

TEST_F(SystemdTest, HundredsComeBackAndGo) {
  Start("FileDescriptorStoreMax=2000");
  Puppet puppet = Next();
  const absl::Time start = absl::Now();
  EXPECT_EQ(puppet.Ask("store-many s 500"), "OK");
  RecordProperty("store_500_ms", static_cast<int>((absl::Now() - start) / absl::Milliseconds(1)));
  EXPECT_EQ(Stored(), 500);
  puppet = NextAfterKill(puppet);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(puppet.Ask(absl::StrCat("read s", i)), absl::StrCat(i));
  EXPECT_EQ(puppet.Ask("remove-many s 499"), "OK");
  EXPECT_EQ(Stored(), 1);  // RemoveAndWait has waited for it
  EXPECT_THAT(Names(NextAfterKill(puppet)), ::testing::ElementsAre("s499"));
}

TEST_F(SystemdTest, ThreeThousandDescriptorsInCratesComeBack) {
  Start("FileDescriptorStoreMax=200");
  Puppet puppet = Next();
  absl::Time start = absl::Now();
  EXPECT_EQ(puppet.Ask("pack-many s 3000"), "OK");
  RecordProperty("pack_3000_ms", static_cast<int>((absl::Now() - start) / absl::Milliseconds(1)));
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  EXPECT_EQ(Stored(), 2 * ((3000 + 31) / 32));
  EXPECT_EQ(puppet.Ask("store j1 journal"), "OK");
  puppet = NextAfterKill(puppet);
  for (int i = 0; i < 3000; i += 7) {
    EXPECT_EQ(puppet.Ask(absl::StrCat("read s", i)), absl::StrCat(i));
  }
  EXPECT_EQ(puppet.Ask("read j1"), "journal");
  start = absl::Now();
  EXPECT_EQ(puppet.Ask("unpack-many s 2999"), "OK");
  RecordProperty("unpack_2999_ms", static_cast<int>((absl::Now() - start) / absl::Milliseconds(1)));
  EXPECT_THAT(Names(NextAfterKill(puppet)), ::testing::ElementsAre("j1", "s2999"));
}

TEST_F(SystemdTest, MessagesSentJustBeforeADeathCount) {
  Start("FileDescriptorStoreMax=100");
  Puppet puppet = Next();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(puppet.Ask(absl::StrCat("store s", i, " x")), "OK");  // in the queue, no more
    puppet = NextAfterKill(puppet);
    EXPECT_EQ(Names(puppet).size(), i + 1);
  }
}

TEST_F(SystemdTest, AFullStoreDropsSilentlyAndCheckRoomReportsIt) {
  Start("FileDescriptorStoreMax=2");
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  EXPECT_EQ(puppet.Ask("check-room"), "OK");
  EXPECT_EQ(puppet.Ask("store b x"), "OK");
  EXPECT_THAT(puppet.Ask("check-room"), HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_EQ(puppet.Ask("store c x"), "OK");
  EXPECT_EQ(puppet.Ask("remove a"), "OK");
  EXPECT_EQ(puppet.Ask("check-room"), "OK");
  EXPECT_THAT(Names(NextAfterKill(puppet)), ::testing::ElementsAre("b"));
}

TEST_F(SystemdTest, CheckRoomReportsAUnitWithoutAStore) {
  Start("");
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  EXPECT_THAT(puppet.Ask("check-room"), HasSubstr("FileDescriptorStoreMax="));
  EXPECT_THAT(Names(NextAfterKill(puppet)), ::testing::IsEmpty());
}

TEST_F(SystemdTest, OneFileIsStoredOnce) {
  Start("FileDescriptorStoreMax=10");
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  EXPECT_EQ(puppet.Ask("store-again a b"), "OK");
  EXPECT_THAT(Names(NextAfterKill(puppet)), ::testing::ElementsAre("a"));
}

TEST_F(SystemdTest, TheUnitSetsTheStoresCapacity) {
  Start("FileDescriptorStoreMax=10");
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("capacity"), machine_->version() >= 254 ? "10" : "0");
  Start("FileDescriptorStoreMax=10\nEnvironment=FDSTORE=10");
  EXPECT_EQ(NextAfterKill(puppet).Ask("capacity"), "10");
}

TEST_F(SystemdTest, ReadyEndsTheStart) {
  Start("Type=notify\nFileDescriptorStoreMax=10");
  Puppet puppet = Next();
  EXPECT_EQ(machine_->Property("puppet", "ActiveState"), "activating");
  EXPECT_EQ(puppet.Ask("ready 2-GPUs"), "OK");
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  EXPECT_EQ(machine_->Property("puppet", "ActiveState"), "active");
  EXPECT_EQ(machine_->Property("puppet", "StatusText"), "2-GPUs");
}

TEST_F(SystemdTest, OnlyTheServicesMainProcessIsHeard) {
  Start("FileDescriptorStoreMax=10");
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  EXPECT_EQ(puppet.Ask("raw-child 1 FDSTORE=1\nFDNAME=evil"), "OK");
  EXPECT_EQ(puppet.Ask("raw-child 0 FDSTOREREMOVE=1\nFDNAME=a"), "OK");
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  EXPECT_EQ(Stored(), 1);
}

TEST_F(SystemdTest, ARestartKeepsTheStoreAndAStopEmptiesIt) {
  Start("FileDescriptorStoreMax=10");
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  EXPECT_EQ(machine_->Systemctl({"restart", "puppet"}).code, 0);
  puppet = Next();
  EXPECT_EQ(puppet.Ask("read a"), "x");
  EXPECT_EQ(machine_->Systemctl({"stop", "puppet"}).code, 0);
  EXPECT_EQ(Stored(), 0);
  EXPECT_EQ(machine_->Systemctl({"start", "puppet"}).code, 0);
  EXPECT_THAT(Names(Next()), ::testing::IsEmpty());
}

TEST_F(SystemdTest, StoredDescriptorsSurviveDaemonReexec) {
  Start("FileDescriptorStoreMax=10");
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  EXPECT_EQ(machine_->Systemctl({"daemon-reexec"}).code, 0);
  EXPECT_EQ(puppet.Ask("store b y"), "OK");  // by the connection from before
  EXPECT_EQ(puppet.Ask("barrier"), "OK");
  EXPECT_EQ(Stored(), 2);
  puppet = NextAfterKill(puppet);
  EXPECT_EQ(puppet.Ask("read a"), "x");
  EXPECT_EQ(puppet.Ask("read b"), "y");
}

TEST_F(SystemdTest, TheKeeperCanBeAServiceItself) {
  const char* keeper = std::getenv("GPUMEM_KEEPER");
  ASSERT_NE(keeper, nullptr);
  Start("Type=notify",
        absl::StrCat(std::filesystem::absolute(keeper).string(), " --healthy-after 0 -- "));
  Puppet puppet = Next();
  EXPECT_EQ(puppet.Ask("store a x"), "OK");
  puppet = NextAfterKill(puppet);
  EXPECT_EQ(puppet.Ask("read a"), "x");
  EXPECT_EQ(puppet.Ask("ready back-again"), "OK");
  EXPECT_TRUE(testing::Eventually(
      [&] { return machine_->Property("puppet", "StatusText") == "back-again"; }));
  EXPECT_EQ(machine_->Property("puppet", "ActiveState"), "active");
  EXPECT_EQ(machine_->Property("puppet", "NRestarts"), "0");
  machine_->Systemctl({"stop", "puppet"});
  puppet.AwaitEnd();
  EXPECT_EQ(machine_->Run({"/bin/sh", "-c", "ls -d /run/gpumem-keeper-*"}).code, 2);
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--puppet") return gpumem::testing::RunPuppet(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
