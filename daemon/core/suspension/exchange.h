// SPDX-License-Identifier: Apache-2.0
// Two leases of one session exchange their segments. With it a client demotes memory, and promotes
// it: it acquires memory of the other kind, copies the bytes, changes its mapping, and exchanges.
//
// A lease keeps its number, tag, tickets, request and events. A segment keeps its charge, its
// descriptor and the processes that may map it. Both leases stay the session's, so of the
// amounts of a session or tenant only the demoted bytes change.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/records.h"

namespace gpumemd {

class Exchanges {
 public:
  // `base` must outlive this.
  explicit Exchanges(LedgerBase* base)
      : state_(base->state), changes_(base->changes), auditor_(base->auditor) {}

  // The leases, and their segments before the exchange.
  struct Pair {
    LeaseId lease{};
    LeaseId other{};
    SegmentId segment{};
    SegmentId other_segment{};
  };

  // Exchanges the segments of each pair, of all or none. Pairs that are exchanged already are no
  // error. With `check_only`, changes nothing. Takes time in proportion to the pairs.
  //   ABORTED              the session has ended
  //   INVALID_ARGUMENT     no pairs, more than kMaxSegmentsPerCall, a lease twice, or segments of
  //                        different sizes
  //   NOT_FOUND            the session has no such lease
  //   UNIMPLEMENTED        the two segments are not one of kind vmm and one of kind host
  //   FAILED_PRECONDITION  a lease is of another segment; or a segment is lost, revocable, scratch,
  //                        suspended, another tenant's, published, or has another user
  //   UNAVAILABLE          a segment is being copied
  absl::Status Exchange(SessionId session, absl::Span<const Pair> pairs, bool check_only);

 private:
  using Lease = records::Lease;
  using Segment = records::Segment;
  using Session = records::Session;

  // Checks what does not depend on the pair.
  absl::Status CheckSegment(SessionId session, LeaseId lease, SegmentId segment) const;
  absl::Status Check(SessionId session, const Pair& pair) const;
  bool IsDone(const Pair& pair) const;
  void Swap(const Pair& pair);

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
};

}  // namespace gpumemd
