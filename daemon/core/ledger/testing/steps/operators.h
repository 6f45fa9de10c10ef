// SPDX-License-Identifier: Apache-2.0
// Steps of operators: configuration, quotas, draining, and lists.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

absl::Status Configure(Course& course);
absl::Status SetQuota(Course& course);
absl::Status SetDraining(Course& course, bool draining);

// Reports memory that some processes took past the broker, or none.
absl::Status SetUnbrokered(Course& course, bool any);
absl::Status CompareSome(Course& course);

}  // namespace gpumemd::steps
