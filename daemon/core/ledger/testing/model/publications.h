// SPDX-License-Identifier: Apache-2.0
// The model of publications: versions, publishers and expiry.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// Returns the tenant and the name within it; nullopt if `text` is no name.
std::optional<std::pair<std::string, std::string>> ParsePublication(const std::string& text,
                                                                    const std::string& tenant);
const Publication* FindPublication(const LedgerModel& model, const std::string& tenant,
                                   const std::string& name);
bool IsPublished(const LedgerModel& model, SegmentId segment);

// Call after each step: a session that is no longer attached was attached until then.
void NoteAttached(LedgerModel& model, absl::Time now);
void EndPublication(LedgerModel& model, PublicationId id, bool replaced = false);
absl::Status Publish(LedgerModel& model, SessionId id, const PublishSpec& spec, absl::Time now,
                     const absl::StatusOr<Publications::Published>& answer);

// Without a session: by an operator.
absl::Status Unpublish(LedgerModel& model, std::optional<SessionId> id, const std::string& text,
                       uint64_t request, const absl::StatusOr<uint64_t>& answer);
void ExpirePublications(LedgerModel& model, absl::Time now);
absl::Status TakeEndedPublications(LedgerModel& model, const std::vector<PublicationId>& answer);
absl::Status ComparePublications(const LedgerModel& model, const Ledger& ledger,
                                 const std::string& tenant, absl::Time now);

}  // namespace gpumemd::model
