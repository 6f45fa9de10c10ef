// SPDX-License-Identifier: Apache-2.0
// The list of all steps, with how often each is taken, and the end of an episode.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// Takes one step, chosen at random.
absl::Status TakeStep(Course& course);

// Ends all sessions, in any order. Checks that nothing is left then.
absl::Status EndAllSessions(Course& course);

}  // namespace gpumemd::steps
