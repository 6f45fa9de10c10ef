// SPDX-License-Identifier: Apache-2.0
// The model of tenants: parents, quotas, and memory taken past the broker.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

inline const Quota& QuotaOf(const LedgerModel& model, const std::string& tenant) {
  return model.tenants.at(tenant).quota;
}

// Returns the code with which the quota is refused, or OK. `parent`: under which the tenant is to
// be; empty: as now.
absl::StatusCode CodeForQuota(const LedgerModel& model, const std::string& name, const Quota& quota,
                              const std::string& parent = "");
void ApplyQuota(LedgerModel& model, const std::string& name, const Quota& quota);

std::vector<std::string> TenantNames(const LedgerModel& model);

// Returns the tenant and all tenants above it, the nearest first.
std::vector<std::string> PathOf(const LedgerModel& model, const std::string& tenant);
bool IsUnder(const LedgerModel& model, const std::string& tenant, absl::string_view above);
uint64_t LimitOn(const LedgerModel& model, const std::string& name, size_t device);
uint64_t MaxRetainedOn(const LedgerModel& model, const Tenant& tenant, size_t device);
uint64_t GuaranteeOn(const LedgerModel& model, const std::string& name, size_t device);

// True if the tenant's memory, without what it has given up, exceeds a limit of the tenant or of
// one above it.
bool OverALimit(const LedgerModel& model, const std::string& name, size_t device);
void NotePeaks(LedgerModel& model);
// Adds the time since the last call to the tenants' byte-seconds. Call it after each call of the
// ledger, which takes no time.
void NoteUses(LedgerModel& model, absl::Time now);

// Puts the tenant under its quota's parent, if that is configured and not under the tenant itself.
void Link(LedgerModel& model, const std::string& name);
void Configure(LedgerModel& model, const std::map<std::string, Quota>& tenants,
               const Quota& defaults, const std::map<std::string, OverriddenQuota>& overridden);
absl::Status SetQuota(LedgerModel& model, const std::string& name, const OverriddenQuota& quota,
                      const absl::Status& answer);
void OverrideQuota(LedgerModel& model, const std::string& name, const OverriddenQuota& quota);
absl::Status UnsetQuota(LedgerModel& model, const std::string& name, const Quota& quota,
                        const absl::Status& answer);
std::map<std::string, OverriddenQuota> Overridden(const LedgerModel& model);
void SetDraining(LedgerModel& model, bool draining);
void SetUnbrokered(LedgerModel& model, const std::vector<UnbrokeredBytes>& uses);

// Returns the device of the first use past the broker for which a tenant is denied new memory.
std::optional<size_t> DeviceUsedPastBroker(const LedgerModel& model, const std::string& tenant);
uint64_t Unbrokered(const LedgerModel& model, const std::string& tenant, size_t device);

// True if the tenant gets nothing new because of memory that its processes took past the broker.
inline bool DeniedForUnbrokered(const LedgerModel& model, const std::string& tenant) {
  return DeviceUsedPastBroker(model, tenant).has_value();
}

}  // namespace gpumemd::model
