// SPDX-License-Identifier: Apache-2.0
// The files of a cluster (cluster.h): configurations, users, scripts and programs.
#pragma once

#include <sys/types.h>

#include <string>

namespace gpumem::testing {

// Users that the cluster knows.
inline constexpr uid_t kUsers[] = {20001, 20002, 20003};

struct ClusterOptions {
  int gpus = 1;                 // of a node, of 4 GiB each
  std::string gres = "gpumem";  // that counts MiB; or "shard"
  std::string plugin_args;      // more arguments of the plug-in; $F is the cluster's folder
  bool whole_gpus = false;      // beside "gpumem" there is gres/gpu
  int cgroup_version = 1;       // of Slurm's plug-in
  bool containers = false;      // job_container/tmpfs: each job has a separate /tmp
  bool tier = false;            // gpumemd has a host tier of 3 GiB
  bool preemption = false;      // jobs of the partition "urgent" have others requeued
  bool scripts = false;         // prolog.sh and epilog.sh, without the plug-in
  bool database = false;        // slurmdbd and MariaDB keep the records of jobs
};

// Writes them all into the folder: machine.sh (the network, the nodes' namespaces), controller.sh
// (munged, slurmctld), node.sh, daemon.sh, end.sh, and what they read.
void WriteClusterFiles(const std::string& folder, const ClusterOptions& options);

// Returns a file's text; empty: there is none.
std::string ReadText(const std::string& path);

}  // namespace gpumem::testing
