// SPDX-License-Identifier: Apache-2.0
// The machine's real systemd as process 1 of separate namespaces. Services run in it as on a
// machine that has just booted, without any of the machine's services. Nothing of it is left when
// the object is destroyed.
//
//   auto machine = SystemdMachine::Boot();
//   if (absl::IsFailedPrecondition(machine.status())) GTEST_SKIP() << machine.status().message();
//   ASSERT_OK(machine);
//   (*machine)->WriteUnit("gpumemd.service", "[Service]\nExecStart=…\n");
//   EXPECT_EQ((*machine)->Systemctl({"start", "gpumemd"}).code, 0);
//
// Inside, all files are the machine's, read-only but for folder(). /run is empty and separate, as
// are control groups, process numbers, the network (with a loopback) and the host name. systemd
// finds the units that the test writes and no other, so DefaultDependencies= and targets mean
// nothing.
//
// A pathname socket in folder() connects both sides. Processes are numbered differently on both. A
// process that asks a socket for its peer (SO_PEERCRED) gets the number on its side, 0 if there is
// none: the daemon knows only clients that run inside (Run).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/namespaces.h"

namespace gpumem::testing {

class SystemdMachine {
 public:
  using Result = Namespaces::Result;

  // Returns when it is up; takes some 0.2 s.
  //   FAILED_PRECONDITION  this user or this machine does not let it; a reason to skip a test
  //   INTERNAL             it did not come up; its log is in the message
  static absl::StatusOr<std::unique_ptr<SystemdMachine>> Boot();
  // Kills all processes in it and waits for that.
  ~SystemdMachine() = default;
  SystemdMachine(const SystemdMachine&) = delete;
  SystemdMachine& operator=(const SystemdMachine&) = delete;

  // The same folder inside and outside, writable, with a name short enough for sockets in it.
  const std::string& folder() const { return namespaces_->folder(); }
  // Writes a unit, or replaces it, and has systemd read it.
  void WriteUnit(const std::string& name, const std::string& text);
  // Runs a program inside, outside of any service, as root.
  Result Run(const std::vector<std::string>& args) const { return namespaces_->Run(args); }
  Result Systemctl(std::vector<std::string> args) const;
  // One of a unit's properties: Property("gpumemd", "NFileDescriptorStore").
  std::string Property(const std::string& unit, const std::string& property) const;
  // Returns systemd's own output. (Services write to the file of their units:
  // StandardError=append:FOLDER/log)
  std::string Log() const { return namespaces_->Log(); }
  // Returns systemd's version: 252.
  int version() const { return version_; }

 private:
  SystemdMachine() = default;

  std::unique_ptr<Namespaces> namespaces_;
  int version_ = 0;
};

}  // namespace gpumem::testing
