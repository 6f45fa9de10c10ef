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

// Ends tenants of jobs that Slurm does not have here (sweep.h).
int SweepNode(const Arguments& arguments);

}  // namespace gpumem::slurm
