// SPDX-License-Identifier: Apache-2.0
// A real gpumemd in a temporary folder under /tmp, for whole-system tests and benchmarks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpumem/client.h"
#include "tests/support/child.h"

namespace gpumem::testing {

struct DaemonOptions {
  std::string backend = "host";
  std::string config;              // TOML; empty: none
  std::vector<std::string> flags;  // more of them
  std::string state_dir;           // empty: a new one
};

class DaemonProcess {
 public:
  // Runs $GPUMEM_GPUMEMD, or the gpumemd in the folder of this program, and waits until
  // it welcomes clients.
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start(const DaemonOptions& options = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  const std::string& runtime_dir() const { return runtime_dir_; }
  std::string state_dir() const { return dir_ + "/state"; }
  std::string Socket(absl::string_view name) const;
  pid_t pid() const { return child_.pid(); }
  int fds() const { return CountFds(pid()); }
  Child& child() { return child_; }

  // Replaces the configuration file and asks the daemon to read it.
  void Reconfigure(const std::string& config);
  // Ends it as an operator does, and runs another with the same flags and files.
  absl::Status Restart();
  // Only the second half of that, for one that has ended.
  absl::Status RunAgain() { return Run(); }
  // Returns its log.
  std::string Log() const;

  absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& tenant = "",
                                                  const std::string& name = "") const;

 private:
  DaemonProcess() = default;
  absl::Status Run();

  std::string dir_;  // ours: log, configuration, and the runtime folder
  std::string runtime_dir_;
  std::vector<std::string> args_;
  Child child_;
};

// The path of a program of the project: $GPUMEM_<NAME in capitals>, else the one in the
// folder of this program.
std::string ProgramPath(absl::string_view name);

}  // namespace gpumem::testing
