// SPDX-License-Identifier: Apache-2.0
// A cluster of Slurm on this machine, with the programs that Debian installs: munged, slurmctld and
// two nodes, each with a slurmd and a gpumemd that gpumem-keeper keeps. Nothing of it is left when
// the object is destroyed.
//
//   auto cluster = Cluster::Start({});
//   if (absl::IsFailedPrecondition(cluster.status())) GTEST_SKIP() << cluster.status().message();
//   ASSERT_OK(cluster);
//   EXPECT_EQ((*cluster)->AsUser(kUsers[0], {"srun", "--gpumem=1G", "true"}).code, 0);
//
// All is in namespaces of the test's own (namespaces.h), which have one view of processes. Each
// node has a separate host name, network, mounts and view of control groups. Slurm's
// plug-in for version 2 of control groups refuses a machine that has both versions:
// one_hierarchy.cc hides the other.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/slurm/cluster_files.h"
#include "tests/support/namespaces.h"

namespace gpumem::testing {

inline constexpr int kNodes = 2;

class Cluster {
 public:
  using Result = Namespaces::Result;

  using Options = ClusterOptions;

  // Returns when both nodes are idle.
  //   FAILED_PRECONDITION  Slurm is not installed, or this user or this machine does not let it; a
  //                        reason to skip a test
  //   INTERNAL             it did not come up; its logs are in the message
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const Options& options);
  // Kills all processes in it and waits for that.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Runs a command of Slurm on the machine of slurmctld.
  Result AsRoot(const std::vector<std::string>& args) const;
  Result AsUser(uid_t uid, const std::vector<std::string>& args) const;
  // Submits a batch job that runs `script`, a shell's. Returns its number; 0: it was refused.
  uint32_t Submit(uid_t uid, const std::vector<std::string>& options, const std::string& script);
  // Returns what the job wrote to its output so far.
  std::string Output(uint32_t job) const;
  // Returns a field of `scontrol show job`, such as "JobState"; empty: there is none.
  std::string JobField(uint32_t job, const std::string& field) const;
  std::string NodeField(int node, const std::string& field) const;
  // Waits for a state, such as "RUNNING".
  bool WaitForState(uint32_t job, const std::string& state) const;
  // Waits until no job is left, not even an epilog.
  bool WaitForQuiet() const;

  // Runs a program on a node (1 or 2), as root.
  Result OnNode(int node, const std::vector<std::string>& args) const;
  // Runs gpumemctl on a node, with -o json, and returns what it prints; null if it fails.
  nlohmann::json Gpumemctl(int node, std::vector<std::string> args) const;
  // Returns the tenants on a node that Slurm has made.
  std::vector<std::string> Tenants(int node) const;
  // Returns the bytes that all tenants on a node are charged.
  uint64_t Charged(int node) const;

  // Kills "slurmd" or "gpumemd" of a node (SIGKILL), and waits until another one serves.
  absl::Status Crash(int node, const std::string& daemon);
  // Ends one for good: slurmd by SIGKILL, gpumemd as an operator does.
  void Stop(int node, const std::string& daemon);
  // Starts one, and waits until it serves.
  absl::Status Run(int node, const std::string& daemon);

  // The same folder on all nodes; users may write to it.
  std::string shared() const { return folder() + "/shared"; }
  const std::string& folder() const { return namespaces_->folder(); }
  // The programs, where every user can read them.
  std::string Program(const std::string& name) const { return folder() + "/bin/" + name; }
  // Returns the ends of all logs.
  std::string Logs() const;

 private:
  Cluster() = default;
  absl::Status Boot(const Options& options);

  std::unique_ptr<Namespaces> namespaces_;
};

}  // namespace gpumem::testing
