// SPDX-License-Identifier: Apache-2.0
// Records in the audit the events that only the ledger knows: sessions, grants, releases,
// publications, and lost, revoked and reclaimed memory. The broker records denials, since it knows
// the call.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

class Auditor {
 public:
  // `state` must outlive this.
  explicit Auditor(const LedgerState* state) : state_(*state) {}
  // `sink` must outlive this; null: nothing is recorded.
  void SetSink(AuditSink* sink) { sink_ = sink; }

  void Granted(const Operation& operation) const;
  // Records leases that the session is about to release; it need not have all of them.
  void Released(SessionId session, absl::Span<const LeaseId> leases,
                absl::string_view why = "") const;
  // Memory that moved between a device and the host tier, or kind host.
  struct Moved {
    size_t device = 0;
    SegmentId to{};
    uint64_t bytes = 0;  // 0: of scratch memory, which moves without its bytes
  };
  // Records leases that the session has suspended, resumed, demoted or promoted, and the segments
  // that moved for it. `device`: of the record if nothing moved.
  void Moves(AuditEvent event, SessionId session, absl::Span<const LeaseId> leases,
             absl::Span<const Moved> moved, size_t device, std::optional<uint64_t> resident,
             absl::string_view why = "") const;
  // Records leases whose segments Exchanges::Exchange has changed.
  void Exchanged(SessionId session, absl::Span<const LeaseId> leases) const;
  void Resumed(const Operation& operation) const;
  // Records a move that no session has asked for. `why`: why it has failed.
  void MovedLater(const records::Tenant& tenant, const Moved& moved, absl::string_view why) const;
  void SessionChanged(AuditEvent event, SessionId session) const;
  // Records the segments in `mapped`, which an ended process could map, that no other process maps.
  void Reclaimed(SessionId session, absl::Span<const SegmentId> mapped) const;
  void RevocationChanged(AuditEvent event, absl::Span<const SegmentId> segments,
                         absl::string_view why) const;
  // Records that the policy has asked the session to suspend `bytes`, or that the request has ended
  // and the session still maps that many.
  void SwapChanged(AuditEvent event, SessionId session, uint64_t bytes,
                   absl::string_view why) const;
  void Lost(const absl::flat_hash_set<SegmentId>& segments) const;
  void Published(SessionId session, const records::Publication& publication) const;
  void ClaimChanged(AuditEvent event, SessionId session, const records::Contents& contents,
                    absl::string_view why = "") const;
  // Records that a tenant was made, changed or ended: by this session, or else by an operator.
  // `why`: of its end.
  void TenantChanged(AuditEvent event, const records::Tenant& tenant, SessionId session,
                     absl::Span<const AuditOperator> by, std::vector<std::string> changes,
                     absl::string_view why = "") const;
  void PublicationEnded(const records::Publication& publication, bool replaced,
                        absl::Span<const AuditOperator> by) const;

 private:
  struct AuditedSegment {
    SegmentId segment{};
    LeaseId lease{};  // 0: none
  };
  void Record(AuditRecord record) const;
  void PublicationResumed(const Operation& operation) const;
  // Records one like `about` for each owner, device and kind of the segments.
  void RecordSegments(const AuditRecord& about, absl::Span<const AuditedSegment> segments) const;
  // True if the sink needs no record of this.
  bool LeavesOut(AuditEvent event, SessionId session,
                 absl::Span<const AuditedSegment> segments) const;

  const LedgerState& state_;
  AuditSink* sink_ = nullptr;
};

}  // namespace gpumemd
