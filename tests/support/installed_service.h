// SPDX-License-Identifier: Apache-2.0
// gpumemd as a package would install it on a machine with systemd: the units, the user and the
// folders that are shipped (deploy/systemd), the program in /usr/sbin, the configuration in
// /etc/gpumem. All of it is in a SystemdMachine, and nothing on this one is touched.
//
// A test changes units as an administrator does, by drop-ins. There is one from the start: the log
// goes to a file, since no journald runs there.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/systemd_machine.h"

namespace gpumem::testing {

class InstalledService {
 public:
  struct Options {
    std::string program = "gpumemd";  // ProgramPath
    std::string config;               // TOML; empty: the one that is shipped
    std::string service_lines;        // of a drop-in's [Service]
  };
  // Nothing is started. As SystemdMachine::Boot:
  //   FAILED_PRECONDITION  a reason to skip a test
  static absl::StatusOr<std::unique_ptr<InstalledService>> Install(const Options& options);
  InstalledService(const InstalledService&) = delete;
  InstalledService& operator=(const InstalledService&) = delete;

  const SystemdMachine& machine() const { return *machine_; }
  SystemdMachine& machine() { return *machine_; }
  // Writes /etc/gpumem/gpumemd.toml.
  void Configure(const std::string& toml) const;
  // Adds a drop-in to gpumemd.service, or replaces it: its [Service] says these lines.
  void DropIn(const std::string& name, const std::string& service_lines) const;

  SystemdMachine::Result Systemctl(std::vector<std::string> args) const {
    return machine_->Systemctl(std::move(args));
  }
  // Returns a property of gpumemd.service.
  std::string Property(const std::string& property) const {
    return machine_->Property("gpumemd", property);
  }
  // Returns the daemon's pid, as inside; 0: none runs.
  pid_t MainPid() const;
  // This program inside, as root, with "--role" and these words.
  SystemdMachine::Result Role(const std::vector<std::string>& words) const;
  SystemdMachine::Result Shell(const std::string& script) const {
    return machine_->Run({"/bin/sh", "-c", script});
  }
  // Returns the daemons' log.
  std::string Log() const;

 private:
  InstalledService() = default;
  absl::Status Prepare(const Options& options);

  std::unique_ptr<SystemdMachine> machine_;
};

}  // namespace gpumem::testing
