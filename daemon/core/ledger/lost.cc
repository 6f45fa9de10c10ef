// SPDX-License-Identifier: Apache-2.0
// Segments whose memory the device can no longer share.
#include "absl/container/flat_hash_set.h"
#include "daemon/core/ledger/segments.h"

namespace gpumemd {

size_t Segments::MarkLost(absl::Span<const SegmentId> segments) {
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
    segment.charge.MarkChanged();  // waiters would have reused it
  }
  if (lost.empty()) return 0;
  auditor_.Lost(lost);
  for (SegmentId id : lost) {
    // The sessions that lease it are among those that may map it.
    for (const auto& [session, times] : state_.segments.at(id)->exposures) {
      if (state_.sessions.at(session)->leased.contains(id)) effects_.orphaned.insert(session);
    }
  }
  return lost.size();
}

}  // namespace gpumemd
