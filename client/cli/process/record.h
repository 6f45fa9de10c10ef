// SPDX-License-Identifier: Apache-2.0
// What a resume has to know of a process that was suspended as a whole. The driver does not tell
// how much memory a restore needs, so suspend writes it to a file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gpumem::cli {

using DeviceBytesMap = std::map<std::string, uint64_t>;  // by UUID

struct ProcessRecord {
  pid_t pid = 0;
  uint64_t start_ticks = 0;        // TargetFacts
  DeviceBytesMap need;             // memory of the devices that a restore takes
  std::vector<uint64_t> sessions;  // which the command has suspended
};

// One file for each process, readable by its writer alone. Of a user, in a folder that goes with
// the machine's next start, as the processes do. Statuses of all: those of the file's errors.
class ProcessRecords {
 public:
  explicit ProcessRecords(std::string folder) : folder_(std::move(folder)) {}

  // Returns the folder of this user: /run/gpumemctl for root, $XDG_RUNTIME_DIR/gpumemctl for
  // others, /tmp/gpumemctl-UID without that.
  static std::string DefaultFolder();

  // Replaces the process's record. Makes the folder.
  //   PERMISSION_DENIED  the folder is of another user, or others may write to it
  absl::Status Write(const ProcessRecord& record) const;
  //   NOT_FOUND  none of this process
  //   DATA_LOSS  it is damaged
  absl::StatusOr<ProcessRecord> Read(pid_t pid, uint64_t start_ticks) const;
  void Remove(pid_t pid, uint64_t start_ticks) const;

 private:
  std::string PathOf(pid_t pid, uint64_t start_ticks) const;
  // PERMISSION_DENIED unless only this user can have written to the folder.
  absl::Status CheckFolder() const;
  const std::string folder_;
};

}  // namespace gpumem::cli
