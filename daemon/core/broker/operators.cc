// Operators' requests to the broker.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"

namespace gpumemd {

void Broker::Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                       const std::map<std::string, Quota>& overridden) {
  Update update(this);
  ledger_.tenants().Configure(tenants, defaults, overridden);
  if (observer_ != nullptr) observer_->QuotaChanged("");
}

absl::Status Broker::CheckQuota(absl::string_view tenant, const Quota& quota,
                                const Quota& asked) const {
  TimedLock lock(&mutex_);
  if (absl::Status known = ledger_.tenants().CheckDevices(asked); !known.ok()) return known;
  return ledger_.tenants().CheckQuota(tenant, quota);
}

absl::StatusOr<TenantView> Broker::OverrideQuota(absl::string_view tenant, const Quota& quota) {
  {
    Update update(this);
    ledger_.tenants().OverrideQuota(tenant, quota);
    if (observer_ != nullptr) observer_->QuotaChanged(tenant);
  }
  return GetTenant(tenant);  // includes requests that the change granted
}

absl::StatusOr<TenantView> Broker::UnsetQuota(absl::string_view tenant, const Quota& quota) {
  Update update(this);
  absl::StatusOr<TenantView> view = ledger_.tenants().UnsetQuota(tenant, quota);
  if (observer_ != nullptr) observer_->QuotaChanged(tenant);
  return view;
}

absl::StatusOr<Broker::Trimmed> Broker::Trim(absl::string_view tenant, absl::string_view device,
                                             uint64_t keep_bytes) {
  absl::StatusOr<std::vector<SegmentId>> doomed;
  Trimmed trimmed;
  {
    Update update(this);
    doomed = ledger_.segments().Trim(tenant, device, keep_bytes);
    if (!doomed.ok()) return doomed.status();
    for (SegmentId id : *doomed) {
      trimmed.bytes += ledger_.look().Describe({.segment = id}).bytes;
      ++trimmed.segments;
    }
  }
  TimedLock lock(&mutex_);
  auto gone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::none_of(doomed->begin(), doomed->end(),
                        [&](SegmentId id) { return ledger_.state().segments.contains(id); });
  };
  mutex_.Await(absl::Condition(&gone));
  return trimmed;
}

void Broker::SetDraining(bool draining) {
  Update update(this);
  if (ledger_.state().draining == draining) return;
  ledger_.SetDraining(draining);
  if (observer_ != nullptr) observer_->DrainingChanged(draining);
}

void Broker::SetHoldersShown(HoldersShown shown) {
  TimedLock lock(&mutex_);
  holders_shown_ = shown;
}

void Broker::SetUnbrokered(std::vector<UnbrokeredBytes> uses) {
  Update update(this);
  ledger_.SetUnbrokered(std::move(uses));
}

// The driver's memory pools. The devices know them; the ledger counts their segments like all
// others.

absl::StatusOr<std::vector<Broker::PoolView>> Broker::ListPools(absl::string_view tenant,
                                                                absl::string_view uuid) const {
  std::vector<PoolView> pools;
  bool known = uuid.empty();
  for (const auto& device : devices_) {
    if (!uuid.empty() && device->info().uuid != uuid) continue;
    known = true;
    absl::StatusOr<std::vector<PoolStatus>> there = device->Pools();
    if (!there.ok()) return there.status();
    for (PoolStatus& status : *there) {
      if (!tenant.empty() && status.tenant != tenant) continue;
      pools.push_back({device->info().uuid, std::move(status)});
    }
  }
  if (!known) return absl::NotFoundError(absl::StrCat("this node has no device \"", uuid, "\""));
  return pools;
}

absl::StatusOr<Device*> Broker::FindPool(absl::string_view tenant, absl::string_view uuid) const {
  absl::StatusOr<std::vector<PoolView>> pools = ListPools(tenant, uuid);
  if (!pools.ok()) return pools.status();
  if (tenant.empty() || pools->empty()) {
    return absl::NotFoundError(
        absl::StrCat("tenant \"", tenant, "\" has no memory pool", uuid.empty() ? "" : " on ", uuid,
                     "; a pool is there while segments of kind mempool are"));
  }
  for (const auto& device : devices_) {
    if (device->info().uuid == pools->front().device_uuid) return device.get();
  }
  return absl::InternalError("a pool's device is gone");
}

absl::StatusOr<Broker::PoolView> Broker::SetPool(absl::string_view tenant, absl::string_view uuid,
                                                 const PoolChange& change) {
  absl::StatusOr<Device*> device = FindPool(tenant, uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<PoolStatus> status = (*device)->SetPool(tenant, change);
  if (!status.ok()) return status.status();
  return PoolView{(*device)->info().uuid, *std::move(status)};
}

absl::StatusOr<Broker::PoolView> Broker::TrimPool(absl::string_view tenant, absl::string_view uuid,
                                                  uint64_t keep_bytes) {
  absl::StatusOr<Device*> device = FindPool(tenant, uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<PoolStatus> status = (*device)->TrimPool(tenant, keep_bytes);
  if (!status.ok()) return status.status();
  return PoolView{(*device)->info().uuid, *std::move(status)};
}

}  // namespace gpumemd
