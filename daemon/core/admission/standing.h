// How a request stands to its limits, once the ledger has added up what is used: arithmetic alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/core/denial.h"
#include "daemon/core/ids.h"

namespace gpumemd {

namespace records {
struct Tenant;
}  // namespace records

// Sums of what many wait for may be larger than any memory.
inline uint64_t Plus(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

// One limit and how a request stands to it. All in bytes, or all in counts.
struct Standing {
  Denial::Cause cause{};
  const records::Tenant* whose = nullptr;  // null: the device's, or the daemon's
  size_t device = 0;                       // kAllDevices: a limit over all
  uint64_t asked = 0;
  uint64_t used = 0;  // but for what of it is reused now
  uint64_t recoverable = 0;
  uint64_t revocable = 0;
  uint64_t revoking = 0;
  uint64_t limit = 0;
  uint64_t need = 0;       // what is firmly held or guaranteed …
  uint64_t more_need = 0;  // … and by how much that grows
  uint64_t least = 0;      // what the request and all guarantees need, if nothing else is held
  bool hopeless() const { return asked > limit || least > limit; }
};
inline constexpr size_t kAllDevices = SIZE_MAX;
// What of a limit is taken by waiters that go before.
struct Claim {
  uint64_t asked = 0;
  uint64_t need = 0;
  bool operator==(const Claim&) const = default;
};
using ClaimKey = std::tuple<Denial::Cause, const records::Tenant*, size_t>;
using Claims = std::map<ClaimKey, Claim>;
Claim ClaimOn(const Claims& claims, const Standing& standing);
// What a request asks for on the first `count` of its standings.
std::vector<std::pair<ClaimKey, Claim>> ClaimsOf(const std::vector<Standing>& standings,
                                                 size_t count);
// The same, added to what others claim.
void AddClaims(const std::vector<Standing>& standings, size_t count, Claims& claims);

enum class Fit {
  kNow,
  kSoon,     // once what is retained, releasing or being taken back is back
  kRevoked,  // the same, if more is taken back
  kBlocked,  // not before somebody gives up what he holds, or a limit is raised
};
// `may_revoke`: whether others may lose what is revocable for it.
Fit FitOf(const Standing& standing, const Claim& claim, bool may_revoke);

// How a request stands in all.
struct Verdict {
  Fit fit = Fit::kNow;
  std::vector<Standing> standings;
  size_t claims = 0;      // of the standings, that it would claim as a waiter
  bool hopeless = false;  // no holder can make room for it
  // Of kSoon: sessions that are ending may make room for it, or may not.
  bool awaits_end = false;
  std::vector<SegmentId> victims;  // to be taken back; of kRevoked
  // True if a limit of the request's tenant, or of an ancestor, blocks it: no change on the
  // device unblocks it.
  bool kept_by_tenants = false;
  // Blocked whatever is taken back: only less firm use or fewer claims can change that.
  bool blocked_firmly = false;
  // Of kSoon, kRevoked and kBlocked: which of the standings is in the way most, and what others
  // claim there. The text of a denial is made of it where one is told (Ledger::Explain).
  std::optional<size_t> worst;
  Claim worst_claim;
};

}  // namespace gpumemd
