// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/inspect/invariants.h"

namespace gpumemd {

absl::Status CheckSuspended(const LedgerState& state, SegmentId id,
                            const records::Segment& segment) {
  const auto wrong = [id](auto what) {
    return absl::InternalError(absl::StrCat("segment ", ToInt(id), " ", what));
  };
  if (segment.suspended.size() > segment.leases) {
    return wrong("keeps a suspended lease that has ended");
  }
  if (segment.copying && segment.pins == 0) return wrong("is being copied and not held for it");
  const SegmentState held_as = segment.charge.state();
  const bool unheld = held_as == SegmentState::kRetained || held_as == SegmentState::kReleasing;
  const bool in_tier = segment.kind == Kind::kTier;
  // An operation brings its holders back. Before it had holders, the place was reserved for them.
  const bool comes_back = in_tier && segment.pins > 0 && segment.leases + segment.publications > 0;
  if (comes_back && !segment.copying) return wrong("comes back, and could be moved meanwhile");
  if (in_tier &&
      (!segment.exposures.empty() || segment.publications > 1 ||
       segment.suspended.size() != segment.leases || held_as == SegmentState::kRetained ||
       held_as == SegmentState::kLingering || IsHostMemory(state.devices[segment.home]))) {
    return wrong("is in the tier and in use");
  }
  if (!in_tier && segment.home != segment.device &&
      (!segment.demoted() || unheld || IsHostMemory(state.devices[segment.home]))) {
    return wrong("has contents of another device");
  }
  if (segment.published && !in_tier && !segment.copying) {
    return wrong("names its publication on a device");
  }
  const bool dropped = in_tier && segment.scratch;
  const bool can_drop = dropped || (TraitsOf(segment.kind).suspendable && !unheld);
  if (segment.scratch && (segment.publications > 0 || !can_drop)) {
    return wrong("is scratch, and published, unheld or of another kind");
  }
  if (dropped != (segment.dropped_bytes > 0) || dropped != (segment.charge.bytes() == 0) ||
      (dropped && !segment.extents.empty())) {
    return wrong("is scratch, and wrongly charged or in the tier");
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
