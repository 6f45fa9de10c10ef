// SPDX-License-Identifier: Apache-2.0
// The model of claims on contents.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// True if the session has a claim by this request.
bool HasClaim(const LedgerModel& model, SessionId session, uint64_t request);
// Returns the refusal of a request for contents that is refused for what it says, or OK.
absl::StatusCode ContentsCode(const LedgerModel& model, SessionId session, const AttachSpec& spec);
// Returns OK if this is the answer to a request for contents that are not published.
absl::Status BeginClaim(LedgerModel& model, SessionId session, const AttachSpec& spec,
                        const std::string& tenant, const std::string& name,
                        const absl::StatusOr<Admission>& answer);
void ReleaseClaim(LedgerModel& model, SessionId session, uint64_t request);
// Releases the claim of a request that may be repeated.
void RefuseClaim(LedgerModel& model, SessionId session, uint64_t request);
// Releases the session's claims but those of these requests.
void ReleaseClaimsUnless(LedgerModel& model, SessionId session, const std::set<uint64_t>& requests);
// Ends the session's claim on what it has published, and wakes those that wait for it.
void PublishContents(LedgerModel& model, SessionId session, const Publication& publication);
// Returns OK if the ledger has the same claims.
absl::Status CompareClaims(const LedgerModel& model, const Ledger& ledger);

}  // namespace gpumemd::model
