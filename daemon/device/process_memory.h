// Which processes use a device's memory, and how much of it: the driver's word, whoever asked
// the broker and whoever did not.
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
  std::optional<uint64_t> bytes;  // absent: the driver does not say
  bool operator==(const ProcessBytes&) const = default;
};

// Thread-safe. A call may take long, and for ever where the driver hangs: make none under a lock,
// nor in a thread that somebody must wait for.
class ProcessMemory {
 public:
  ProcessMemory() = default;
  ProcessMemory(const ProcessMemory&) = delete;
  ProcessMemory& operator=(const ProcessMemory&) = delete;
  virtual ~ProcessMemory() = default;

  // Each process once.
  //   UNAVAILABLE  nobody says
  virtual absl::StatusOr<std::vector<ProcessBytes>> Sample(const std::string& device_uuid) = 0;

  // Whether a process's bytes include the broker's memory that it has mapped.
  virtual bool counts_mapped() const = 0;

  // Whether all pids are certain to be of the daemon's PID namespace. Where not, a pid that the
  // daemon does not find shows that they are another's.
  virtual bool pids_are_ours() const = 0;
};

// What NVML says of GPUs.
//   UNAVAILABLE  there is no NVML, or it does not list processes
absl::StatusOr<std::shared_ptr<ProcessMemory>> MakeNvmlProcessMemory();

// A stand-in for the host backend, where no driver counts: it says what tests and demonstrations
// write into the file, one line "DEVICE-UUID PID BYTES" for each process and device. The bytes
// are meant without what is mapped of the broker's. No file: nobody uses anything.
std::shared_ptr<ProcessMemory> MakeHostProcessMemory(std::string path);

// The file's name in the runtime folder.
inline constexpr char kHostProcessMemoryFile[] = "host-process-memory";

// What the lines of that file say of the device.
//   UNAVAILABLE  one of them is of another form
absl::StatusOr<std::vector<ProcessBytes>> ParseHostProcessMemory(absl::string_view text,
                                                                 absl::string_view device_uuid);

}  // namespace gpumemd
