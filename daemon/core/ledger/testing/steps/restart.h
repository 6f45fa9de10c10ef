// SPDX-License-Identifier: Apache-2.0
// The daemon's end: at any moment it is killed, some processes with it, and another goes on.
// Includes the steps of sessions that come back.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// Kills the daemon, and lets another go on.
absl::Status Restart(Course& course);

// Sends a request from before the restart once more.
absl::Status Regrant(Course& course);
absl::Status RegrantAttach(Course& course);
absl::Status DropRegrants(Course& course);
absl::Status Resume(Course& course);

// Lets a session come back with most of its leases and some of its requests.
absl::Status Reconcile(Course& course);

// True at some of the moments that are too rare for a restart by chance alone.
bool IsRareMoment(Course& course);
bool AnyAttachToRegrant(const Course& course);

}  // namespace gpumemd::steps
