// SPDX-License-Identifier: Apache-2.0
// Selects the segments to take back for a request.
//
// Memory is taken back for a request that is covered by a guarantee, from every tenant; and for one
// of a tenant with a higher priority. The holders with the lowest priority lose theirs first. Among
// them the newest segments go first, since least work is lost with them.
#include <algorithm>
#include <tuple>
#include <utility>

#include "daemon/core/admission/room.h"

namespace gpumemd {

uint64_t Room::Deficit(const Request& request) {
  if (request.revocable) return 0;
  const uint64_t unused = request.tenant->accounts[request.device].unused_guarantees();
  return request.bytes * request.count <= unused ? unused : 0;
}

bool Room::MayRevokeFrom(const Request& request, const Tenant& tenant) {
  return Deficit(request) > 0 || request.tenant->quota.priority > tenant.quota.priority;
}

std::vector<SegmentId> Room::RevocationCandidates(const Request& request,
                                                  const std::vector<Standing>& standings,
                                                  const Claims& claims) const {
  struct Shortage {
    const Tenant* whose;
    size_t device;
    uint64_t bytes;
  };
  // A limit over all devices does not count pinned memory.
  const auto counts = [this](const Shortage& shortage, const Segment& segment) {
    return (shortage.device == kAllDevices ? !IsHostMemory(state_.devices[segment.device])
                                           : shortage.device == segment.device) &&
           (shortage.whose == nullptr || state_.IsUnder(*segment.tenant, *shortage.whose));
  };
  std::vector<Shortage> shortages;
  for (const Standing& standing : standings) {
    const Claim claim = ClaimOn(claims, standing);
    if (FitOf(standing, claim, /*may_revoke=*/true) != Fit::kRevoked) continue;
    const uint64_t wanted =
        standing.used - standing.recoverable - standing.revoking + standing.asked + claim.asked;
    shortages.push_back({standing.whose, standing.device, wanted - standing.limit});
  }
  // Before all segments are looked at, checks whether any tenant has segments to take.
  const bool any =
      std::any_of(state_.tenants.begin(), state_.tenants.end(), [&](const auto& entry) {
        return MayRevokeFrom(request, *entry.second) &&
               std::any_of(entry.second->accounts.begin(), entry.second->accounts.end(),
                           [](const Account& on) { return on.revocable() > on.revoking(); });
      });
  if (!any) return {};
  std::vector<std::pair<SegmentId, const Segment*>> candidates;
  for (const auto& [id, segment] : state_.segments) {
    const SegmentState state = segment->charge.state();
    const bool held = state == SegmentState::kLeased || state == SegmentState::kLingering;
    if (held && segment->charge.revocable() && !segment->charge.revoking() && !segment->stuck &&
        MayRevokeFrom(request, *segment->tenant)) {
      candidates.emplace_back(id, segment.get());
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return std::make_tuple(a.second->tenant->quota.priority, b.first) <
           std::make_tuple(b.second->tenant->quota.priority, a.first);
  });
  std::vector<SegmentId> chosen;
  for (const auto& [id, segment] : candidates) {
    bool helps = false;
    for (Shortage& shortage : shortages) {
      if (shortage.bytes == 0 || !counts(shortage, *segment)) continue;
      shortage.bytes -= std::min(shortage.bytes, segment->charge.bytes());
      helps = true;
    }
    if (helps) chosen.push_back(id);
  }
  const bool enough = std::all_of(shortages.begin(), shortages.end(),
                                  [](const Shortage& shortage) { return shortage.bytes == 0; });
  return enough ? chosen : std::vector<SegmentId>();
}

}  // namespace gpumemd
