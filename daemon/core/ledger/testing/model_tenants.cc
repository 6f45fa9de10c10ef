// The model of quotas: settings, checks, and effects.
#include <algorithm>
#include <utility>

#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {

void LedgerModel::NotePeaks() {
  for (auto& [name, tenant] : tenants_) {
    for (size_t d = 0; d < devices_.size(); ++d) {
      tenant.peaks[d] = std::max(tenant.peaks[d], Of(name, d, Which::kAll).bytes);
    }
  }
}

// Puts the tenant under its quota's parent, if that is configured and not under the tenant itself.
void LedgerModel::Link(const std::string& name) {
  Tenant& tenant = tenants_.at(name);
  tenant.parent.clear();
  auto parent = tenants_.find(tenant.quota.parent);
  if (parent == tenants_.end() || !parent->second.configured) return;
  if (!IsUnder(parent->first, name)) tenant.parent = parent->first;
}

void LedgerModel::ApplyQuota(const std::string& name, const Quota& quota) {
  tenants_.at(name).quota = quota;
  Link(name);
  NotePeaks();
  stirred_ = true;
  for (size_t device = 0; device < devices_.size(); ++device) {
    while (Retained(name, device) > MaxRetainedOn(tenants_.at(name), device)) {
      GiveUpOldest(name, device);
    }
    while (quota.scrub && GiveUpOldest(name, device)) {
    }
    GiveUpFor({.tenant = name, .device = device}, 0, {});
  }
}

void LedgerModel::Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults) {
  defaults_ = defaults;
  for (const auto& [name, quota] : tenants) {
    tenants_[name].peaks.resize(devices_.size());
  }
  for (auto& [name, tenant] : tenants_) {
    auto it = tenants.find(name);
    tenant.configured = it != tenants.end();
    tenant.quota_set = false;
    tenant.quota = tenant.configured ? it->second : defaults;
    tenant.parent.clear();
  }
  for (const std::string& name : TenantNames()) Link(name);
  NotePeaks();
  for (const std::string& name : TenantNames()) ApplyQuota(name, Quota(QuotaOf(name)));
  Sweep();
}

// Returns the code with which the quota is refused, or OK.
absl::StatusCode LedgerModel::Check(const std::string& name, const Quota& quota) const {
  using absl::StatusCode;
  for (const auto* by_device : {&quota.device_limits, &quota.device_guarantees}) {
    for (const auto& [uuid, bytes] : *by_device) {  // the first wrong one is reported
      if (DeviceIndex(uuid) >= devices_.size()) return StatusCode::kNotFound;
      if (Pinned(DeviceIndex(uuid))) return StatusCode::kInvalidArgument;
    }
  }
  if (quota.revocable && quota.kind == Kind::kMempool) return StatusCode::kInvalidArgument;
  LedgerModel after(devices_, bounds_);  // as if no memory were held
  after.tenants_ = tenants_;
  after.tenants_.at(name).quota = quota;
  for (size_t d = 0; d < devices_.size(); ++d) {
    if (Pinned(d)) continue;
    const auto limit_of = [&](const Quota& of) {
      auto own = of.device_limits.find(devices_[d].uuid);
      return own != of.device_limits.end() ? own->second : of.limit_bytes.value_or(UINT64_MAX);
    };
    for (const auto& [other, tenant] : after.tenants_) {
      if (after.GuaranteeOn(other, d) > limit_of(tenant.quota)) return StatusCode::kInvalidArgument;
    }
    for (const auto& [other, tenant] : after.tenants_) {
      if (after.Need(other, d) > limit_of(tenant.quota)) return StatusCode::kFailedPrecondition;
    }
    if (after.Need("", d) > devices_[d].capacity_bytes) return StatusCode::kFailedPrecondition;
  }
  for (const auto& [other, tenant] : after.tenants_) {
    uint64_t needs = 0;
    for (size_t d = 0; d < devices_.size(); ++d) needs += Pinned(d) ? 0 : after.Need(other, d);
    if (needs > tenant.quota.total_limit_bytes.value_or(UINT64_MAX)) {
      return StatusCode::kFailedPrecondition;
    }
  }
  return StatusCode::kOk;
}

absl::Status LedgerModel::SetQuota(const std::string& name, const Quota& quota,
                                   const absl::Status& answer) {
  const absl::StatusCode code = Check(name, quota);
  if (code == absl::StatusCode::kOk) OverrideQuota(name, quota);
  return ExpectCode(answer, code);
}

void LedgerModel::OverrideQuota(const std::string& name, const Quota& quota) {
  tenants_[name].peaks.resize(devices_.size());
  tenants_.at(name).quota_set = true;
  ApplyQuota(name, quota);
}

absl::Status LedgerModel::UnsetQuota(const std::string& name, const Quota& quota,
                                     const absl::Status& answer) {
  if (!tenants_.contains(name)) return ExpectCode(answer, absl::StatusCode::kNotFound);
  tenants_.at(name).quota_set = false;
  ApplyQuota(name, quota);
  Sweep();
  return ExpectCode(answer, absl::StatusCode::kOk);
}

void LedgerModel::SetDraining(bool draining) {
  draining_ = draining;
  if (!draining) return;
  stirred_ = true;
  for (const auto& [name, tenant] : tenants_) GiveUpAllOf(name);
  EndAttachWaitsOf(std::nullopt);
}

// --- Memory taken past the broker ----------------------------------------------------

void LedgerModel::SetUnbrokered(const std::vector<UnbrokeredBytes>& uses) {
  unbrokered_ = uses;
  if (!waiters_.empty()) stirred_ = true;
}

std::optional<size_t> LedgerModel::PastTheBroker(const std::string& tenant) const {
  for (const UnbrokeredBytes& use : unbrokered_) {
    auto session = sessions_.find(use.session);
    if (use.denies && session != sessions_.end() && session->second.tenant == tenant) {
      return DeviceIndex(use.device_uuid);
    }
  }
  return std::nullopt;
}

uint64_t LedgerModel::Unbrokered(const std::string& tenant, size_t device) const {
  uint64_t bytes = 0;
  for (const UnbrokeredBytes& use : unbrokered_) {
    auto session = sessions_.find(use.session);
    if (session == sessions_.end() || session->second.tenant != tenant) continue;
    if (use.device_uuid == devices_[device].uuid) bytes += use.bytes;
  }
  return bytes;
}

absl::Status LedgerModel::ExpectUnbrokered(const Request& request, const absl::Status& answer) {
  const size_t device = *PastTheBroker(request.tenant);
  return ExpectDenial(answer, request.tenant,
                      {{Denial::Cause::kUnbrokered, request.tenant, device},
                       request.in_all(),
                       Unbrokered(request.tenant, device),
                       0});
}

}  // namespace gpumemd
