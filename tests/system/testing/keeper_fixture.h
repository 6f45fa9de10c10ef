// SPDX-License-Identifier: Apache-2.0
// gpumem-keeper with a service that the test commands (tests/support/puppet.h). The test's program
// is that service, too: its main() runs RunPuppet for `--puppet PATH`.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/child.h"
#include "tests/support/puppet.h"

namespace gpumem::testing {

inline std::string ThisProgram() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  return std::string(path, size > 0 ? static_cast<size_t>(size) : 0);
}

// $GPUMEM_KEEPER, or the one in the folder of this program.
inline std::string KeeperPath() {
  if (const char* path = std::getenv("GPUMEM_KEEPER")) return path;
  return (std::filesystem::path(ThisProgram()).parent_path() / "gpumem-keeper").string();
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

}  // namespace gpumem::testing
