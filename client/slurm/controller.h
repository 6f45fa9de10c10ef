// SPDX-License-Identifier: Apache-2.0
// slurmctld, through libslurm.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gpumem::slurm {

// Returns what the job has of generic resources on a node, in Slurm's words (gres.h); empty: none.
//   NOT_FOUND    slurmctld does not know the job, or the job has no part of the node
//   UNAVAILABLE  slurmctld does not answer
absl::StatusOr<std::string> GresOfJob(uint32_t job, const std::string& node);

// True if the job has a part of the node: it runs, is suspended, or its epilogs have not all ended.
//   UNAVAILABLE  slurmctld does not answer
absl::StatusOr<bool> IsOnNode(uint32_t job, const std::string& node);

// Returns Slurm's name of the node with this host's name. slurmd does not tell it a plug-in.
//   NOT_FOUND            there is none
//   FAILED_PRECONDITION  there are several
//   UNAVAILABLE          slurmctld does not answer
absl::StatusOr<std::string> NameOfThisNode();

// Has Slurm start no further job on the node.
//   UNAVAILABLE  slurmctld does not answer, or refuses
absl::Status DrainNode(const std::string& node, const std::string& reason);

}  // namespace gpumem::slurm
