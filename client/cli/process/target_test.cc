// SPDX-License-Identifier: Apache-2.0
#include "client/cli/process/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "client/cli/process/record.h"

namespace gpumem::cli {
namespace target_test {

using ::testing::ElementsAre;

constexpr char kStat[] =
    "4711 (a) b ) S 12 4711 4711 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 3 0 5000 100 200\n";
constexpr char kStatus[] = "Name:\ta\nUid:\t1\t2\t3\t4\nNSpid:\t4711\n";

TEST(TargetTest, ReadsTheKernelsText) {
  const auto facts = ParseTarget(kStat, kStatus, "NSpid:\t9\n", 9, absl::Seconds(60), 100);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->pid, 4711);
  EXPECT_EQ(facts->parent, 12);
  EXPECT_EQ(facts->state, 'S');
  EXPECT_EQ(facts->start_ticks, 5000u);
  EXPECT_EQ(facts->age, absl::Seconds(10));
  EXPECT_THAT(facts->uids, ElementsAre(1u, 2u, 3u, 4u));
  EXPECT_TRUE(facts->same_namespace);
}

TEST(TargetTest, SeesOtherPidNamespaces) {
  const auto same = [](const std::string& target, const std::string& own) {
    return ParseTarget(kStat, "Uid:\t1\t2\t3\t4\nNSpid:\t" + target + "\n", "NSpid:\t" + own + "\n",
                       9, absl::Seconds(60), 100)
        ->same_namespace;
  };
  EXPECT_TRUE(same("4711", "9"));
  EXPECT_FALSE(same("4711\t5", "9")) << "it is in a namespace below";
  EXPECT_FALSE(same("4711", "300\t9")) << "/proc is of a namespace above";
  EXPECT_FALSE(same("4711", "300"));
  EXPECT_FALSE(same("4711", ""));
}

TEST(TargetTest, RefusesOtherText) {
  for (const char* const stat : {"", "4711 a S 12", "4711 (a) S 12"}) {
    EXPECT_FALSE(ParseTarget(stat, kStatus, "", 9, absl::Seconds(60), 100).ok()) << stat;
  }
  for (const char* const status : {"", "Uid:\t1\n", "NSpid:\t4711\n", "Uid:\tx\nNSpid:\t4711\n"}) {
    EXPECT_FALSE(ParseTarget(kStat, status, "", 9, absl::Seconds(60), 100).ok()) << status;
  }
}

TEST(TargetTest, HoldsOneProcess) {
  const auto self = Target::Open(getpid());
  ASSERT_TRUE(self.ok()) << self.status();
  const auto facts = self->Look();
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->pid, getpid());
  EXPECT_EQ(facts->parent, getppid());
  EXPECT_EQ(facts->uids.front(), getuid());
  EXPECT_GE(facts->age, -absl::Seconds(1));
  EXPECT_FALSE(CommandOf(getpid()).empty());
  EXPECT_GT(AvailableHostBytes(), 0u);

  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(gate[1]);
    char end;
    _exit(read(gate[0], &end, 1) == 0 ? 0 : 1);
  }
  close(gate[0]);
  const auto target = Target::Open(child);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE(target->Look().ok());
  close(gate[1]);
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(absl::IsNotFound(target->Look().status())) << "not reaped yet";
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(absl::IsNotFound(target->Look().status()));
  EXPECT_TRUE(absl::IsNotFound(Target::Open(child).status()));
}

class RecordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gpumemctl-records-XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    folder_ = path;
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string folder_;
};

TEST_F(RecordsTest, KeepsOneForEachProcess) {
  const ProcessRecords records(folder_ + "/records");
  EXPECT_TRUE(absl::IsNotFound(records.Read(5, 6).status()));
  ASSERT_TRUE(records.Write({.pid = 5, .start_ticks = 6, .need = {{"GPU-1", 7}}}).ok());
  ASSERT_TRUE(
      records.Write({.pid = 5, .start_ticks = 6, .need = {{"GPU-1", 8}}, .sessions = {9, 10}})
          .ok());
  const auto record = records.Read(5, 6);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->need, (DeviceBytesMap{{"GPU-1", 8}}));
  EXPECT_THAT(record->sessions, ElementsAre(9u, 10u));
  EXPECT_TRUE(absl::IsNotFound(records.Read(5, 7).status())) << "a later process with that pid";
  struct stat file;
  ASSERT_EQ(stat((folder_ + "/records/5-6.json").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777u, 0600u);
  std::ofstream(folder_ + "/records/5-6.json") << "{";
  EXPECT_TRUE(absl::IsDataLoss(records.Read(5, 6).status()));
  records.Remove(5, 6);
  EXPECT_TRUE(absl::IsNotFound(records.Read(5, 6).status()));
}

TEST_F(RecordsTest, TrustsNoFolderThatOthersMayWriteTo) {
  const ProcessRecords records(folder_);
  ASSERT_TRUE(records.Write({.pid = 5, .start_ticks = 6}).ok());
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(records.Write({.pid = 5, .start_ticks = 6})));
  EXPECT_TRUE(absl::IsPermissionDenied(records.Read(5, 6).status()));
}

}  // namespace target_test
}  // namespace gpumem::cli
