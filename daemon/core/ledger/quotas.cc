// SPDX-License-Identifier: Apache-2.0
// Operators' changes of quotas, and the checks before a change.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/admission/account.h"
#include "daemon/core/admission/standing.h"
#include "daemon/core/ledger/inspect/inspector.h"
#include "daemon/core/ledger/tenants.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {
namespace {

using records::Tenant;

// The needs of guarantees on one device (guarantees.h), if some were others. Each call takes time
// in proportion to the levels of tenants.
class ChangedNeeds {
 public:
  ChangedNeeds(const LedgerState* state, size_t device) : state_(*state), device_(device) {}

  // Returns the sum of the needs directly under the tenant; null: of tenants without a parent.
  uint64_t Below(const Tenant* tenant) const {
    const auto changed = below_.find(tenant);
    if (changed != below_.end()) return changed->second;
    return AccountOf(tenant).least_needs_below();
  }
  uint64_t Of(const Tenant& tenant) const {
    return std::max(AccountOf(&tenant).guarantee(), Below(&tenant));
  }
  // Changes one of the needs directly under the tenant, and with it those of all above.
  void Change(const Tenant* tenant, uint64_t from, uint64_t to) {
    while (from != to) {
      const uint64_t need = tenant == nullptr ? 0 : Of(*tenant);
      below_[tenant] = Plus(Below(tenant) - from, to);
      if (tenant == nullptr) return;
      from = need;
      to = Of(*tenant);
      tenant = tenant->parent;
    }
  }

 private:
  const Account& AccountOf(const Tenant* tenant) const {
    return tenant == nullptr ? state_.device_accounts[device_] : tenant->accounts[device_];
  }

  const LedgerState& state_;
  const size_t device_;
  std::map<const Tenant*, uint64_t> below_;  // those that have changed
};

absl::Status StatusOf(const std::optional<GuaranteeProblem>& problem) {
  if (!problem) return absl::OkStatus();
  const std::string sentence = Tell(*problem);
  return problem->what == GuaranteeProblem::What::kAboveLimit
             ? absl::InvalidArgumentError(sentence)
             : absl::FailedPreconditionError(sentence);
}

}  // namespace

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

std::optional<GuaranteeProblem> Tenants::FindProblem(absl::string_view name, const Quota& quota,
                                                     const Tenant* parent, bool in_parts) const {
  using What = GuaranteeProblem::What;
  const Tenant* const there = state_.FindTenant(name);
  if (parent == nullptr) {
    parent = there != nullptr ? there->parent : state_.FindTenant(quota.parent);
  }
  struct Level {
    const Tenant* tenant;  // null: not there yet
    absl::string_view name;
    const Quota& quota;
    uint64_t total = 0;  // of its needs on all devices
  };
  std::vector<Level> levels = {{there, name, quota}};
  for (const Tenant* each = parent; each != nullptr; each = each->parent) {
    levels.push_back({each, each->name, each->quota});
  }
  for (size_t d = 0; d < state_.devices.size(); ++d) {
    const DeviceInfo& device = state_.devices[d];
    if (IsHostMemory(device)) continue;
    const auto problem = [&device](What what, absl::string_view tenant, uint64_t needed,
                                   uint64_t limit) {
      return GuaranteeProblem{.what = what,
                              .tenant = std::string(tenant),
                              .device = device.uuid,
                              .needed = needed,
                              .limit = limit};
    };
    ChangedNeeds needs(&state_, d);
    const uint64_t guarantee = GuaranteeOn(quota, device), limit = LimitOn(quota, device);
    if (guarantee > limit) return problem(What::kAboveLimit, name, guarantee, limit);
    const uint64_t need = there == nullptr ? guarantee : std::max(guarantee, needs.Below(there));
    if (there != nullptr) needs.Change(there->parent, needs.Of(*there), 0);
    needs.Change(parent, 0, need);
    // The needs directly under a tenant; null: of tenants without a parent.
    const auto parts_of = [&](const Tenant* above) {
      std::map<std::string, uint64_t> parts;
      for (const auto& [other, tenant] : state_.tenants) {
        if (tenant.get() != there && tenant->parent == above) parts[other] = needs.Of(*tenant);
      }
      if (above == parent) parts[std::string(name)] = need;
      std::erase_if(parts, [](const auto& part) { return part.second == 0; });
      return std::vector<std::pair<std::string, uint64_t>>(parts.begin(), parts.end());
    };
    for (Level& level : levels) {
      const uint64_t members = level.tenant == nullptr ? 0 : needs.Below(level.tenant);
      if (const uint64_t most = LimitOn(level.quota, device); members > most) {
        GuaranteeProblem found = problem(What::kMembersAboveLimit, level.name, members, most);
        if (in_parts) found.parts = parts_of(level.tenant);
        return found;
      }
      level.total = Plus(level.total, &level == &levels[0] ? need : needs.Of(*level.tenant));
    }
    if (const uint64_t all = needs.Below(nullptr); all > device.capacity_bytes) {
      GuaranteeProblem found = problem(What::kAboveCapacity, "", all, device.capacity_bytes);
      if (in_parts) found.parts = parts_of(nullptr);
      return found;
    }
  }
  for (const Level& level : levels) {
    if (level.total <= level.quota.total_limit_bytes.value_or(UINT64_MAX)) continue;
    return GuaranteeProblem{.what = What::kAboveTotalLimit,
                            .tenant = std::string(level.name),
                            .needed = level.total,
                            .limit = *level.quota.total_limit_bytes};
  }
  return std::nullopt;
}

absl::Status Tenants::CheckQuota(absl::string_view name, const Quota& quota,
                                 const Tenant* parent) const {
  if (absl::Status right = CheckKind(quota); !right.ok()) return right;
  return StatusOf(FindProblem(name, quota, parent, /*in_parts=*/true));
}

absl::Status Tenants::CheckQuotaInBrief(absl::string_view name, const Quota& quota,
                                        const Tenant* parent) const {
  if (absl::Status right = CheckKind(quota); !right.ok()) return right;
  return StatusOf(FindProblem(name, quota, parent, /*in_parts=*/false));
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
