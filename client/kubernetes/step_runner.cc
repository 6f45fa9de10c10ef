// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/step_runner.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/bytes.h"

namespace gpumem::kubernetes {
namespace {

std::string WordsOf(const Step& step) {
  if (step.kind == Step::Kind::kEnd) return absl::StrCat(step.tenant, ": end");
  const std::string on = absl::StrJoin(
      step.quota.limits, ", ", [](std::string* out, const BytesByUuid::value_type& limit) {
        absl::StrAppend(out, FormatBytes(limit.second), " on ", limit.first);
      });
  return absl::StrCat(step.tenant, step.kind == Step::Kind::kCreate ? ": make with " : ": set to ",
                      on.empty() ? "nothing" : on);
}

}  // namespace

absl::StatusOr<std::map<std::string, absl::Status>> StepRunner::Carry(
    const std::vector<Step>& steps, bool at_once) {
  backoff_.Retain(steps);
  std::map<std::string, absl::Status> failed;
  for (const Step& step : steps) {
    if (failed.contains(step.tenant)) continue;
    const bool due = backoff_.IsDue(step.tenant, absl::Now());
    if (!at_once && !due) {
      failed[step.tenant] = absl::FailedPreconditionError("it is tried again later");
      continue;
    }
    absl::Status carried = daemon_->Carry(step);
    if (carried.ok()) {
      backoff_.Succeeded(step.tenant);
      log_->Say(WordsOf(step));
      continue;
    }
    if (IsAway(carried)) {
      log_->SayOnce("gpumemd", std::string(carried.message()));
      return carried;
    }
    if (due) {
      const absl::Duration pause = backoff_.Failed(step.tenant, absl::Now());
      log_->Say(absl::StrCat(WordsOf(step), ": ", carried.message(), "; again in ",
                             absl::FormatDuration(pause)));
    }
    failed[step.tenant] = std::move(carried);
  }
  return failed;
}

}  // namespace gpumem::kubernetes
