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
    auto it = state_.segments.find(id);
    if (it == state_.segments.end() || it->second->lost) continue;
    Segment& segment = *it->second;
    segment.lost = true;
    changes_.Touch(id);
    lost.insert(id);
    RetainedPool& retained = segment.tenant->retained[segment.device];
    if (retained.Take(id, segment.kind, segment.charge.bytes())) Doom(id, segment);
    // Processes that have its pool open still keep the memory.
    Pool& pool = state_.PoolOf(segment);
    if (!pool.idle.Take(id, segment.kind, segment.charge.bytes())) continue;
    pool.lost.insert(id);
    auto waiting = trees_.find(TreeOf(*segment.tenant));
    if (waiting != trees_.end()) waiting->second.seen = 0;  // they would have reused it
  }
  if (lost.empty()) return 0;
  auditor_.Lost(lost);
  for (SegmentId id : lost) {
    // The sessions that lease it are among those that may map it.
    for (const auto& [session, times] : state_.segments.at(id)->exposures) {
      if (state_.sessions.at(session)->leased.contains(id)) bereaved_.insert(session);
    }
  }
  return lost.size();
}

std::vector<SessionId> Ledger::TakeBereaved() {
  std::vector<SessionId> sessions(bereaved_.begin(), bereaved_.end());
  bereaved_.clear();
  return sessions;
}

}  // namespace gpumemd
