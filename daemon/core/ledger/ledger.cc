// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/ledger.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/inspect/invariants.h"

namespace gpumemd {

absl::StatusOr<SessionId> Ledger::OpenSession(absl::string_view tenant, SessionDetails details,
                                              const Secret& token) {
  if (state().draining) return Draining();
  if (const std::optional<SessionId> lost = sessions_.TakeBegunBefore(details)) {
    endings_.SocketClosed(*lost);
  }
  return sessions_.Open(tenant, std::move(details), token);
}

void Ledger::SetDraining(bool draining) {
  LedgerState& state = base_.state;
  state.draining = draining;
  if (!draining) return;
  state.queue_stale = true;
  for (auto& [name, tenant] : state.tenants) segments_.DoomAllRetained(*tenant);
  attach_waiters_.EndAllWaits();
}

void Ledger::Close() {
  base_.state.closing = true;
  SetDraining(true);
}

void Ledger::SetUnbrokered(std::vector<UnbrokeredBytes> uses) {
  LedgerState& state = base_.state;
  state.unbrokered = std::move(uses);
  // Waiters are checked anew: some may be denied now.
  state.queue_stale |= std::any_of(state.unbrokered.begin(), state.unbrokered.end(),
                                   [](const UnbrokeredBytes& use) { return use.denies; });
}

Restored Ledger::Restore(const JournalImage& image, const Survivors& survivors) {
  return Restorer(&base_, &segments_, &tenants_, &made_tenants_, &sessions_, &claims_,
                  &publications_, &endings_)
      .Restore(image, survivors);
}

absl::Status Ledger::CheckInvariants() const {
  absl::Status consistent = gpumemd::CheckInvariants(state());
  if (consistent.ok()) consistent = admission_.CheckInvariants();
  if (consistent.ok()) consistent = CheckPublications(state());
  if (consistent.ok()) consistent = CheckMadeTenants(state());
  if (consistent.ok()) consistent = swaps_.CheckInvariants();
  return consistent;
}

}  // namespace gpumemd
