// SPDX-License-Identifier: Apache-2.0
// The ledger's part of the metrics. Runs under the broker's mutex, and so in one pass over tenants,
// waiters and unbrokered uses: never over segments, leases or sessions.
#include "absl/container/flat_hash_map.h"
#include "daemon/core/ledger/inspect/inspector.h"

namespace gpumemd {

LedgerMeasures Inspector::Measure() const {
  LedgerMeasures measures;
  measures.draining = state_.draining;
  for (size_t i = 0; i < state_.devices.size(); ++i) {
    measures.devices.push_back({.charged = state_.device_accounts[i].charged(),
                                .reclaimed = state_.reclaimed[i],
                                .suspended = state_.suspended[i],
                                .resumed = state_.resumed[i]});
  }
  absl::flat_hash_map<const Tenant*, size_t> places;
  measures.tenants.reserve(state_.tenants.size());
  for (const auto& [name, tenant] : state_.tenants) {
    places.emplace(tenant.get(), measures.tenants.size());
    LedgerMeasures::Tenant& measured = measures.tenants.emplace_back(LedgerMeasures::Tenant{
        .name = name,
        .parent = tenant->parent == nullptr ? "" : tenant->parent->name,
        .devices = std::vector<LedgerMeasures::OnDevice>(state_.devices.size()),
        .sessions = tenant->tree_sessions,
        .segments = state_.TotalSegments(*tenant),
        .publications = tenant->tree_publications,
        .demoted = tenant->demoted_bytes,
        .denials = tenant->denials});
    for (size_t i = 0; i < state_.devices.size(); ++i) {
      const Account& account = tenant->accounts[i];
      LedgerMeasures::OnDevice& on = measured.devices[i];
      for (size_t state = 0; state < kSegmentStates; ++state) {
        on.charged[state] = account.bytes(static_cast<SegmentState>(state));
      }
      on.limit = state_.LimitOn(*tenant, i);
      on.guarantee = account.guarantee();
      on.revocable = account.revocable();
      on.ever_charged = account.peak() > 0;
    }
  }
  for (const auto& [id, waiter] : state_.waiters) {
    if (!waiter.asked_to) continue;
    const Request& request = waiter.request;
    for (const Tenant* each = request.tenant; each != nullptr; each = each->parent) {
      LedgerMeasures::OnDevice& on = measures.tenants[places.at(each)].devices[request.device];
      ++on.waiting;
      on.waited_for += request.bytes * request.count;
    }
  }
  for (const UnbrokeredBytes& use : state_.unbrokered) {
    auto session = state_.sessions.find(use.session);
    const absl::StatusOr<size_t> device = state_.FindDevice(use.device_uuid);
    if (session == state_.sessions.end() || !device.ok()) continue;
    measures.tenants[places.at(session->second->tenant)].devices[*device].unbrokered += use.bytes;
  }
  return measures;
}

}  // namespace gpumemd
