// SPDX-License-Identifier: Apache-2.0
// Steps of the memory itself: losses, destruction, trimming, and a driver that has none.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// Loses a context with all its segments; now and then only a part.
absl::Status MarkLost(Course& course);
absl::Status TakeDoomed(Course& course);
absl::Status Destroyed(Course& course);
absl::Status DestroyAll(Course& course);
absl::Status DriverIsFull(Course& course);
absl::Status Trim(Course& course);

}  // namespace gpumemd::steps
