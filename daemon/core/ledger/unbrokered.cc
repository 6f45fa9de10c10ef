// The ledger's knowledge of memory taken past the broker: it shows that memory, and denies the
// tenant new memory if it is told to.
#include <algorithm>
#include <utility>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

void Ledger::SetUnbrokered(std::vector<UnbrokeredBytes> uses) {
  state_.unbrokered = std::move(uses);
  const bool denies = std::any_of(state_.unbrokered.begin(), state_.unbrokered.end(),
                                  [](const UnbrokeredBytes& use) { return use.denies; });
  if (state_.waiters.empty()) return;
  queue_moves_ = true;
  queue_stale_ |= denies;
}

// A use on any device counts: the tenant has memory that was never granted.
absl::Status Ledger::CheckUnbrokered(Tenant& tenant, uint64_t bytes) const {
  for (const UnbrokeredBytes& use : state_.unbrokered) {
    if (!use.denies) continue;
    auto session = state_.sessions.find(use.session);
    if (session == state_.sessions.end() || session->second->tenant != &tenant) continue;
    Denial denial;
    denial.cause = Denial::Cause::kUnbrokered;
    denial.tenant = tenant.name;
    denial.device_uuid = use.device_uuid;
    denial.asked = bytes;
    denial.used = state_.UnbrokeredOf(tenant, use.device_uuid);
    return Deny(tenant, denial);
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
