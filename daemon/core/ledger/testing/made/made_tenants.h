// SPDX-License-Identifier: Apache-2.0
// The model of tenants that are made at run time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// Returns the tenant that counts what the sessions of this one have.
std::string BooksOf(const LedgerModel& model, const std::string& tenant);
inline bool HasEnded(const LedgerModel& model, const std::string& tenant) {
  const Tenant& found = model.tenants.at(tenant);
  return found.made && found.made->ending;
}

// Computes the quotas of made tenants anew, those of parents first.
void ComputeMadeQuotas(LedgerModel& model);
// Sets the tenant's quota, and those of tenants under it that follow it.
void ApplyWithMembers(LedgerModel& model, const std::string& name, const Quota& quota);

absl::Status Create(LedgerModel& model, const MadeTenantSpec& spec,
                    const absl::StatusOr<bool>& answer);
absl::Status CreateChild(LedgerModel& model, SessionId session, const std::string& name,
                         const QuotaOverride& own, bool lasting,
                         const absl::StatusOr<std::string>& answer);
// `session`: whose call it is; nullopt: an operator's.
absl::Status UpdateMade(LedgerModel& model, std::optional<SessionId> session,
                        const std::string& tenant, const std::optional<std::string>& owner,
                        const QuotaOverride& change, const absl::Status& answer);
absl::Status EndMade(LedgerModel& model, std::optional<SessionId> session,
                     const std::string& tenant, const std::optional<std::string>& owner,
                     const absl::Status& answer);
// Ends the tenants that the session has made.
void EndMadeOf(LedgerModel& model, SessionId session);
// Takes the made part of those that have ended and are not in use, and that an override keeps.
// Returns how many there were.
size_t KeepOverridesAlone(LedgerModel& model, absl::FunctionRef<bool(const std::string&)> unused);
// For a restart: takes the guarantees that could not be kept, of which each sentence tells.
absl::Status GiveUpGuarantees(LedgerModel& model, const std::vector<std::string>& told);
// For a restart: ends those whose session is gone.
void EndOrphans(LedgerModel& model);

}  // namespace gpumemd::model
