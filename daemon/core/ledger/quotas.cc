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
  // The tenant is the first.
  struct Total {
    absl::string_view tenant;
    const Quota& quota;
    uint64_t needs = 0;
  };
  std::vector<Total> totals = {{name, quota}};
  for (const Tenant* each = parent; each != nullptr; each = each->parent) {
    totals.push_back({each->name, each->quota});
  }
  for (size_t d = 0; d < state_.devices.size(); ++d) {
    const DeviceInfo& device = state_.devices[d];
    if (IsHostMemory(device)) continue;
    ChangedNeeds needs(&state_, d);
    const uint64_t guarantee = GuaranteeOn(quota, device), limit = LimitOn(quota, device);
    const uint64_t below = there == nullptr ? 0 : needs.Below(there);
    const uint64_t need = std::max(guarantee, below);
    if (there != nullptr) needs.Change(there->parent, needs.Of(*there), 0);
    needs.Change(parent, 0, need);
    GuaranteeProblem problem{.tenant = std::string(name), .device = device.uuid};
    if (guarantee > limit) {
      problem.what = What::kAboveLimit;
      problem.needed = guarantee;
      problem.limit = limit;
      return problem;
    }
    // Of the members of a tenant; null: of all tenants.
    const auto sum = [&](What what, const Tenant* above, uint64_t needed, uint64_t most) {
      problem.what = what;
      problem.needed = needed;
      problem.limit = most;
      if (!in_parts) return problem;
      std::map<std::string, uint64_t> parts;
      for (const auto& [other, tenant] : state_.tenants) {
        if (tenant.get() != there && tenant->parent == above) parts[other] = needs.Of(*tenant);
      }
      if (above == parent) parts[std::string(name)] = need;
      std::erase_if(parts, [](const auto& part) { return part.second == 0; });
      problem.parts.assign(parts.begin(), parts.end());
      return problem;
    };
    if (below > limit) return sum(What::kMembersAboveLimit, there, below, limit);
    totals[0].needs = Plus(totals[0].needs, need);
    size_t level = 1;
    for (const Tenant* each = parent; each != nullptr; each = each->parent, ++level) {
      const uint64_t members = needs.Below(each), most = LimitOn(each->quota, device);
      problem.tenant = each->name;
      if (members > most) return sum(What::kMembersAboveLimit, each, members, most);
      totals[level].needs = Plus(totals[level].needs, needs.Of(*each));
    }
    problem.tenant.clear();
    const uint64_t all = needs.Below(nullptr), capacity = device.capacity_bytes;
    if (all > capacity) return sum(What::kAboveCapacity, nullptr, all, capacity);
  }
  for (const Total& total : totals) {
    if (total.needs <= total.quota.total_limit_bytes.value_or(UINT64_MAX)) continue;
    return GuaranteeProblem{.what = What::kAboveTotalLimit,
                            .tenant = std::string(total.tenant),
                            .needed = total.needs,
                            .limit = *total.quota.total_limit_bytes};
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
