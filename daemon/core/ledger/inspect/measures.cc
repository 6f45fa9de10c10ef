// What the ledger tells the metrics. Under the broker's mutex, and so in one pass over tenants,
// waiters and what is taken past the broker: never over segments, leases or sessions.
#include "absl/container/flat_hash_map.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

LedgerMeasures Ledger::Measure() const {
  LedgerMeasures measures;
  measures.draining = draining_;
  for (size_t i = 0; i < devices_.size(); ++i) {
    measures.devices.push_back(
        {.charged = device_accounts_[i].charged(), .reclaimed = reclaimed_[i]});
  }
  absl::flat_hash_map<const Tenant*, size_t> places;
  measures.tenants.reserve(tenants_.size());
  for (const auto& [name, tenant] : tenants_) {
    places.emplace(tenant.get(), measures.tenants.size());
    LedgerMeasures::Tenant& measured = measures.tenants.emplace_back(
        LedgerMeasures::Tenant{.name = name,
                               .parent = tenant->parent == nullptr ? "" : tenant->parent->name,
                               .devices = std::vector<LedgerMeasures::OnDevice>(devices_.size()),
                               .sessions = tenant->tree_sessions,
                               .segments = TotalSegments(*tenant),
                               .publications = tenant->tree_publications,
                               .denials = tenant->denials});
    for (size_t i = 0; i < devices_.size(); ++i) {
      const Account& account = tenant->accounts[i];
      LedgerMeasures::OnDevice& on = measured.devices[i];
      for (size_t state = 0; state < kSegmentStates; ++state) {
        on.charged[state] = account.bytes(static_cast<SegmentState>(state));
      }
      on.limit = LimitOn(*tenant, i);
      on.guarantee = account.guarantee();
      on.revocable = account.revocable();
      on.ever_charged = account.peak() > 0;
    }
  }
  for (const auto& [id, waiter] : waiters_) {
    if (!waiter.asked_to) continue;
    const Request& request = waiter.request;
    for (const Tenant* each = request.tenant; each != nullptr; each = each->parent) {
      LedgerMeasures::OnDevice& on = measures.tenants[places.at(each)].devices[request.device];
      ++on.waiting;
      on.waited_for += request.bytes * request.count;
    }
  }
  for (const UnbrokeredBytes& use : unbrokered_) {
    auto session = sessions_.find(use.session);
    const absl::StatusOr<size_t> device = FindDevice(use.device_uuid);
    if (session == sessions_.end() || !device.ok()) continue;
    measures.tenants[places.at(session->second->tenant)].devices[*device].unbrokered += use.bytes;
  }
  return measures;
}

}  // namespace gpumemd
