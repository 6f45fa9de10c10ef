// SPDX-License-Identifier: Apache-2.0
// The model of sessions: how they begin and end, and their calls.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

bool Live(const LedgerModel& model, SessionId session);
// True if the session's process may map memory that is not as revocable as this.
bool HoldsOtherLeaseType(const LedgerModel& model, SessionId id, bool revocable);

// True if the session's process has, or may still map, memory that is not revocable.
bool HoldsFirmMemory(const LedgerModel& model, SessionId id);
absl::Status OpenSession(LedgerModel& model, const std::string& name, const std::string& client,
                         const PeerIdentity& peer, absl::Time now, const Secret& token,
                         const absl::StatusOr<SessionId>& answer);

// SocketClosed and ProcessGone begin the end of a session. ContinueEnding goes on with it, as far
// as the ledger has come.
void SocketClosed(LedgerModel& model, SessionId id);
void ProcessGone(LedgerModel& model, SessionId id);
// True if any session is ending.
bool HasEnding(const LedgerModel& model);
absl::Status ContinueEnding(LedgerModel& model, const Ledger& ledger);
// Forgets sessions and tenants that nothing is left of. Call after each step.
void Sweep(LedgerModel& model);
absl::Status TakeForgotten(LedgerModel& model, std::vector<SessionId> answer);
absl::Status BeginCall(LedgerModel& model, SessionId id, const absl::Status& answer);
void EndCall(LedgerModel& model, SessionId id);

}  // namespace gpumemd::model
