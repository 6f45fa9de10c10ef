// What has changed in the ledger's state since the journal was last told.
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
  void Keep() { kept_ = true; }
  // The journal's image has the numbers given out so far.
  void NoteNumbers(const LedgerState& state);

  // Mark an object as made, changed or ended.
  void Touch(SessionId id) { Add(sessions_, id); }
  void Touch(SegmentId id) { Add(segments_, id); }
  void Touch(LeaseId id) { Add(leases_, id); }
  void Touch(IpcEventId id) { Add(events_, id); }
  void Touch(PublicationId id) { Add(publications_, id); }
  void Touch(const RequestKey& key) { Add(answers_, key); }
  // A publication that is new or has ended, and how many segments it has.
  void Touch(PublicationId id, size_t segments) {
    Touch(id);
    Add(lists_, std::pair(id, segments));
  }
  void Touch(SessionId session, SegmentId segment) { Add(exposures_, std::pair(session, segment)); }
  void Touch(SessionId session, size_t device) { Add(imports_, std::pair(session, device)); }

  // Returns one batch of the journal, and forgets it: the state goes from one that is consistent to
  // the next.
  std::vector<journal::Change> Take(const LedgerState& state);

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
  std::vector<std::pair<PublicationId, size_t>> lists_;
  journal::Counters numbers_;  // that Take() has told of
};

// Returns all that Take() would ever have said: the state as it is. Waiters and operations are left
// out: a successor knows which process may map what, and which session has which leases.
JournalImage ImageOf(const LedgerState& state);

}  // namespace gpumemd
