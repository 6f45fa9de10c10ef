// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/shortfall.h"

#include <algorithm>

#include "daemon/core/admission/room.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {
namespace {

bool Fits(const Standing& standing, const Claim& claim, bool may_revoke = false) {
  return FitOf(standing, claim, may_revoke) < (may_revoke ? Fit::kBlocked : Fit::kRevoked);
}

bool IsInBytes(const Standing& standing) {
  return standing.cause == Denial::Cause::kDeviceLimit ||
         standing.cause == Denial::Cause::kTotalLimit || standing.cause == Denial::Cause::kCapacity;
}

}  // namespace

Shortfall::Shortfall(const records::Request& request, const Decision& decision,
                     const Claims& claims)
    : tenant_(*request.tenant), device_(request.device) {
  for (const Standing& standing : decision.standings) {
    const Claim claim = ClaimOn(claims, standing);
    if (!Fits(standing, claim)) lacks_.push_back({standing, claim});
  }
}

uint64_t Shortfall::AboveGuarantees(const records::Tenant& tenant) const {
  uint64_t least = UINT64_MAX;
  for (const records::Tenant* each = &tenant; each != nullptr; each = each->parent) {
    if (LedgerState::IsUnder(tenant_, *each)) break;  // room there is the asking tenant's, too
    const Account& account = each->accounts[device_];
    const auto freed = freed_.find(&account);
    const uint64_t kept = account.guarantee() + (freed == freed_.end() ? 0 : freed->second);
    least = std::min(least, account.need() - std::min(account.need(), kept));
  }
  return least;
}

bool Shortfall::Free(const records::Tenant& tenant, uint64_t bytes) {
  bytes = std::min(bytes, AboveGuarantees(tenant));
  if (bytes == 0) return false;
  bool helps = false;
  for (Lack& lack : lacks_) {
    Standing& standing = lack.standing;
    if (!IsInBytes(standing) || Fits(standing, lack.claim)) continue;
    // Each limit in bytes that a request has (Room::StandingsOf) counts memory of its device.
    if (standing.whose != nullptr && !LedgerState::IsUnder(tenant, *standing.whose)) continue;
    // Only memory that is firmly held can be suspended.
    const uint64_t others = standing.recoverable + standing.revocable;
    standing.used -= std::min(bytes, standing.used - std::min(standing.used, others));
    standing.need -= std::min(bytes, standing.need);
    helps = true;
  }
  if (!helps) return false;
  for (const records::Tenant* each = &tenant; each != nullptr; each = each->parent) {
    freed_[&each->accounts[device_]] += bytes;
  }
  return true;
}

bool Shortfall::Covered() const {
  return std::all_of(lacks_.begin(), lacks_.end(),
                     [](const Lack& lack) { return Fits(lack.standing, lack.claim); });
}

bool Shortfall::CoveredBy(uint64_t revocable) const {
  return std::all_of(lacks_.begin(), lacks_.end(), [&](const Lack& lack) {
    Standing standing = lack.standing;
    standing.revocable = std::min(standing.revocable, Plus(revocable, standing.revoking));
    return Fits(standing, lack.claim, /*may_revoke=*/true);
  });
}

}  // namespace gpumemd
