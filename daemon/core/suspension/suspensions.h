// SPDX-License-Identifier: Apache-2.0
// Suspended leases: their memory is put aside into the host tier, and comes back on demand.
//
// A session that suspends a lease keeps it, with its size and its tickets, and maps the memory no
// more. Once every lease of a segment is suspended and no process may map the segment, its contents
// move to a new segment of kind tier:
//
//   Prepare                reserves the room in the tier
//   Begin                  the leases are suspended; returns the moves to make
//     … the caller makes the segments in the tier and copies the contents …
//   Finish                 each lease is of the segment in the tier; the old segment is doomed
//
// At each moment the leases are of one segment with valid contents. A daemon that is killed before
// Finish leaves the old segment with its leases; one that is killed after it leaves the new one.
//
// A segment whose last user lets go later, otherwise than by suspending its lease, is moved by the
// daemon (BeginLater). An operator can move the segments of a publication that no session uses
// (BeginPublication): the publication is of the segments in the tier then. Both go on with Made and
// Finish.
//
// Scratch memory makes the same moves without contents: its segment of kind tier has a size
// (records::Segment::dropped_bytes), a charge of 0 and no memory. No bytes are copied either way.
//
// Resume is an acquisition (AdmissionControl::BeginAcquire with AcquireSpec::resumes or
// AcquireSpec::publication): it charges new segments on the device, and its Commit moves the leases
// and the publication there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/leases.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"

namespace gpumemd {

class Suspensions {
 public:
  // All must outlive this.
  Suspensions(LedgerBase* base, const Room* room, Segments* segments, const Leases* leases)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        effects_(base->effects),
        room_(*room),
        segments_(*segments),
        leases_(*leases) {}

  // The contents of one segment, to be copied or, of a scratch one, to be dropped.
  struct Move {
    SegmentId from{};
    SegmentId to{};
    size_t device = 0;  // of the one that is not in the tier
    uint64_t bytes = 0;
    bool dropped = false;
  };

  struct Reservation {
    uint64_t id = 0;
    uint64_t bytes = 0;
    absl::btree_set<size_t> devices;  // from which these bytes would move
  };
  // Reserves room in the tier for the segments that Begin would move. The session's earlier
  // reservation ends.
  //   ABORTED              the session has ended
  //   INVALID_ARGUMENT     no leases, more than kMaxSuspendedAtOnce, or one twice
  //   NOT_FOUND            the session has no such lease
  //   UNIMPLEMENTED        memory of its kind cannot be suspended
  //   FAILED_PRECONDITION  there is no tier; or a segment is lost, revocable or another tenant's;
  //                        or the tenant's releases are not trusted
  //   RESOURCE_EXHAUSTED   there is no room in the tier
  absl::StatusOr<Reservation> Prepare(SessionId session, absl::Span<const LeaseId> leases);
  // Ends the session's reservation, if it has this number. 0: any.
  void Cancel(SessionId session, uint64_t reservation);

  struct Begun {
    size_t device = 0;  // of the first lease; its home if it is in the tier
    std::vector<Move> moves;
    uint64_t resident_bytes = 0;     // of the leases' segments that do not move yet
    std::vector<SegmentId> copying;  // of these segments: to the tier, by others
  };
  // Suspends the leases: the session's process no longer maps them. Uses the session's reservation
  // if it has this number, and ends it. Leases that are suspended already are no error. On an error
  // nothing has changed but the reservation, which has ended. Statuses as Prepare.
  absl::StatusOr<Begun> Begin(SessionId session, absl::Span<const LeaseId> leases,
                              uint64_t reservation);
  // Begins to move one of the segments that their last user has let go of (LedgerState::to_move).
  // Segments without room in the tier stay, and are tried again when a segment leaves it. Returns
  // nothing if there is none to move among the first `steps`.
  std::optional<Move> BeginLater(size_t steps);
  // Begins to move all segments of kind vmm of a publication. Those in the tier are no error.
  // Returns no moves if all are there.
  //   NOT_FOUND            there is no such publication
  //   UNAVAILABLE          a segment is being copied
  //   FAILED_PRECONDITION  there is no tier; or the publication is in use (CheckIdle); or none of
  //                        its segments can be suspended, or one is lost
  //   RESOURCE_EXHAUSTED   there is no room in the tier
  absl::StatusOr<std::vector<Move>> BeginPublication(PublicationId publication);
  // Records that the memory of move.to exists, and where. A dropped move has no extents.
  void Made(const Move& move, std::vector<TierExtent> extents);
  // Ends a move. `copied`: move.to has the contents now, or they may be dropped. Otherwise the
  // leases stay with move.from, and move.to is doomed. Returns how many leases moved; nothing if
  // the contents did not, because they were not copied or all holders have ended.
  std::optional<size_t> Finish(const Move& move, bool copied);
  // Audits what Begin has begun, once all its moves have ended. `copied`: why they moved nothing.
  // If it is OK, begun.moves are those that moved.
  void Audit(SessionId session, absl::Span<const LeaseId> leases, const Begun& begun,
             const absl::Status& copied) const;

  // The same for a move that BeginLater has begun.
  void AuditLater(const Move& move, const absl::Status& copied) const;

  // What the leases need to come back.
  struct ResumeTerms {
    size_t device = 0;
    uint64_t bytes = 0;  // of segments in the tier, as large as on the device
  };
  //   INVALID_ARGUMENT  no leases, more than kMaxSuspendedAtOnce, one twice, or of several devices
  //   NOT_FOUND         the session has no such lease
  //   UNAVAILABLE       a segment is being copied
  //   and as Prepare
  // Takes time in proportion to the leases.
  absl::StatusOr<ResumeTerms> TermsOf(SessionId session, absl::Span<const LeaseId> leases) const;
  // Returns what the segments of a publication need to come back, of one device of those that they
  // came from. No bytes: none is in the tier.
  //   NOT_FOUND            the publication has ended
  //   UNAVAILABLE          a segment is being copied
  //   FAILED_PRECONDITION  a segment is lost
  absl::StatusOr<ResumeTerms> TermsOf(PublicationId publication) const;

  // Returns the first segment of the leases, or of the publication, that is being copied.
  std::optional<SegmentId> CopyingOf(const AcquireSpec& spec) const;

  // Returns the index of the host tier among the devices; nothing if there is none.
  std::optional<size_t> Tier() const;
  bool HasTier() const { return Tier().has_value(); }
  // Returns OK if the lease, of this session, can be suspended or is suspended. Statuses as
  // Prepare, without those about the list and the room.
  absl::Status CheckLease(const records::Session& session, LeaseId lease) const;

  // Moves all leases of a segment, and the publication that holds it, to another segment of the
  // same size. Requires that all the leases are suspended, and that no process may map the segment.
  // Returns how many leases they are.
  size_t MoveHolders(SegmentId from, SegmentId to);
  // Ends the copying of a segment in the tier that was to be resumed.
  void EndResume(SegmentId tier, bool resumed);

  // Checks the number of leases in one request, and that none is there twice: INVALID_ARGUMENT.
  static absl::Status CheckLeaseList(absl::Span<const LeaseId> leases, size_t most);

 private:
  using Lease = records::Lease;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;

  // Returns the leases' segments, each once, and checks all that Prepare checks but the room.
  absl::StatusOr<std::vector<SegmentId>> Check(SessionId session,
                                               absl::Span<const LeaseId> leases) const;
  // Returns those of the segments that would have no user if the session suspended the leases.
  std::vector<SegmentId> Movable(SessionId session, absl::Span<const LeaseId> leases,
                                 absl::Span<const SegmentId> segments) const;
  // Charges a segment in the tier for each of these. `asked`: for a caller, whose denial counts.
  //   RESOURCE_EXHAUSTED  there is no room in the tier
  absl::Status Reserve(Tenant& tenant, absl::Span<const SegmentId> segments,
                       std::vector<records::TierRoom>& rooms, bool asked = true);
  // Begins to copy a segment to its room.
  Move BeginMove(const records::TierRoom& room);
  // Returns why a segment cannot move at present: FAILED_PRECONDITION if it is lost, UNAVAILABLE if
  // it is being copied.
  static absl::Status CheckStill(SegmentId id, const Segment& segment);
  // Returns OK if the publication's segments can move. Else the status has the numbers of attached
  // sessions, and of segments that leases, processes or other publications use.
  absl::Status CheckIdle(const records::Publication& publication) const;
  void GiveBack(std::vector<records::TierRoom> rooms);

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Effects& effects_;
  const Room& room_;
  Segments& segments_;
  const Leases& leases_;
};

// Returns why there is nothing to suspend to: FAILED_PRECONDITION.
absl::Status NoHostTier();

}  // namespace gpumemd
