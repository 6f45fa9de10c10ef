// SPDX-License-Identifier: Apache-2.0
// A node that runs containers: real ones, by crun, in namespaces of the test's own, with a root
// file system that is read-only.
//
//   auto host = ContainerHost::Boot();
//   if (absl::IsFailedPrecondition(host.status())) GTEST_SKIP() << host.status().message();
//   ASSERT_OK(host);
//   Child worker = (*host)->Run({.name = "worker", .args = {"/usr/bin/sleep", "1000"}});
//   EXPECT_EQ((*host)->Exec("worker", {"/usr/bin/id", "-u"}).output, "1000\n");
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/child.h"
#include "tests/support/namespaces.h"

namespace gpumem::testing {

// A file or a folder of the node that a container sees, at the same or another path.
struct ContainerMount {
  std::string source, target;
  bool read_only = false;
};

// A container has separate mounts, IPC, network, host name and cgroup namespace. It has no
// capability and gets no new privileges; /proc and /sys are masked as container managers do.
struct ContainerSpec {
  std::string name;    // unique among this node's running containers
  std::string cgroup;  // "/kubepods.slice/…"; empty: a group by the name
  std::vector<std::string> args;
  std::vector<std::string> env;  // "NAME=value"
  uid_t uid = 1000;
  gid_t gid = 1000;
  bool host_pid = false;  // the node's PID namespace, not a new one
  std::vector<ContainerMount> mounts;
};

class ContainerHost {
 public:
  using Result = Namespaces::Result;

  // `rootfs`: an image's, unpacked in a folder, in which mount points may be made; empty: one that
  // has nothing but the machine's /usr.
  //   FAILED_PRECONDITION  this user or this machine does not let it, or has no crun; a reason to
  //                        skip a test
  static absl::StatusOr<std::unique_ptr<ContainerHost>> Boot(const std::string& rootfs = "");
  // Kills all processes in it and waits for that.
  ~ContainerHost() = default;
  ContainerHost(const ContainerHost&) = delete;
  ContainerHost& operator=(const ContainerHost&) = delete;

  // Shared with the node, by the same path; containers see the parts that are mounted.
  const std::string& folder() const { return namespaces_->folder(); }
  // Runs a container. The child is `crun run`, which ends with the container and with its exit code
  // (137: killed). The container's output is in Log(name).
  Child Run(const ContainerSpec& spec);
  // Runs a program in a container, as its user; the words of both streams are in the result.
  Result Exec(const std::string& name, const std::vector<std::string>& args) const;
  // A signal to the container's first process ("KILL").
  Result Kill(const std::string& name, const std::string& signal) const;
  // The first process of a container, as the node's PID namespace numbers it; 0: it does not run.
  pid_t PidOf(const std::string& name) const;
  // Runs a program on the node, as root.
  Result OnNode(const std::vector<std::string>& args) const { return namespaces_->Run(args); }
  std::string Log(const std::string& name) const;

 private:
  ContainerHost() = default;
  Result Crun(std::vector<std::string> args) const;

  std::unique_ptr<Namespaces> namespaces_;
  std::string image_;                         // its root file system; empty: none
  std::map<std::string, std::string> users_;  // of containers, by name: "uid:gid"
};

}  // namespace gpumem::testing
