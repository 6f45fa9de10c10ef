// SPDX-License-Identifier: Apache-2.0
// Two promises that are probed whatever the model says: guaranteed memory is available, and a
// large request is granted in the end.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// Checks that a tenant's unused guarantee is available even if no session gives anything up, except
// processes that are ended for it.
absl::Status GuaranteeProbe(Course& course);

// Checks that a large request is granted once the others have gone, even if other requests keep
// coming.
absl::Status StarvationProbe(Course& course);

}  // namespace gpumemd::steps
