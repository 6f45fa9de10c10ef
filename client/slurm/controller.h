// SPDX-License-Identifier: Apache-2.0
// slurmctld, through libslurm.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gpumem::slurm {

// Returns what the job has of generic resources on a node, in Slurm's words (gres.h); empty: none,
// or the job does not run any more.
//   NOT_FOUND    slurmctld does not know the job, or the job has no part of the node
//   UNAVAILABLE  slurmctld does not answer
absl::StatusOr<std::string> GresOfJob(uint32_t job, const std::string& node);

// True if the job has asked for a generic resource on its nodes. Works in an epilog, too, when
// slurmctld no longer tells what the job had.
//   NOT_FOUND    slurmctld does not know the job
//   UNAVAILABLE  slurmctld does not answer
absl::StatusOr<bool> AsksForGres(uint32_t job, const std::string& gres);

// True if the job has a part of the node: it runs, is suspended, or its epilogs have not all ended.
//   UNAVAILABLE  slurmctld does not answer
absl::StatusOr<bool> IsOnNode(uint32_t job, const std::string& node);

struct JobState {
  bool runs = false;
  bool is_suspended = false;
  uint32_t nodes = 0;  // that it has a part of
};

// Returns what slurmctld knows of the job.
//   NOT_FOUND    slurmctld does not know it
//   UNAVAILABLE  slurmctld does not answer
absl::StatusOr<JobState> StateOf(uint32_t job);

// Has Slurm queue the job again, and for `hold` not start it until it is released. Ends a job that
// cannot be queued again (no batch script, --no-requeue). Does nothing if the job does not run.
//   UNAVAILABLE  slurmctld does not answer, or refuses
absl::Status GiveBack(uint32_t job, bool hold);

// scontrol suspend, and resume. They stop and continue all processes of the job on all nodes.
//   FAILED_PRECONDITION  the job is in another state
absl::Status SuspendProcesses(uint32_t job);
absl::Status ResumeProcesses(uint32_t job);

// Sets words of the job's AdminComment, each "KEYVALUE", and leaves the others.
//   FAILED_PRECONDITION  the job has ended
//   UNAVAILABLE          slurmctld does not answer
absl::Status SetAdminComment(uint32_t job,
                             const std::vector<std::pair<std::string, std::string>>& words_to_set);

// Returns Slurm's name of the node with this host's name. slurmd does not tell it a plug-in.
//   NOT_FOUND            there is none
//   FAILED_PRECONDITION  there are several
//   UNAVAILABLE          slurmctld does not answer
absl::StatusOr<std::string> NameOfThisNode();

// Has Slurm start no further job on the node.
//   UNAVAILABLE  slurmctld does not answer, or refuses
absl::Status DrainNode(const std::string& node, const std::string& reason);

}  // namespace gpumem::slurm
