// The machine's real systemd as process 1 of namespaces of the test's own: services run in it as
// on a machine that has just booted, without any of the machine's own services, and nothing of it
// is left when the object goes.
//
//   auto machine = SystemdMachine::Boot();
//   if (absl::IsFailedPrecondition(machine.status())) GTEST_SKIP() << machine.status().message();
//   ASSERT_OK(machine);
//   (*machine)->WriteUnit("gpumemd.service", "[Service]\nExecStart=…\n");
//   EXPECT_EQ((*machine)->Systemctl({"start", "gpumemd"}).code, 0);
//
// Inside, all files are the machine's, read-only but for folder(). /run is empty and its own, as
// are control groups, process numbers, the network (with a loopback) and the host name. systemd
// finds the units that the test writes and no other, so DefaultDependencies= and targets mean
// nothing. A pathname socket in folder() connects both sides; processes are numbered differently
// on both, and who asks a socket for its peer (SO_PEERCRED) gets the number on his side, 0 where
// there is none: the daemon knows clients only that run inside (Run).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/live_cgroup.h"

namespace gpumem::testing {

class SystemdMachine {
 public:
  struct Result {
    int code = -1;       // the exit code; 124 after a minute, when it was killed
    std::string output;  // standard output and error
  };

  // Returns when it is up; takes some 0.2 s.
  //   FAILED_PRECONDITION  this user or this machine does not let it; a reason to skip a test
  //   INTERNAL             it did not come up; its log is in the message
  static absl::StatusOr<std::unique_ptr<SystemdMachine>> Boot();
  // Kills all that runs in it and waits for that.
  ~SystemdMachine();
  SystemdMachine(const SystemdMachine&) = delete;
  SystemdMachine& operator=(const SystemdMachine&) = delete;

  // The same folder inside and outside, writable, with a name short enough for sockets in it.
  const std::string& folder() const { return folder_; }
  // Writes a unit, or replaces it, and has systemd read it.
  void WriteUnit(const std::string& name, const std::string& text);
  // Runs a program inside, outside of any service, as root.
  Result Run(const std::vector<std::string>& args) const;
  Result Systemctl(std::vector<std::string> args) const;
  // One of a unit's properties: Property("gpumemd", "NFileDescriptorStore").
  std::string Property(const std::string& unit, const std::string& property) const;
  // What systemd itself has written. (What services write is where their units say:
  // StandardError=append:FOLDER/log)
  std::string Log() const;
  // Of systemd: 252.
  int version() const { return version_; }

 private:
  SystemdMachine() = default;

  std::string folder_;
  std::unique_ptr<LiveCgroup> group_;
  Child unshare_;  // parent of process 1, which dies with it
  pid_t pid_ = 0;  // of process 1, as the test sees it
  UniqueFd pidfd_;
  int version_ = 0;
  mutable int runs_ = 0;
};

}  // namespace gpumem::testing
