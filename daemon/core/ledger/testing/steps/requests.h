// SPDX-License-Identifier: Apache-2.0
// Steps of requests for memory, of waiting requests and of revocations.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// Returns mostly a new request number; now and then none, or one that was used before.
uint64_t NewRequest(Course& course);
bool IsRevocableSession(const Course& course, SessionId session);

// Makes a request as some session might: the leases of most processes are all revocable, or none
// is.
absl::Status Acquire(Course& course);

// Makes this request, within a call as every request.
absl::Status Acquire(Course& course, SessionId session, const AcquireSpec& spec);

// Lets some process take the free memory of a device, with revocable leases.
absl::Status FillDevice(Course& course, size_t device);
absl::Status EndWait(Course& course);
absl::Status EndWait(Course& course, WaiterId waiter, bool expired);

// Takes a step of a long queue: requests come and go, alone or with their sessions.
absl::Status ChangeQueue(Course& course);
absl::Status LetTimePass(Course& course, absl::Duration time);

// Takes the overdue revocations. A process that is to be ended by force mostly ends at once; one
// that is asked to end sometimes does.
absl::Status TakeOverdue(Course& course);

}  // namespace gpumemd::steps
