// SPDX-License-Identifier: Apache-2.0
// Random steps about claims on contents.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// Returns one of few, none, or one that is too long.
std::string AnyContentId(Course& course);
// Requests contents, mostly ones that are claimed.
absl::Status AttachOrClaim(Course& course);
absl::Status ReleaseClaim(Course& course);

}  // namespace gpumemd::steps
