// SPDX-License-Identifier: Apache-2.0
// The processes that use a device's memory, with their bytes, as the driver reports them: with or
// without a session of the broker.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumemd {

struct ProcessBytes {
  pid_t pid = 0;                  // in the daemon's PID namespace; 0: of another, or unknown
  std::optional<uint64_t> bytes;  // absent: the driver does not report it
  bool operator==(const ProcessBytes&) const = default;
};

// Thread-safe. A call may take long, and for ever if the driver hangs. Do not call under a lock,
// nor in a thread that another thread must wait for.
class ProcessMemory {
 public:
  ProcessMemory() = default;
  ProcessMemory(const ProcessMemory&) = delete;
  ProcessMemory& operator=(const ProcessMemory&) = delete;
  virtual ~ProcessMemory() = default;

  // Returns each process once.
  //   UNAVAILABLE  there is no source
  virtual absl::StatusOr<std::vector<ProcessBytes>> Sample(const std::string& device_uuid) = 0;

  // True if a process's bytes include the broker's memory that it has mapped.
  virtual bool counts_mapped() const = 0;

  // True if all pids are certain to be of the daemon's PID namespace. If not, a pid unknown to the
  // daemon shows that they are of another.
  virtual bool pids_are_ours() const = 0;
};

// Returns NVML's counts of GPUs.
//   UNAVAILABLE  there is no NVML, or it does not list processes
absl::StatusOr<std::shared_ptr<ProcessMemory>> MakeNvmlProcessMemory();

// Returns a stand-in for the host backend, where no driver counts. It reads a file that tests and
// demonstrations write: one line "DEVICE-UUID PID BYTES" for each process and device. The bytes
// exclude mapped memory of the broker. No file: no process uses any.
std::shared_ptr<ProcessMemory> MakeHostProcessMemory(std::string path);

// The file's name in the runtime folder.
inline constexpr char kHostProcessMemoryFile[] = "host-process-memory";

// Returns that file's lines for the device.
//   UNAVAILABLE  one of them is malformed
absl::StatusOr<std::vector<ProcessBytes>> ParseHostProcessMemory(absl::string_view text,
                                                                 absl::string_view device_uuid);

}  // namespace gpumemd
