// SPDX-License-Identifier: Apache-2.0
// Steps of sessions: how they begin and end, and their calls.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

absl::Status OpenSession(Course& course, const std::string& tenant, const PeerIdentity& peer);

// Lets a process give back all its leases, close its session, and open another.
absl::Status Reconnect(Course& course);
// Returns the words for a log if a session is ending.
const char* HasEnding(const Course& course);
absl::Status SocketClosed(Course& course, SessionId session);
absl::Status ProcessGone(Course& course, SessionId session);
absl::Status ContinueEnding(Course& course);

// Runs the probe without sessions that are ending.
absl::Status WithoutEnding(Course& course, absl::Status (*probe)(Course&));
absl::Status BeginCall(Course& course);
absl::Status BeginCall(Course& course, SessionId session);

// Ends a call, of a session that is over if there is one.
absl::Status EndCall(Course& course);
absl::Status EndCall(Course& course, SessionId session);
uint32_t CallsOf(const Course& course, SessionId session);
std::set<SessionId> Sessions(const Course& course);

// Opens a session of a new process.
absl::Status NewProcess(Course& course, const std::string& tenant,
                        std::optional<SessionId>* session);

}  // namespace gpumemd::steps
