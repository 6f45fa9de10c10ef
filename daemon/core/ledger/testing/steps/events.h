// SPDX-License-Identifier: Apache-2.0
// Steps of interprocess events.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

absl::Status RegisterEvent(Course& course);
absl::Status GetEvents(Course& course);
absl::Status UnregisterEvent(Course& course);

}  // namespace gpumemd::steps
