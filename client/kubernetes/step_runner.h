// SPDX-License-Identifier: Apache-2.0
// Carries out the steps of a plan (reconcile.h) at gpumemd, and says what it did.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/kubernetes/log.h"
#include "client/kubernetes/node.h"
#include "client/kubernetes/reconcile.h"

namespace gpumem::kubernetes {

class StepRunner {
 public:
  // Both outlive it.
  StepRunner(Node* daemon, Log* log) : daemon_(daemon), log_(log) {}

  // Carries out the steps, in order. Returns the errors of tenants whose step has failed, or is not
  // tried again yet; their later steps are left out. `at_once`: tries all of them now. A failure of
  // one that is not due prolongs no pause, and is not said.
  //   UNAVAILABLE, DEADLINE_EXCEEDED  gpumemd does not answer: later steps are left out
  absl::StatusOr<std::map<std::string, absl::Status>> Carry(const std::vector<Step>& steps,
                                                            bool at_once = false);

 private:
  Node* const daemon_;
  Log* const log_;
  Backoff backoff_;
};

}  // namespace gpumem::kubernetes
