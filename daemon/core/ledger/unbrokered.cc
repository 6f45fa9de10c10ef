// What the ledger knows of memory that was taken past the broker, and what it does about it:
// it shows it, and where it is told to, it denies the tenant what is new.
#include <algorithm>
#include <utility>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

void Ledger::SetUnbrokered(std::vector<UnbrokeredBytes> uses) {
  unbrokered_ = std::move(uses);
  const bool denies = std::any_of(unbrokered_.begin(), unbrokered_.end(),
                                  [](const UnbrokeredBytes& use) { return use.denies; });
  if (waiters_.empty()) return;
  queue_moves_ = true;
  queue_stale_ |= denies;
}

// On whatever device: what the tenant has too much of is memory that nobody has granted it.
absl::Status Ledger::CheckUnbrokered(Tenant& tenant, uint64_t bytes) const {
  for (const UnbrokeredBytes& use : unbrokered_) {
    if (!use.denies) continue;
    auto session = sessions_.find(use.session);
    if (session == sessions_.end() || session->second->tenant != &tenant) continue;
    Denial denial;
    denial.cause = Denial::Cause::kUnbrokered;
    denial.tenant = tenant.name;
    denial.device_uuid = use.device_uuid;
    denial.asked = bytes;
    denial.used = UnbrokeredOf(tenant, use.device_uuid);
    return Deny(tenant, denial);
  }
  return absl::OkStatus();
}

uint64_t Ledger::UnbrokeredOf(const Tenant& tenant, absl::string_view device_uuid) const {
  uint64_t bytes = 0;
  for (const UnbrokeredBytes& use : unbrokered_) {
    if (use.device_uuid != device_uuid) continue;
    auto session = sessions_.find(use.session);
    if (session != sessions_.end() && session->second->tenant == &tenant) bytes += use.bytes;
  }
  return bytes;
}

uint64_t Ledger::UnbrokeredOf(SessionId session) const {
  uint64_t bytes = 0;
  for (const UnbrokeredBytes& use : unbrokered_) {
    if (use.session == session) bytes += use.bytes;
  }
  return bytes;
}

}  // namespace gpumemd
