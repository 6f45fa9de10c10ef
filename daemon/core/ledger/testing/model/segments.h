// SPDX-License-Identifier: Apache-2.0
// The model of segments: which processes hold them, in which state they are, and sums of them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

inline const std::string& OwnerOf(const LedgerModel& model, SegmentId segment) {
  return model.segments.at(segment).tenant;
}
inline bool IsRevocable(const LedgerModel& model, SegmentId segment) {
  return model.segments.at(segment).revocable;
}
inline void Created(LedgerModel& model, SegmentId segment) {
  model.segments.at(segment).made = true;
}

// Selects the segments of a tenant and those under it ("": all) to count, on a device or
// everywhere.
enum class Which {
  kAll,
  kStaying,   // not given up
  kHeld,      // neither retained nor given up
  kNotTaken,  // of kHeld: not being revoked
  kFirm,      // of kHeld: cannot be revoked
  kGivenUp,
};
struct Sum {
  uint64_t bytes = 0;
  uint64_t segments = 0;
};

// True if the session's process may map the segment.
bool MayMap(const LedgerModel& model, SessionId session, SegmentId segment);
bool MayMap(const LedgerModel& model, SegmentId segment);  // any process
SegmentState StateOf(const LedgerModel& model, SegmentId id);
// Returns the sessions whose processes have the segment's pool open; none for other kinds.
std::set<SessionId> Importers(const LedgerModel& model, SegmentId id);
// True if only open pools hold the segment, and its tenant may get it again.
bool IsIdleInPool(const LedgerModel& model, SegmentId id);

// True if a lease, an operation or a process that may map it holds the segment.
bool Held(const LedgerModel& model, SegmentId id);
std::map<SegmentId, Charge> Charges(const LedgerModel& model);
bool AnyReleasing(const LedgerModel& model);

// Returns the segments on one device whose kind lives in a context.
std::vector<SegmentId> ContextBound(const LedgerModel& model, size_t device);

// Returns the segments whose memory outlives the daemon.
std::set<SegmentId> Lasting(const LedgerModel& model);
Sum SumOf(const LedgerModel& model, absl::string_view tenant, size_t device, Which which,
          const std::set<SegmentId>& without = {});
// Returns the bytes that the tenant itself retains on the device.
uint64_t Retained(const LedgerModel& model, const std::string& tenant, size_t device);
void MarkLost(LedgerModel& model, absl::Span<const SegmentId> segments);
absl::Status TakeBereaved(LedgerModel& model, const std::vector<SessionId>& answer);

}  // namespace gpumemd::model
