// SPDX-License-Identifier: Apache-2.0
// What gpumem-slurm keeps of a job on a node beside gpumemd: the names, a file and a lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::slurm {

std::string TenantOf(uint32_t job);
// Returns the job of a tenant's name; nullopt: it is not a job's.
std::optional<uint32_t> JobOf(absl::string_view tenant);

// Returns the file from which the plug-in knows the GPUs chosen for the job (spank_gpumem.cc).
std::string GpusFile(const std::string& state_dir, uint32_t job);
// Writes that file: UUIDs with commas. Processes of the job's user read it.
absl::Status WriteGpus(const std::string& state_dir, uint32_t job, const std::string& gpus);

// Held while a program makes or ends a job's tenant. Without it a sweep that has just learned of
// the end of a job could end the tenant that a prolog finds for the requeued job.
class JobLock {
 public:
  // Waits for the lock; makes the folder if need be.
  //   DEADLINE_EXCEEDED    another program holds it
  //   FAILED_PRECONDITION  users other than this one can change the folder
  //   others               the folder or file cannot be made
  static absl::StatusOr<JobLock> Take(const std::string& state_dir, uint32_t job,
                                      absl::Time deadline);

 private:
  explicit JobLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;  // its lock ends with it
};

}  // namespace gpumem::slurm
