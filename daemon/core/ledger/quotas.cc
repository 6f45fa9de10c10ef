// SPDX-License-Identifier: Apache-2.0
// Operators' changes of quotas, and the checks before a change.
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/inspect/inspector.h"
#include "daemon/core/ledger/tenants.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {

absl::Status Tenants::CheckDevices(const Quota& quota) const {
  for (const auto* by_device : {&quota.device_limits, &quota.device_guarantees}) {
    for (const auto& [uuid, bytes] : *by_device) {
      absl::StatusOr<size_t> device = state_.FindDevice(uuid);
      if (!device.ok()) return device.status();
      if (!IsHostMemory(state_.devices[*device])) continue;
      return absl::InvalidArgumentError(
          by_device == &quota.device_limits
              ? absl::StrCat(uuid, " is host memory, which has a separate limit: set ",
                             IsHostTier(state_.devices[*device]) ? "tier" : "pinned",
                             "_limit_bytes")
              : absl::StrCat(uuid, " is host memory, which cannot be guaranteed"));
    }
  }
  return absl::OkStatus();
}

absl::Status Tenants::CheckKind(const Quota& quota) {
  if (!quota.revocable || !quota.kind || TraitsOf(*quota.kind).revocable) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "memory of kind mempool cannot be taken back; choose another kind for a tenant whose "
      "leases are all revocable");
}

absl::Status Tenants::CheckQuota(absl::string_view name, const Quota& quota,
                                 const Tenant* parent) const {
  if (absl::Status right = CheckKind(quota); !right.ok()) return right;
  std::map<std::string, Quota> quotas;
  for (const auto& [other, tenant] : state_.tenants) {
    Quota& each = quotas.emplace(other, other == name ? quota : tenant->quota).first->second;
    // A tenant whose named parent is not configured has no parent.
    const Tenant* above = parent != nullptr && other == name ? parent : tenant->parent;
    each.parent = above == nullptr ? "" : above->name;
  }
  quotas.emplace(name, quota);  // if it is not there yet
  std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(quotas, state_.devices);
  if (!problem) return absl::OkStatus();
  const std::string sentence = Tell(*problem);
  return problem->what == GuaranteeProblem::What::kAboveLimit
             ? absl::InvalidArgumentError(sentence)
             : absl::FailedPreconditionError(sentence);
}

void Tenants::OverrideQuota(absl::string_view name, const OverriddenQuota& quota) {
  Tenant& tenant = Ensure(name);
  tenant.overridden = quota.changes;
  ApplyWithMembers(tenant, quota.quota);
}

absl::StatusOr<TenantView> Tenants::UnsetQuota(absl::string_view name, const Quota& quota) {
  Tenant* tenant = state_.FindTenant(name);
  if (tenant == nullptr) return state_.NoSuchTenant(name);
  tenant->overridden.reset();
  ApplyWithMembers(*tenant, quota);
  TenantView view = Inspector(&state_).View(*tenant);
  ForgetIfIdle(*tenant);
  return view;
}

}  // namespace gpumemd
