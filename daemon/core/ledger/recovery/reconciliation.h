// SPDX-License-Identifier: Apache-2.0
// Makes a session's leases equal to what its client has after a reconnect. The client states the
// leases that it has, and the requests that it will repeat or whose claims it has. Other leases and
// claims end. A repeated request gets the leases that it was granted before: a regrant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
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
#include "daemon/core/publication/claims.h"

namespace gpumemd {

class Reconciliation {
 public:
  // All must outlive this.
  Reconciliation(LedgerBase* base, Segments* segments, Sessions* sessions, ContentClaims* claims,
                 Leases* leases)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        segments_(*segments),
        sessions_(*sessions),
        claims_(*claims),
        leases_(*leases) {}

  // Returns an operation that hands over `count` leases once more, if they were granted to the
  // session for this request before its client reconnected. If one is lost, or their number is not
  // `count`, ends all of them and returns nullopt. Commit and Abort do not change these leases, and
  // after Abort the client may repeat the request again.
  std::optional<Operation> Regrant(SessionId session, uint64_t request_id, uint32_t count);
  // As Regrant, for a request to attach: `count` is the number of the publication's segments.
  std::optional<Operation> RegrantAttach(SessionId session, uint64_t request_id);

  // Begins a Reconcile, which counts as a call in flight. If OK, the session is kReturning until
  // Reconcile is complete, also if an earlier one was, and the caller ends the call with
  // Sessions::EndCall.
  //   ABORTED              the session has ended
  //   FAILED_PRECONDITION  it was not resumed, or has made calls since
  //   UNAVAILABLE          calls of the connection that it has lost have yet to end
  //   RESOURCE_EXHAUSTED   its tenant has too many calls in flight
  absl::Status Begin(SessionId session);
  // The statement of a returning session's client: it has these leases and no others, and will
  // repeat these requests or has their claims. Also keeps the progress of Reconcile between its
  // calls. The constructor takes time in proportion to both.
  class Statement {
   public:
    Statement(absl::Span<const LeaseId> leases, absl::Span<const uint64_t> requests);
    // Returns the stated leases that the session does not have. Call after Reconcile is complete.
    std::vector<LeaseId> TakeUnknown() { return std::move(unknown_); }

   private:
    friend class Reconciliation;
    using Regrants = absl::btree_map<uint64_t, std::vector<LeaseId>>;  // leases by request

    const std::vector<LeaseId> leases_;
    const std::vector<uint64_t> requests_;
    const absl::flat_hash_set<LeaseId> kept_;    // leases_, for look-up
    const absl::flat_hash_set<uint64_t> asked_;  // requests_, for look-up
    // The progress of Reconcile. The stages, in order:
    enum class Stage {
      kNamed,   // finds the stated leases that the session does not have
      kHeld,    // ends the session's leases that are neither stated nor of a stated request
      kAsked,   // collects the leases of the stated requests: the session's new regrants
      kMapped,  // if releases are trusted: uncharges mappings that no remaining lease covers
      kDone,
    } stage_ = Stage::kNamed;
    size_t next_ = 0;                      // kNamed: index into leases_; kAsked: into requests_
    LeaseId lease_{};                      // kHeld, kMapped: next of the session's leases
    SegmentId segment_{};                  // kMapped: next of the segments that the process may map
    std::optional<uint32_t> resumptions_;  // the session's at the first step; unset before
    std::vector<LeaseId> unknown_;         // stated leases that the session does not have
    // By segment, the leases that stay and whose memory the process may map: not suspended ones.
    absl::flat_hash_map<SegmentId, uint32_t> mapped_;
    Regrants before_;  // leases of stated requests, until kAsked takes them
    Regrants after_;   // those taken: becomes the session's regrants
    // The session's earlier regrants, destroyed with the statement: the broker does that outside
    // its mutex.
    Regrants replaced_;
  };
  // Carries out a statement, by about `steps` leases and requests in each call. Ends everything
  // else that the session was granted. True if complete: the session is then present
  // (Presence::kHere). False: call it again with the same statement.
  //   ABORTED      the session has ended
  //   UNAVAILABLE  its client has connected anew meanwhile
  absl::StatusOr<bool> Reconcile(SessionId session, Statement& statement, size_t steps);
  // Carries out all of a statement in one call. Returns the leases that the session does not have.
  absl::StatusOr<std::vector<LeaseId>> Reconcile(SessionId session,
                                                 absl::Span<const LeaseId> leases,
                                                 absl::Span<const uint64_t> requests);
  // Ends the leases that these requests were granted: the client will not repeat the requests.
  // Stops after about `steps` leases and requests, and returns the number of requests that are
  // complete.
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
  ContentClaims& claims_;
  Leases& leases_;
};

}  // namespace gpumemd
