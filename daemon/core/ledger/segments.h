// SPDX-License-Identifier: Apache-2.0
// Segments: their states, which follow from their holders, and how they go back to the driver.
//
// A segment without leases is in one of these states:
// - Kept for reuse (retained).
// - Charged until the processes that may still map it are gone (lingering). A segment from a memory
//   pool lingers until all processes that may have the pool open are gone (pools.cc).
// - Doomed (Effects::doomed): to be given back to the driver. Destroyed() ends its charge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/records.h"

namespace gpumemd {

class Segments {
 public:
  // `base` must outlive this.
  explicit Segments(LedgerBase* base)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        effects_(base->effects) {}

  // Puts a segment into the state that follows from its holders.
  void Settle(SegmentId id, records::Segment& segment);
  // Counts the segment as mappable by the session's process once less, or (`all`) no more.
  void Unexpose(SegmentId id, records::Segment& segment, SessionId session, bool all);

  void Doom(SegmentId id, records::Segment& segment);
  bool DoomOldest(records::Tenant& tenant, size_t device);  // retained segment; false: none
  void DoomAllRetained(records::Tenant& tenant);
  // Returns the tenant with the most retained bytes on the device, or null. If `above` is not null,
  // only tenants under `above` count.
  records::Tenant* RichestRetainer(size_t device, const records::Tenant* above = nullptr);
  // Dooms retained segments until each tenant keeps at most `keep_bytes` of them on each device.
  // Empty names mean all. Returns the doomed ones.
  //   NOT_FOUND  no such tenant or device
  absl::StatusOr<std::vector<SegmentId>> Trim(absl::string_view tenant, absl::string_view device,
                                              uint64_t keep_bytes);
  // True if nothing keeps a suspended segment on its device: all its leases are suspended, and no
  // process, publication or operation has it.
  static bool IsMovable(const records::Segment& segment);

  // Ends the charge of a doomed segment whose memory the driver has back. Returns its tenant.
  records::Tenant& Destroyed(SegmentId segment);

  // Marks segments that the device can no longer open. Unknown segments are no error: they may be
  // gone by now. Returns how many were not lost before. The sessions that lease them:
  // Effects::orphaned.
  size_t MarkLost(absl::Span<const SegmentId> segments);

  // --- Memory pools (pools.cc)

  // Import counts that the session's process was handed a segment of the pool on the device.
  // Unimport counts it once less, or (`all`) no more.
  void Import(SessionId id, records::Session& session, size_t device);
  void Unimport(SessionId id, records::Session& session, size_t device, bool all);
  // Ends the import of a process that is gone, and dooms the segments that only this import kept in
  // the pool. Subtracts the steps from `steps`, and stops at 0.
  void EndImport(SessionId id, records::Session& session, size_t device, size_t& steps);

 private:
  using Pool = records::Pool;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;

  void EndRevocation(SegmentId id, Segment& segment);
  // Clears what holders asked of the segment: scratch, and its home. Journals the change.
  void ForgetUse(SegmentId id, Segment& segment);
  // Lets a few of the segments without room in the tier be tried again.
  void RetryMoves();

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Effects& effects_;
};

}  // namespace gpumemd
