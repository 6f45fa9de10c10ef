// SPDX-License-Identifier: Apache-2.0
// The demo's environment: a temporary folder, a daemon in it, and gpumemctl to look at it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/demo/director.h"
#include "tests/demo/process.h"

namespace gpumem::demo {

// No single wait takes longer. Generous: CUDA's start takes seconds on a busy machine.
inline constexpr absl::Duration kTimeout = absl::Seconds(60);

class Stage {
 public:
  explicit Stage(DemoOptions options);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Prints "== TEXT ==".
  void Title(const std::string& text);
  // Prints a line.
  void Say(const std::string& text);
  // Prints and counts a check that held; throws Failure if it did not.
  void Check(bool held, const std::string& what);
  int checks() const { return checks_; }

  // Runs gpumemctl, prints the command and its answer, and checks its exit code.
  void Show(const std::vector<std::string>& arguments, int exit_code = 0);
  // Runs it with --json and returns its output, without printing.
  nlohmann::json Ask(std::vector<std::string> arguments);

  // Starts gpumemd with `config`, and waits until it can be reached.
  void StartDaemon(const std::string& config);
  // Asks it to end, and checks that it does so in order.
  void StopDaemon();

  // Starts this program in another role.
  std::unique_ptr<Process> StartWorker(const std::string& role);
  // Prints the worker's lines and counts its checks until it is "ready"; returns the tickets that
  // it handed over.
  std::vector<std::string> FollowUntilReady(const std::string& role, Process& worker);

  // The folder of the daemon's sockets.
  const std::string& folder() const { return folder_; }

 private:
  struct Answer {
    int exit_code = 0;
    std::string text;
  };
  Answer RunCtl(const std::vector<std::string>& arguments);
  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }
  void ShowDaemonLog();

  const DemoOptions options_;
  std::string folder_;
  std::unique_ptr<Process> daemon_;
  int checks_ = 0;
};

}  // namespace gpumem::demo
