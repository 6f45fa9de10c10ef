// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/standing.h"

namespace gpumemd {

Claim ClaimOn(const Claims& claims, const Standing& standing) {
  auto it = claims.find({standing.cause, standing.whose, standing.device});
  return it == claims.end() ? Claim{} : it->second;
}

std::vector<std::pair<ClaimKey, Claim>> ClaimsOf(const std::vector<Standing>& standings,
                                                 size_t count) {
  std::vector<std::pair<ClaimKey, Claim>> claims;
  claims.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const Standing& standing = standings[i];
    claims.push_back({{standing.cause, standing.whose, standing.device},
                      {.asked = standing.asked, .need = standing.more_need}});
  }
  return claims;
}

void AddClaims(const std::vector<Standing>& standings, size_t count, Claims& claims) {
  for (size_t i = 0; i < count; ++i) {
    const Standing& standing = standings[i];
    Claim& claim = claims[{standing.cause, standing.whose, standing.device}];
    claim.asked = Plus(claim.asked, standing.asked);
    claim.need = Plus(claim.need, standing.more_need);
  }
}

Fit FitOf(const Standing& standing, const Claim& claim, bool may_revoke) {
  const auto fits = [&](uint64_t used) {
    return Plus(Plus(used, standing.asked), claim.asked) <= standing.limit;
  };
  const bool keeps_guarantees =
      standing.more_need == 0 ||
      Plus(Plus(standing.need, standing.more_need), claim.need) <= standing.limit;
  const uint64_t held = standing.used - standing.recoverable;
  if (!keeps_guarantees) return Fit::kBlocked;
  if (fits(standing.used)) return Fit::kNow;
  if (fits(held - standing.revoking)) return Fit::kSoon;
  if (may_revoke && fits(held - standing.revocable)) return Fit::kRevoked;
  return Fit::kBlocked;
}

}  // namespace gpumemd
