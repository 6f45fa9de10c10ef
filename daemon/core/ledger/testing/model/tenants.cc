// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/tenants.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/attachments.h"
#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/guarantees.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"

namespace gpumemd::model {

using absl::StatusCode;

void ApplyQuota(LedgerModel& model, const std::string& name, const Quota& quota) {
  model.tenants.at(name).quota = quota;
  Link(model, name);
  NotePeaks(model);
  model.queue_changed = true;
  for (size_t device = 0; device < model.devices.size(); ++device) {
    while (Retained(model, name, device) > MaxRetainedOn(model, model.tenants.at(name), device)) {
      GiveUpOldest(model, name, device);
    }
    while (quota.scrub && GiveUpOldest(model, name, device)) {
    }
    GiveUpFor(model, {.tenant = name, .device = device}, 0, {});
  }
}

absl::StatusCode CodeForQuota(const LedgerModel& model, const std::string& name, const Quota& quota,
                              const std::string& parent) {
  for (const auto* by_device : {&quota.device_limits, &quota.device_guarantees}) {
    for (const auto& [uuid, bytes] : *by_device) {  // the first wrong one is reported
      if (DeviceIndex(model, uuid) >= model.devices.size()) return StatusCode::kNotFound;
      if (Pinned(model, DeviceIndex(model, uuid))) return StatusCode::kInvalidArgument;
    }
  }
  if (quota.revocable && quota.kind == Kind::kMempool) return StatusCode::kInvalidArgument;
  LedgerModel after(model.devices, model.bounds);  // as if no memory were held
  after.tenants = model.tenants;
  after.tenants[name].quota = quota;
  if (!parent.empty()) after.tenants[name].parent = parent;
  const auto needs_below = [&after](const std::string& tenant, size_t device) {
    uint64_t needs = 0;
    for (const auto& [other, member] : after.tenants) {
      if (member.parent == tenant) needs += Need(after, other, device);
    }
    return needs;
  };
  // Only the tenant and those above it: what could not be kept elsewhere before may stay so.
  const std::vector<std::string> path = PathOf(after, name);
  for (size_t d = 0; d < model.devices.size(); ++d) {
    if (Pinned(model, d)) continue;
    const auto limit_of = [&](const Quota& of) {
      auto own = of.device_limits.find(model.devices[d].uuid);
      return own != of.device_limits.end() ? own->second : of.limit_bytes.value_or(UINT64_MAX);
    };
    if (GuaranteeOn(after, name, d) > limit_of(quota)) return StatusCode::kInvalidArgument;
    for (const std::string& each : path) {
      if (needs_below(each, d) > limit_of(after.tenants.at(each).quota)) {
        return StatusCode::kFailedPrecondition;
      }
    }
    if (needs_below("", d) > model.devices[d].capacity_bytes) {
      return StatusCode::kFailedPrecondition;
    }
  }
  for (const std::string& each : path) {
    uint64_t needs = 0;
    for (size_t d = 0; d < model.devices.size(); ++d) {
      needs += Pinned(model, d) ? 0 : Need(after, each, d);
    }
    if (needs > after.tenants.at(each).quota.total_limit_bytes.value_or(UINT64_MAX)) {
      return StatusCode::kFailedPrecondition;
    }
  }
  return StatusCode::kOk;
}

std::vector<std::string> TenantNames(const LedgerModel& model) {
  std::vector<std::string> names;
  for (const auto& [name, tenant] : model.tenants) names.push_back(name);
  return names;
}

std::vector<std::string> PathOf(const LedgerModel& model, const std::string& tenant) {
  std::vector<std::string> path;
  for (std::string each = tenant; !each.empty(); each = model.tenants.at(each).parent) {
    path.push_back(each);
  }
  return path;
}

bool IsUnder(const LedgerModel& model, const std::string& tenant, absl::string_view above) {
  if (above.empty()) return true;
  for (const std::string* each = &tenant; !each->empty(); each = &model.tenants.at(*each).parent) {
    if (*each == above) return true;
  }
  return false;
}

uint64_t LimitOn(const LedgerModel& model, const std::string& name, size_t device) {
  const Quota& quota = model.tenants.at(name).quota;
  if (Pinned(model, device)) {
    return std::min(quota.pinned_limit_bytes.value_or(UINT64_MAX),
                    model.devices[device].capacity_bytes);
  }
  uint64_t limit = quota.limit_bytes.value_or(UINT64_MAX);
  auto it = quota.device_limits.find(model.devices[device].uuid);
  if (it != quota.device_limits.end()) limit = it->second;
  return std::min(limit, model.devices[device].capacity_bytes);
}

uint64_t MaxRetainedOn(const LedgerModel& model, const Tenant& tenant, size_t device) {
  auto it = tenant.quota.device_max_retained.find(model.devices[device].uuid);
  if (it != tenant.quota.device_max_retained.end()) return it->second;
  return tenant.quota.max_retained_bytes.value_or(UINT64_MAX);
}

uint64_t GuaranteeOn(const LedgerModel& model, const std::string& name, size_t device) {
  const Quota& quota = model.tenants.at(name).quota;
  auto it = quota.device_guarantees.find(model.devices[device].uuid);
  if (Pinned(model, device)) return 0;
  return it != quota.device_guarantees.end() ? it->second : quota.guarantee_bytes.value_or(0);
}

bool OverALimit(const LedgerModel& model, const std::string& name, size_t device) {
  for (const std::string& each : PathOf(model, name)) {
    const Quota& quota = model.tenants.at(each).quota;
    if (SumOf(model, each, device, Which::kStaying).bytes > LimitOn(model, each, device) ||
        (!Pinned(model, device) && SumOf(model, each, kUnpinned, Which::kStaying).bytes >
                                       quota.total_limit_bytes.value_or(UINT64_MAX)) ||
        SumOf(model, each, kEverywhere, Which::kStaying).segments >
            quota.max_segments.value_or(UINT32_MAX)) {
      return true;
    }
  }
  return false;
}

void NotePeaks(LedgerModel& model) {
  for (auto& [name, tenant] : model.tenants) {
    for (size_t d = 0; d < model.devices.size(); ++d) {
      tenant.peaks[d] = std::max(tenant.peaks[d], SumOf(model, name, d, Which::kAll).bytes);
    }
  }
}

void NoteUses(LedgerModel& model, absl::Time now) {
  const absl::uint128 passed = static_cast<uint64_t>(absl::ToInt64Nanoseconds(now - model.noted));
  for (auto& [name, tenant] : model.tenants) {
    for (size_t d = 0; d < model.devices.size(); ++d) {
      Tenant::Metered& metered = tenant.metered[d];
      metered.byte_ns += metered.charged * passed;
      metered.charged = SumOf(model, name, d, Which::kAll).bytes;
    }
  }
  model.noted = now;
}

void Link(LedgerModel& model, const std::string& name) {
  Tenant& tenant = model.tenants.at(name);
  tenant.parent.clear();
  auto parent = model.tenants.find(tenant.quota.parent);
  const bool fixed =
      tenant.made && !tenant.configured && tenant.made->parent == tenant.quota.parent;
  if (parent == model.tenants.end() || !(parent->second.configured || fixed)) return;
  if (!IsUnder(model, parent->first, name)) tenant.parent = parent->first;
}

void Configure(LedgerModel& model, const std::map<std::string, Quota>& tenants,
               const Quota& defaults, const std::map<std::string, OverriddenQuota>& overridden) {
  model.defaults = defaults;
  for (const auto& [name, quota] : tenants) {
    model.tenants[name].peaks.resize(model.devices.size());
  }
  for (auto& [name, tenant] : model.tenants) {
    auto it = tenants.find(name);
    tenant.configured = it != tenants.end();
    tenant.overridden.reset();
    tenant.quota = tenant.configured ? it->second : defaults;
    tenant.parent.clear();
  }
  for (const auto& [name, quota] : overridden) {
    model.tenants.at(name).overridden = quota.changes;
    model.tenants.at(name).quota = quota.quota;
  }
  ComputeMadeQuotas(model);
  for (const std::string& name : TenantNames(model)) Link(model, name);
  NotePeaks(model);
  for (const std::string& name : TenantNames(model)) {
    ApplyQuota(model, name, Quota(QuotaOf(model, name)));
  }
  Sweep(model);
}

absl::Status SetQuota(LedgerModel& model, const std::string& name, const OverriddenQuota& quota,
                      const absl::Status& answer) {
  const absl::StatusCode code = CodeForQuota(model, name, quota.quota);
  if (code == absl::StatusCode::kOk) OverrideQuota(model, name, quota);
  return ExpectCode(answer, code);
}

void OverrideQuota(LedgerModel& model, const std::string& name, const OverriddenQuota& quota) {
  model.tenants[name].peaks.resize(model.devices.size());
  model.tenants.at(name).overridden = quota.changes;
  ApplyWithMembers(model, name, quota.quota);
}

absl::Status UnsetQuota(LedgerModel& model, const std::string& name, const Quota& quota,
                        const absl::Status& answer) {
  if (!model.tenants.contains(name)) return ExpectCode(answer, absl::StatusCode::kNotFound);
  model.tenants.at(name).overridden.reset();
  ApplyWithMembers(model, name, quota);
  Sweep(model);
  return ExpectCode(answer, absl::StatusCode::kOk);
}

std::map<std::string, OverriddenQuota> Overridden(const LedgerModel& model) {
  std::map<std::string, OverriddenQuota> overridden;
  for (const auto& [name, tenant] : model.tenants) {
    if (tenant.overridden) overridden[name] = {tenant.quota, *tenant.overridden};
  }
  return overridden;
}

void SetDraining(LedgerModel& model, bool draining) {
  model.draining = draining;
  if (!draining) return;
  model.queue_changed = true;
  for (const auto& [name, tenant] : model.tenants) GiveUpAllOf(model, name);
  EndAttachWaitsOf(model, std::nullopt);
}

void SetUnbrokered(LedgerModel& model, const std::vector<UnbrokeredBytes>& uses) {
  model.unbrokered = uses;
  model.queue_changed |=
      std::any_of(uses.begin(), uses.end(), [](const UnbrokeredBytes& use) { return use.denies; });
}

std::optional<size_t> DeviceUsedPastBroker(const LedgerModel& model, const std::string& tenant) {
  for (const UnbrokeredBytes& use : model.unbrokered) {
    auto session = model.sessions.find(use.session);
    if (use.denies && session != model.sessions.end() && session->second.tenant == tenant) {
      return DeviceIndex(model, use.device_uuid);
    }
  }
  return std::nullopt;
}

uint64_t Unbrokered(const LedgerModel& model, const std::string& tenant, size_t device) {
  uint64_t bytes = 0;
  for (const UnbrokeredBytes& use : model.unbrokered) {
    auto session = model.sessions.find(use.session);
    if (session == model.sessions.end() || session->second.tenant != tenant) continue;
    if (use.device_uuid == model.devices[device].uuid) bytes += use.bytes;
  }
  return bytes;
}

}  // namespace gpumemd::model
