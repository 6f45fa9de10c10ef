// SPDX-License-Identifier: Apache-2.0
// gpumem-slurm suspend and resume.
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/slurm/controller.h"
#include "client/slurm/job.h"
#include "client/slurm/state.h"
#include "client/slurm/suspend.h"
#include "common/bytes.h"

namespace gpumem::slurm {
namespace {

int Fail(const Arguments& arguments, const absl::Status& why) {
  Say(absl::StrCat(TenantOf(arguments.job), ": ", why.message()));
  return 1;
}

// FAILED_PRECONDITION if the job has other nodes, whose gpumemds this program cannot ask.
absl::Status CheckNodes(const JobState& state, const std::string& verb) {
  if (state.nodes == 1) return absl::OkStatus();
  const std::string there = absl::StrCat("gpumem-slurm ", verb, "-memory on each of its nodes");
  return absl::FailedPreconditionError(
      absl::StrCat("the job has ", state.nodes, " nodes: ",
                   verb == "suspend" ? absl::StrCat(there, ", then scontrol suspend")
                                     : absl::StrCat("scontrol resume, then ", there)));
}

}  // namespace

int Suspend(const Arguments& arguments, bool memory_only) {
  const std::string tenant = TenantOf(arguments.job);
  const auto state = StateOf(arguments.job);
  if (!state.ok()) return Fail(arguments, state.status());
  if (!state->runs) return Fail(arguments, absl::FailedPreconditionError("the job does not run"));
  if (!memory_only) {
    if (absl::Status one = CheckNodes(*state, "suspend"); !one.ok()) return Fail(arguments, one);
  }
  const auto moved = SuspendMemory(arguments.node, tenant);
  if (!moved.ok()) return Fail(arguments, moved.status());
  if (!memory_only) {
    if (absl::Status stopped = SuspendProcesses(arguments.job); !stopped.ok()) {
      (void)RestoreGuarantees(arguments.node, tenant);
      (void)ResumeMemory(arguments.node, tenant);
      return Fail(arguments, stopped);
    }
  }
  Say(absl::StrCat(tenant, ": ", FormatBytes(*moved), " moved to the host tier"));
  return 0;
}

int Resume(const Arguments& arguments, bool memory_only) {
  const std::string tenant = TenantOf(arguments.job);
  const auto state = StateOf(arguments.job);
  if (!state.ok()) return Fail(arguments, state.status());
  if (!state->runs && (memory_only || !state->is_suspended)) {
    return Fail(arguments, absl::FailedPreconditionError("the job does not run"));
  }
  if (!memory_only) {
    if (absl::Status one = CheckNodes(*state, "resume"); !one.ok()) return Fail(arguments, one);
  }
  absl::Status done = RestoreGuarantees(arguments.node, tenant);
  if (done.ok() && state->is_suspended) done = ResumeProcesses(arguments.job);
  if (!done.ok()) return Fail(arguments, done);
  const auto back = ResumeMemory(arguments.node, tenant);
  if (!back.ok()) return Fail(arguments, back.status());
  Say(absl::StrCat(tenant, ": ", FormatBytes(*back), " back from the host tier"));
  return 0;
}

}  // namespace gpumem::slurm
