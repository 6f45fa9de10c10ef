// Segments whose memory the device can no longer share.
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

absl::Status Ledger::Lost(SegmentId segment) {
  return absl::FailedPreconditionError(
      absl::StrCat("segment ", ToInt(segment),
                   " is lost: its CUDA context is gone, or nobody kept it when the daemon died, "
                   "and nobody can open it any "
                   "more; release it and acquire another"));
}

size_t Ledger::MarkLost(absl::Span<const SegmentId> segments) {
  absl::flat_hash_set<SegmentId> lost;
  for (SegmentId id : segments) {
    auto it = segments_.find(id);
    if (it == segments_.end() || it->second->lost) continue;
    Segment& segment = *it->second;
    segment.lost = true;
    Touch(id);
    lost.insert(id);
    RetainedPool& retained = segment.tenant->retained[segment.device];
    if (retained.Take(id, segment.kind, segment.charge.bytes())) Doom(id, segment);
    // Those who have its pool open keep the memory all the same.
    Pool& pool = PoolOf(segment);
    if (!pool.idle.Take(id, segment.kind, segment.charge.bytes())) continue;
    pool.lost.insert(id);
    auto waiting = trees_.find(TreeOf(*segment.tenant));
    if (waiting != trees_.end()) waiting->second.seen = 0;  // they would have reused it
  }
  if (lost.empty()) return 0;
  AuditLost(lost);
  for (SegmentId id : lost) {
    // Those who lease it are among those who may map it.
    for (const auto& [session, times] : segments_.at(id)->exposures) {
      if (sessions_.at(session)->leased.contains(id)) bereaved_.insert(session);
    }
  }
  return lost.size();
}

std::vector<SessionId> Ledger::TakeBereaved() {
  std::vector<SessionId> sessions(bereaved_.begin(), bereaved_.end());
  bereaved_.clear();
  return sessions;
}

std::vector<LeaseId> Ledger::LostLeases(SessionId session) const {
  std::vector<LeaseId> lost;
  LostLeases(session, LeaseId{}, SIZE_MAX, lost);
  return lost;
}

std::optional<LeaseId> Ledger::LostLeases(SessionId id, LeaseId next, size_t count,
                                          std::vector<LeaseId>& lost) const {
  auto session = sessions_.find(id);
  if (session == sessions_.end()) return std::nullopt;
  auto it = session->second->leases.lower_bound(next);
  for (; it != session->second->leases.end() && count > 0; ++it, --count) {
    if (segments_.at(leases_.at(*it).segment)->lost) lost.push_back(*it);
  }
  return it == session->second->leases.end() ? std::nullopt : std::optional(*it);
}

}  // namespace gpumemd
