// SPDX-License-Identifier: Apache-2.0
// Steps of leases: openings, commits and aborts of operations, releases and tickets.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// The fate of an operation that succeeds.
inline constexpr uint64_t kCommits = 0;

// Ends the operation as `fate` says, of 100: mostly commits it.
absl::Status Finish(Course& course, const Operation operation, uint64_t fate);
absl::Status FinishOperation(Course& course);
absl::Status MakeSome(Course& course);
absl::Status BeginOpen(Course& course);
absl::Status Release(Course& course);
absl::Status Release(Course& course, SessionId session, const std::vector<LeaseId>& leases);
// Exchanges leases of kinds vmm and host, or any others, of a session.
absl::Status Exchange(Course& course);
absl::Status Share(Course& course);

}  // namespace gpumemd::steps
