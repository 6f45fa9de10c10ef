// SPDX-License-Identifier: Apache-2.0
// Changes to the ledger's state since the journal's last batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/core/ids.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/journal/records.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

class ChangeLog {
 public:
  using RequestKey = std::pair<SessionId, uint64_t>;

  // Starts the log. Until then Touch() does nothing.
  void Keep(LedgerState* state) { kept_ = state->uses_changed.kept = true; }
  // Records the numbers given out so far as already in the journal's image.
  void NoteNumbers(const LedgerState& state);

  // Mark an object as made, changed or ended.
  void Touch(SessionId id) { Add(sessions_, id); }
  void Touch(SegmentId id) { Add(segments_, id); }
  void Touch(LeaseId id) { Add(leases_, id); }
  void Touch(IpcEventId id) { Add(events_, id); }
  void Touch(PublicationId id) { Add(publications_, id); }
  void Touch(const RequestKey& key) { Add(answers_, key); }
  // Marks a publication that is new or has ended. `segments`: how many it has.
  void Touch(PublicationId id, size_t segments) {
    Touch(id);
    Add(lists_, std::pair(id, segments));
  }
  // Marks a publication with a content id that is new or has ended.
  void TouchContent(PublicationId id) { Add(contents_, id); }
  void TouchClaim(SessionId session, uint64_t request_id) {
    Add(claims_, RequestKey(session, request_id));
  }
  // Marks a made tenant that is new, has changed or is made no more. `devices`: the most for which
  // its quota has, or had, values.
  void TouchMade(MadeTenantId id, size_t devices) { Add(made_, std::pair(id, devices)); }
  // Marks the place in a publication's list that another segment has taken.
  void TouchItem(PublicationId id, uint32_t index) { Add(items_, std::pair(id, index)); }
  // Marks the extents of a segment in the tier that is new or has ended.
  void TouchExtents(SegmentId id, size_t extents) { Add(extents_, std::pair(id, extents)); }
  void Touch(SessionId session, SegmentId segment) { Add(exposures_, std::pair(session, segment)); }
  void Touch(SessionId session, size_t device) { Add(imports_, std::pair(session, device)); }

  // Returns and forgets one batch of the journal. A batch takes the state from one consistent state
  // to the next.
  std::vector<journal::Change> Take(LedgerState& state);

 private:
  template <typename Key>
  void Add(std::vector<Key>& touched, Key key) {
    if (kept_) touched.push_back(key);
  }

  bool kept_ = false;
  std::vector<SessionId> sessions_;
  std::vector<SegmentId> segments_;
  std::vector<LeaseId> leases_;
  std::vector<std::pair<SessionId, SegmentId>> exposures_;
  std::vector<std::pair<SessionId, size_t>> imports_;
  std::vector<IpcEventId> events_;
  std::vector<RequestKey> answers_;
  std::vector<PublicationId> publications_;
  std::vector<PublicationId> contents_;
  std::vector<RequestKey> claims_;
  std::vector<std::pair<MadeTenantId, size_t>> made_;
  std::vector<std::pair<PublicationId, size_t>> lists_;
  std::vector<std::pair<PublicationId, uint32_t>> items_;
  std::vector<std::pair<SegmentId, size_t>> extents_;
  journal::Counters numbers_;  // as of the last Take()
};

// Returns the whole state: the sum of all that Take() would ever have returned. Leaves out waiters
// and operations: a successor knows which process may map which segments, and which session has
// which leases.
JournalImage ImageOf(const LedgerState& state);

}  // namespace gpumemd
