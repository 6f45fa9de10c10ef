// SPDX-License-Identifier: Apache-2.0
// What a client that has connected anew still has: repeated requests get what they were granted,
// and grants that the client does not know of end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/leases.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/ledger/sessions.h"

namespace gpumemd {

class Reconciliation {
 public:
  // All must outlive this.
  Reconciliation(LedgerBase* base, Segments* segments, Sessions* sessions, Leases* leases)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        segments_(*segments),
        sessions_(*sessions),
        leases_(*leases) {}

  // Returns an operation that hands over `count` leases once more, if an earlier daemon granted
  // them to the session for this request. Commit and Abort do not change these leases.
  std::optional<Operation> Regrant(SessionId session, uint64_t request_id, uint32_t count);
  // Returns the same for all segments of a publication that still exists.
  std::optional<Operation> RegrantAttach(SessionId session, uint64_t request_id);

  // Begins a Reconcile, which counts as a call (Sessions::EndCall).
  //   ABORTED              the session has ended
  //   FAILED_PRECONDITION  it was not resumed, or has made calls since
  //   UNAVAILABLE          calls of the connection that it has lost have yet to end
  //   RESOURCE_EXHAUSTED   its tenant has too many calls in flight
  absl::Status Begin(SessionId session);
  // The statement of a returning session's client: it has these leases and no others, and will
  // repeat these requests. The constructor takes time in proportion to both.
  class Statement {
   public:
    Statement(absl::Span<const LeaseId> leases, absl::Span<const uint64_t> requests);
    // Returns the named leases that the session does not have.
    std::vector<LeaseId> TakeUnknown() { return std::move(unknown_); }

   private:
    friend class Reconciliation;
    using Regrants = absl::btree_map<uint64_t, std::vector<LeaseId>>;

    const std::vector<LeaseId> leases_;
    const std::vector<uint64_t> requests_;
    const absl::flat_hash_set<LeaseId> kept_;
    const absl::flat_hash_set<uint64_t> asked_;
    // The progress of Reconcile.
    enum class Stage { kNamed, kHeld, kAsked, kMapped, kDone } stage_ = Stage::kNamed;
    size_t next_ = 0;      // index into leases_, then into requests_
    LeaseId lease_{};      // next of the session's leases
    SegmentId segment_{};  // next of the segments that its process may map
    std::optional<uint32_t> resumptions_;
    std::vector<LeaseId> unknown_;
    Regrants before_, after_, replaced_;
  };
  // Carries out a statement, by about `steps` leases and requests in each call. Ends everything
  // else that the session was granted. True if complete: the session is then kHere.
  //   ABORTED      the session has ended
  //   UNAVAILABLE  its client has connected anew meanwhile
  absl::StatusOr<bool> Reconcile(SessionId session, Statement& statement, size_t steps);
  // Carries out all of a statement in one call. Returns the leases that the session does not have.
  absl::StatusOr<std::vector<LeaseId>> Reconcile(SessionId session,
                                                 absl::Span<const LeaseId> leases,
                                                 absl::Span<const uint64_t> requests);
  // Ends what these requests were granted: the session will not repeat them. Stops after about
  // `steps` leases and requests, and returns the number of requests that are complete.
  size_t DropRegrants(SessionId session, absl::Span<const uint64_t> requests,
                      size_t steps = SIZE_MAX);

 private:
  using Lease = records::Lease;
  using Segment = records::Segment;
  using Session = records::Session;

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Segments& segments_;
  Sessions& sessions_;
  Leases& leases_;
};

}  // namespace gpumemd
