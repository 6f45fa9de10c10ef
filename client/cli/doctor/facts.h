// SPDX-License-Identifier: Apache-2.0
// The facts that gpumemctl doctor has seen of this machine and the daemon. Plain values; unseen
// facts are missing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpumem::cli {

struct SocketFacts {
  enum class State { kMissing, kNobodyListens, kDenied, kOpen };
  std::string name;  // "admin.sock"
  State state = State::kMissing;
  std::string mode;  // "0660 root gpumem"; empty if it cannot be seen
};

// From the admin socket.
struct DaemonFacts {
  std::string version;
  pid_t pid = 0;
  bool cuda = false;  // true: the CUDA backend; false: the host backend
  // The CUDA toolkit of its build; empty: built without CUDA, for the host backend only. Nullopt:
  // an older daemon, which does not say.
  std::optional<std::string> cuda_toolkit;
  uint64_t uptime_ms = 0;
  bool draining = false;
  bool keeps_memory = false;
  bool store_full = false;
  uint32_t unkept_segments = 0;  // with publications
  uint32_t generation = 1;
  uint32_t sessions = 0;
  uint32_t segments = 0;
  std::vector<std::string> notices;
  uint64_t largest_publication = 0;  // in segments
  std::string largest_publication_name;
  // Memory taken past the broker.
  uint64_t foreign_processes = 0;  // without a session
  uint64_t foreign_bytes = 0;
  uint64_t unbrokered_bytes = 0;  // of processes with sessions
};

// From the session socket, as a worker.
struct WorkerFacts {
  std::string error;  // empty: a session began, and the other fields are set
  std::string version;
  std::string tenant;
  std::string rule;
  std::string cgroup_unknown;  // why the daemon does not know this process's cgroup
};

// Of the daemon's process, from /proc/PID.
struct ProcessFacts {
  bool seen = false;
  std::optional<uint64_t> files_limit;  // RLIMIT_NOFILE, soft
  std::optional<uint64_t> files_open;
  std::string parent;  // the parent's command
  std::string unit;    // "gpumemd.service", from its cgroup
};

// From systemctl show.
struct UnitFacts {
  std::optional<uint64_t> store_max;  // FileDescriptorStoreMax=
  std::optional<uint64_t> store_now;  // NFileDescriptorStore
};

struct GpuFacts {
  std::string uuid;
  std::optional<bool> persistent;
  std::string unknown;  // why the values are unknown
};

struct DeviceFile {
  std::string path;
  bool usable = false;  // this user can read and write it
  std::string mode;
};

struct DriverFacts {
  bool built_in = true;      // this program was built with CUDA
  std::string module;        // the kernel module's version; empty: not loaded
  std::string cuda_error;    // why libcuda does not work here; empty: it works
  std::string nvml_error;    // the same for NVML
  std::string version;       // of the libraries, from NVML
  std::string cuda_version;  // "13.0", that the libraries support
  std::vector<GpuFacts> gpus;
  std::vector<DeviceFile> files;  // /dev/nvidia*
};

enum class CgroupLayout { kUnknown, kUnified, kHybrid, kLegacy };

struct Facts {
  std::string cli_version;
  uid_t uid = 0;
  std::string runtime_dir;
  bool runtime_dir_there = false;
  std::vector<SocketFacts> sockets;
  std::string admin_error;  // why `daemon` is missing although the socket is open
  std::optional<DaemonFacts> daemon;
  WorkerFacts worker;
  ProcessFacts process;
  UnitFacts unit;
  DriverFacts driver;
  uint64_t files_soft = 0;  // RLIMIT_NOFILE of this process
  uint64_t files_hard = 0;
  CgroupLayout cgroups = CgroupLayout::kUnknown;
};

}  // namespace gpumem::cli
