// SPDX-License-Identifier: Apache-2.0
// Steps about tenants that are made at run time.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// Each by an operator or by a session.
absl::Status CreateTenant(Course& course);
absl::Status UpdateTenant(Course& course);
absl::Status EndTenant(Course& course);

// Returns any tenant's name, now and then that of one that was made.
std::string AnyTenant(Course& course);

}  // namespace gpumemd::steps
