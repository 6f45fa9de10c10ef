// SPDX-License-Identifier: Apache-2.0
// How a request stands to its limits, and the claims of those that wait before it: values alone.
// Room (room.h) computes them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "daemon/core/denial.h"
#include "daemon/core/ids.h"

namespace gpumemd {

namespace records {
struct Tenant;
}  // namespace records

// Returns the sum, saturated: sums over many waiters may be larger than any memory.
inline uint64_t Plus(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

// One limit and how a request stands to it. All in bytes, or all in counts.
struct Standing {
  Denial::Cause cause{};
  const records::Tenant* whose = nullptr;  // null: the device's, or the daemon's
  size_t device = 0;                       // kAllDevices: a limit over all
  uint64_t asked = 0;
  uint64_t used = 0;  // without segments that the request reuses
  uint64_t recoverable = 0;
  uint64_t revocable = 0;
  uint64_t revoking = 0;
  uint64_t limit = 0;
  uint64_t need = 0;       // firmly held or guaranteed
  uint64_t more_need = 0;  // by how much the request raises `need`
  uint64_t least = 0;      // need of the request and all guarantees, if nothing else is held
  bool hopeless() const { return asked > limit || least > limit; }
};
inline constexpr size_t kAllDevices = SIZE_MAX;
// The part of a limit that waiters with an earlier place take.
struct Claim {
  uint64_t asked = 0;
  uint64_t need = 0;
  bool operator==(const Claim&) const = default;
};
using ClaimKey = std::tuple<Denial::Cause, const records::Tenant*, size_t>;
using Claims = std::map<ClaimKey, Claim>;
// Returns what the claims take of that limit.
inline Claim ClaimOn(const Claims& claims, const Standing& standing) {
  auto it = claims.find({standing.cause, standing.whose, standing.device});
  return it == claims.end() ? Claim{} : it->second;
}
// Adds a request's claims on the first `count` of its standings.
inline void AddClaims(const std::vector<Standing>& standings, size_t count, Claims& claims) {
  for (size_t i = 0; i < count; ++i) {
    const Standing& standing = standings[i];
    Claim& claim = claims[{standing.cause, standing.whose, standing.device}];
    claim.asked = Plus(claim.asked, standing.asked);
    claim.need = Plus(claim.need, standing.more_need);
  }
}

enum class Fit {
  kNow,
  // Once retained, releasing and already revoked memory is back.
  kSoon,
  kRevoked,  // the same, if more is taken back
  kBlocked,  // needs a holder to release, or a higher limit
};

// How a request stands to all limits.
struct Decision {
  Fit fit = Fit::kNow;
  std::vector<Standing> standings;
  size_t claims = 0;      // how many of the standings it would claim as a waiter
  bool hopeless = false;  // no holder can make room for it
  // For kSoon: true if it is not yet known whether ending sessions make room for it.
  bool awaits_end = false;
  std::vector<SegmentId> candidates;  // for kRevoked: to be taken back
  // For kRevoked and kBlocked: true if sessions that suspend could make room for it.
  bool awaits_suspension = false;
  // True if a limit of the request's tenant, or of an ancestor, blocks it: no change on the
  // device unblocks it.
  bool kept_by_tenants = false;
  // True if no revocation can unblock it: only less firm use or fewer claims can.
  bool blocked_firmly = false;
  // For kSoon, kRevoked and kBlocked: the standing that is most in the way, and the claims of
  // others there. A denial's text is made of it only if a denial is returned (Room::Explain).
  std::optional<size_t> worst;
  Claim worst_claim;
};

}  // namespace gpumemd
