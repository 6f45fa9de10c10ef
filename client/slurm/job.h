// SPDX-License-Identifier: Apache-2.0
// What Slurm, or an operator, has done for a job on a node. Each function returns an exit code, and
// tells the reason.
#pragma once

#include "client/slurm/arguments.h"

namespace gpumem::slurm {

// Makes the job's tenant. May be repeated.
int Prolog(const Arguments& arguments);

// Ends the job's tenant and waits for its memory; drains the node if it does not come back.
int Epilog(const Arguments& arguments);

// Writes the peaks and byte-seconds of the job's memory here into its AdminComment. Only while it
// runs: slurmctld takes no changes of a job that has ended, so an epilog comes too late.
int Account(const Arguments& arguments);

// Ends tenants of jobs that Slurm does not have here (sweep.h).
int SweepNode(const Arguments& arguments);

// Suspends the memory of the job's processes here, then the job; and resumes the job, then the
// memory. Processes that Slurm has stopped can do neither. With `memory_only` the job is left
// alone: for jobs of several nodes.
int Suspend(const Arguments& arguments, bool memory_only);
int Resume(const Arguments& arguments, bool memory_only);

}  // namespace gpumem::slurm
