// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/operators.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/broker/views.h"

namespace gpumemd {

void BrokerOperators::Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                                const std::map<std::string, OverriddenQuota>& overridden) {
  Broker::Update update(&broker_);
  broker_.ledger_.tenants().Configure(tenants, defaults, overridden);
  if (broker_.observer_ != nullptr) broker_.observer_->QuotaChanged("");
}

absl::Status BrokerOperators::CheckQuota(absl::string_view tenant, const Quota& quota,
                                         const Quota& asked) const {
  TimedLock lock(&broker_.mutex_);
  if (absl::Status known = broker_.ledger_.tenants().CheckDevices(asked); !known.ok()) return known;
  return broker_.ledger_.tenants().CheckQuota(tenant, quota);
}

absl::StatusOr<TenantView> BrokerOperators::OverrideQuota(absl::string_view tenant,
                                                          const OverriddenQuota& quota) {
  {
    Broker::Update update(&broker_);
    broker_.ledger_.tenants().OverrideQuota(tenant, quota);
    if (broker_.observer_ != nullptr) broker_.observer_->QuotaChanged(tenant);
  }
  return broker_.views().GetTenant(tenant);  // includes requests that the change granted
}

absl::StatusOr<TenantView> BrokerOperators::UnsetQuota(absl::string_view tenant,
                                                       const Quota& quota) {
  Broker::Update update(&broker_);
  absl::StatusOr<TenantView> view = broker_.ledger_.tenants().UnsetQuota(tenant, quota);
  if (broker_.observer_ != nullptr) broker_.observer_->QuotaChanged(tenant);
  return view;
}

absl::StatusOr<BrokerOperators::Trimmed> BrokerOperators::Trim(absl::string_view tenant,
                                                               absl::string_view device,
                                                               uint64_t keep_bytes) {
  absl::StatusOr<std::vector<SegmentId>> doomed;
  Trimmed trimmed;
  {
    Broker::Update update(&broker_);
    doomed = broker_.ledger_.segments().Trim(tenant, device, keep_bytes);
    if (!doomed.ok()) return doomed.status();
    for (SegmentId id : *doomed) {
      trimmed.bytes += broker_.ledger_.look().Describe({.segment = id}).bytes;
      ++trimmed.segments;
    }
  }
  TimedLock lock(&broker_.mutex_);
  // Each release of the mutex asks again. No segment is looked up twice: ids are not used again.
  auto next = doomed->begin();
  auto gone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(broker_.mutex_) {
    while (next != doomed->end() && !broker_.ledger_.state().segments.contains(*next)) ++next;
    return next == doomed->end();
  };
  broker_.mutex_.Await(absl::Condition(&gone));
  return trimmed;
}

void BrokerOperators::SetDraining(bool draining) {
  Broker::Update update(&broker_);
  if (broker_.ledger_.state().draining == draining) return;
  broker_.ledger_.SetDraining(draining);
  if (broker_.observer_ != nullptr) broker_.observer_->DrainingChanged(draining);
}

void BrokerOperators::Close() {
  Broker::Update update(&broker_);
  const bool drained = broker_.ledger_.state().draining;
  broker_.ledger_.Close();
  if (!drained && broker_.observer_ != nullptr) broker_.observer_->DrainingChanged(true);
}

void BrokerOperators::SetHoldersShown(HoldersShown shown) {
  TimedLock lock(&broker_.mutex_);
  broker_.holders_shown_ = shown;
}

void BrokerOperators::SetUnbrokered(std::vector<UnbrokeredBytes> uses) {
  Broker::Update update(&broker_);
  broker_.ledger_.SetUnbrokered(std::move(uses));
}

namespace {

// Of a segment of kind driver: its memory is not the daemon's.
class NoMemory : public Allocation {};

}  // namespace

void BrokerOperators::SetOverhead(const DriverOverhead& overhead) {
  Broker::Update update(&broker_);
  for (SegmentId segment : broker_.ledger_.overheads().Set(overhead))
    broker_.memory_.emplace(segment, std::make_unique<NoMemory>());
}

// The driver's memory pools. The devices know them; the ledger counts their segments like all
// others.

absl::StatusOr<std::vector<BrokerOperators::PoolView>> BrokerOperators::ListPools(
    absl::string_view tenant, absl::string_view uuid) const {
  std::vector<PoolView> pools;
  bool known = uuid.empty();
  for (const auto& device : broker_.devices_) {
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

absl::StatusOr<Device*> BrokerOperators::FindPool(absl::string_view tenant,
                                                  absl::string_view uuid) const {
  absl::StatusOr<std::vector<PoolView>> pools = ListPools(tenant, uuid);
  if (!pools.ok()) return pools.status();
  if (tenant.empty() || pools->empty()) {
    return absl::NotFoundError(
        absl::StrCat("tenant \"", tenant, "\" has no memory pool", uuid.empty() ? "" : " on ", uuid,
                     "; a pool exists while the tenant has segments of kind mempool"));
  }
  for (const auto& device : broker_.devices_) {
    if (device->info().uuid == pools->front().device_uuid) return device.get();
  }
  return absl::InternalError("the device of a pool does not exist");
}

absl::StatusOr<BrokerOperators::PoolView> BrokerOperators::SetPool(absl::string_view tenant,
                                                                   absl::string_view uuid,
                                                                   const PoolChange& change) {
  absl::StatusOr<Device*> device = FindPool(tenant, uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<PoolStatus> status = (*device)->SetPool(tenant, change);
  if (!status.ok()) return status.status();
  return PoolView{(*device)->info().uuid, *std::move(status)};
}

absl::StatusOr<BrokerOperators::PoolView> BrokerOperators::TrimPool(absl::string_view tenant,
                                                                    absl::string_view uuid,
                                                                    uint64_t keep_bytes) {
  absl::StatusOr<Device*> device = FindPool(tenant, uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<PoolStatus> status = (*device)->TrimPool(tenant, keep_bytes);
  if (!status.ok()) return status.status();
  return PoolView{(*device)->info().uuid, *std::move(status)};
}

absl::StatusOr<uint64_t> BrokerOperators::Unpublish(absl::string_view full_name,
                                                    absl::Span<const AuditOperator> by) {
  Broker::Update update(&broker_);
  return broker_.ledger_.publications().Unpublish(full_name, by);
}

}  // namespace gpumemd
