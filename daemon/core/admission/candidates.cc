// SPDX-License-Identifier: Apache-2.0
// Selects the segments to take back for a request.
//
// Memory is taken back for a request that is covered by a guarantee, from every tenant; and for one
// of a tenant with a higher priority. The holders with the lowest priority lose theirs first. Among
// them the newest segments go first, since least work is lost with them (ChargeRank).
#include <algorithm>
#include <limits>
#include <optional>

#include "daemon/core/admission/room.h"

namespace gpumemd {

uint64_t Room::Deficit(const Request& request) {
  if (request.revocable) return 0;
  const uint64_t unused = request.tenant->accounts[request.device].unused_guarantees();
  return request.bytes * request.count <= unused ? unused : 0;
}

int64_t Room::RevokesBelow(const Request& request) {
  return Deficit(request) > 0 ? std::numeric_limits<int64_t>::max()
                              : int64_t{request.tenant->quota.priority};
}

uint64_t Room::Revocable(const Request& request) const {
  return state_.device_accounts[request.device].to_revoke().BytesBelow(RevokesBelow(request));
}

std::vector<SegmentId> Room::RevocationCandidates(const Request& request,
                                                  const std::vector<Standing>& standings,
                                                  const Claims& claims) const {
  const int64_t below = RevokesBelow(request);
  std::vector<uint64_t> shortages;  // of each limit
  // The next charge to take at a limit, on one device.
  struct Cursor {
    RevocableCharges::Ranked::const_iterator at, end;
    size_t shortage = 0;
  };
  std::vector<Cursor> cursors;
  for (const Standing& standing : standings) {
    const Claim claim = ClaimOn(claims, standing);
    if (FitOf(standing, claim, /*may_revoke=*/true) != Fit::kRevoked) continue;
    const uint64_t wanted =
        standing.used - standing.recoverable - standing.revoking + standing.asked + claim.asked;
    uint64_t there = 0;
    for (size_t d = 0; d < state_.devices.size(); ++d) {
      // A limit over all devices does not count pinned memory.
      if (standing.device == kAllDevices ? IsHostMemory(state_.devices[d]) : standing.device != d) {
        continue;
      }
      const Account& account =
          standing.whose == nullptr ? state_.device_accounts[d] : standing.whose->accounts[d];
      there += account.to_revoke().BytesBelow(below);
      const RevocableCharges::Ranked& ranked = account.to_revoke().ranked();
      cursors.push_back({ranked.begin(), ranked.end(), shortages.size()});
    }
    shortages.push_back(wanted - standing.limit);
    if (there < shortages.back()) return {};
  }
  std::vector<SegmentId> chosen;
  while (true) {
    // Each charge at a limit with a shortage helps there. A charge may be at several limits.
    std::optional<ChargeRank> next;
    for (const Cursor& cursor : cursors) {
      ++looks_;
      if (shortages[cursor.shortage] == 0 || cursor.at == cursor.end) continue;
      if (!next || cursor.at->first < *next) next = cursor.at->first;
    }
    if (!next) return chosen;
    chosen.push_back(next->segment);
    for (Cursor& cursor : cursors) {
      if (cursor.at == cursor.end || cursor.at->first != *next) continue;
      uint64_t& shortage = shortages[cursor.shortage];
      shortage -= std::min(shortage, cursor.at->second);
      ++cursor.at;
    }
  }
}

}  // namespace gpumemd
