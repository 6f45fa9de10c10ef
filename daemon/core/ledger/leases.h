// SPDX-License-Identifier: Apache-2.0
// Leases: the right of a session to use a segment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/publication/publications.h"

namespace gpumemd {

class Leases {
 public:
  // All must outlive this.
  Leases(LedgerBase* base, Segments* segments, Publications* publications)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        segments_(*segments),
        publications_(*publications) {}

  // Releases the leases.
  //   NOT_FOUND  the session has no such lease; none is released then
  absl::Status Release(SessionId session, absl::Span<const LeaseId> leases);
  // Makes the same check and changes nothing.
  absl::Status Check(SessionId session, absl::Span<const LeaseId> leases) const;

  // Returns the ticket of a lease: `candidate`, or the one it already has for this scope.
  // `given_away`: processes that the ledger does not know will have the segment, so it is never
  // reused.
  //   ABORTED              the session has ended
  //   NOT_FOUND            it has no such lease
  //   FAILED_PRECONDITION  the segment is lost; or it is of kind driver; or it is of kind mempool
  //                        and the scope kAny
  absl::StatusOr<Secret> Share(SessionId session, LeaseId lease, TicketScope scope,
                               const Secret& candidate, bool given_away = false);

  // `unmapped`: the session's process no longer maps the segment by this lease.
  void End(LeaseId id, bool unmapped);
  // True if a session that releases the lease is trusted to have unmapped the segment.
  bool TrustsRelease(const records::Session& session, LeaseId lease) const;

 private:
  using Lease = records::Lease;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Segments& segments_;
  Publications& publications_;
};

}  // namespace gpumemd
