// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/suspensions.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/admission/trim.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

absl::Status NoHostTier() {
  return absl::FailedPreconditionError(
      "this daemon has no host tier for suspended memory; its operator can set [tier] capacity");
}

std::optional<size_t> Suspensions::Tier() const {
  for (size_t device = 0; device < state_.devices.size(); ++device) {
    if (IsHostTier(state_.devices[device])) return device;
  }
  return std::nullopt;
}

absl::Status Suspensions::CheckLease(const Session& session, LeaseId lease) const {
  const SegmentId segment_id = state_.leases.at(lease).segment;
  const Segment& segment = *state_.segments.at(segment_id);
  if (segment.kind == Kind::kTier) return absl::OkStatus();  // suspended already
  if (!TraitsOf(segment.kind).suspendable) {
    return absl::UnimplementedError(
        absl::StrCat("memory of kind ", KindName(segment.kind), " cannot be suspended; kind ",
                     gpumem::ListKinds(", ", " or ", &gpumem::KindTraits::suspendable), " can",
                     segment.demoted() ? ": promote it first" : ""));
  }
  if (segment.lost) return LostSegment(segment_id);
  if (segment.charge.revocable()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "segment ", ToInt(segment_id), " is revocable: only firm leases can be suspended"));
  }
  if (segment.tenant != session.tenant) {
    return absl::FailedPreconditionError(
        absl::StrCat("segment ", ToInt(segment_id), " belongs to tenant ", segment.tenant->name,
                     ", and only sessions of that tenant can suspend their leases of it"));
  }
  if (!leases_.TrustsRelease(session, lease)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the quota of tenant ", session.tenant->name,
                     " has release = \"on-exit\": its memory stays charged until the process "
                     "ends, so suspending it would free nothing"));
  }
  return absl::OkStatus();
}

absl::Status Suspensions::CheckLeaseList(absl::Span<const LeaseId> leases, size_t most) {
  if (leases.empty() || leases.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("name 1 to ", most, " leases; this request names ", leases.size()));
  }
  absl::btree_set<LeaseId> seen;
  for (LeaseId lease : leases) {
    if (seen.insert(lease).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("lease ", ToInt(lease), " is named twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SegmentId>> Suspensions::Check(SessionId id,
                                                          absl::Span<const LeaseId> leases) const {
  absl::StatusOr<Session*> live = state_.LiveSession(id);
  if (!live.ok()) return live.status();
  const Session& session = **live;
  if (absl::Status list = CheckLeaseList(leases, kMaxSuspendedAtOnce); !list.ok()) return list;
  if (!HasTier()) return NoHostTier();
  std::vector<SegmentId> segments;
  for (LeaseId lease : leases) {
    if (!session.leases.contains(lease)) return NoSuchLease(lease);
    if (absl::Status possible = CheckLease(session, lease); !possible.ok()) return possible;
    segments.push_back(state_.leases.at(lease).segment);
  }
  std::sort(segments.begin(), segments.end());
  segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  return segments;
}

std::vector<SegmentId> Suspensions::Movable(SessionId session, absl::Span<const LeaseId> leases,
                                            absl::Span<const SegmentId> segments) const {
  absl::btree_map<SegmentId, uint32_t> suspending;  // leases of each that are not suspended yet
  for (LeaseId id : leases) {
    const Lease& lease = state_.leases.at(id);
    if (!lease.suspended) ++suspending[lease.segment];
  }
  std::vector<SegmentId> movable;
  for (SegmentId id : segments) {
    const Segment& segment = *state_.segments.at(id);
    if (segment.kind == Kind::kTier || segment.copying || segment.pins > 0 ||
        (segment.publications > 0 && !Mutant(Fault::kMovesPublished)) ||
        segment.leases > kMaxLeasesMoved) {
      continue;
    }
    auto more = suspending.find(id);
    const uint32_t count = more == suspending.end() ? 0 : more->second;
    // A lease that is not suspended counts as an exposure of its session, so this also excludes
    // leases that stay.
    const bool mapped = std::any_of(
        segment.exposures.begin(), segment.exposures.end(),
        [&](const auto& exposure) { return exposure.first != session || exposure.second > count; });
    if (!mapped || Mutant(Fault::kMovesMapped)) movable.push_back(id);
  }
  return movable;
}

absl::Status Suspensions::Reserve(Tenant& tenant, absl::Span<const SegmentId> segments,
                                  std::vector<records::TierRoom>& rooms, bool asked) {
  if (segments.empty()) return absl::OkStatus();
  const size_t tier = *Tier();
  records::Request request{
      .tenant = &tenant, .device = tier, .kind = Kind::kTier, .bytes = 0, .count = 1};
  for (SegmentId id : segments) {
    const Segment& source = *state_.segments.at(id);
    if (!source.scratch) request.bytes += source.size();
  }
  // Retained memory is never in the tier, and waiters are never for it: it fits now or not at all.
  // Scratch memory alone fits always, also in a tier that is over a lowered limit.
  if (request.bytes > 0) {
    const Decision decision = room_.Check(request, 0, {}, /*exactly=*/true);
    if (decision.fit != Fit::kNow) {
      return asked ? Deny(tenant, room_.Explain(request, decision))
                   : absl::ResourceExhaustedError("the host tier has no room");
    }
  }
  for (SegmentId from : segments) {
    const Segment& source = *state_.segments.at(from);
    const SegmentId id{state_.next_segment++};
    auto segment = std::make_unique<Segment>();
    segment->tenant = &tenant;
    segment->device = tier;
    segment->kind = Kind::kTier;
    segment->home = source.device;
    segment->scratch = source.scratch;
    segment->dropped_bytes = source.scratch ? source.size() : 0;
    segment->charge = tenant.ChargeFor(id, tier, source.size() - segment->dropped_bytes,
                                       /*revocable=*/false);
    segment->created = state_.now();
    segment->shared_out = source.shared_out;
    segment->pins = 1;
    ++state_.tier_pins;
    state_.segments.emplace(id, std::move(segment));
    changes_.Touch(id);
    rooms.push_back({from, id});
  }
  // No limit of segments blocks a move, but above one no memory is retained.
  TrimForShortfall(state_, segments_, request, 0, {});
  return absl::OkStatus();
}

void Suspensions::GiveBack(std::vector<records::TierRoom> rooms) {
  for (const records::TierRoom& room : rooms) {
    Segment& segment = *state_.segments.at(room.to);
    --segment.pins;
    --state_.tier_pins;
    segments_.Destroyed(room.to);  // it was never made
  }
}

absl::StatusOr<Suspensions::Reservation> Suspensions::Prepare(SessionId id,
                                                              absl::Span<const LeaseId> leases) {
  Cancel(id, 0);
  absl::StatusOr<std::vector<SegmentId>> segments = Check(id, leases);
  if (!segments.ok()) return segments.status();
  Session& session = *state_.sessions.at(id);
  const std::vector<SegmentId> movable = Movable(id, leases, *segments);
  if (absl::Status room = Reserve(*session.tenant, movable, session.tier_rooms); !room.ok())
    return room;
  session.tier_reservation = state_.next_reservation++;
  Reservation reservation{.id = session.tier_reservation};
  for (const records::TierRoom& room : session.tier_rooms) {
    const Segment& segment = *state_.segments.at(room.to);
    reservation.bytes += segment.charge.bytes();
    if (!segment.scratch) reservation.devices.insert(segment.home);
  }
  return reservation;
}

void Suspensions::Cancel(SessionId id, uint64_t reservation) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  Session& session = *it->second;
  if (session.tier_reservation == 0) return;
  if (reservation != 0 && reservation != session.tier_reservation) return;
  session.tier_reservation = 0;
  std::vector<records::TierRoom> rooms = std::exchange(session.tier_rooms, {});
  if (!Mutant(Fault::kCancelKeepsRoom)) GiveBack(std::move(rooms));
}

absl::StatusOr<Suspensions::Begun> Suspensions::Begin(SessionId id,
                                                      absl::Span<const LeaseId> leases,
                                                      uint64_t reservation) {
  std::vector<records::TierRoom> reserved;
  if (auto it = state_.sessions.find(id); it != state_.sessions.end() && reservation != 0 &&
                                          it->second->tier_reservation == reservation) {
    it->second->tier_reservation = 0;
    reserved = std::exchange(it->second->tier_rooms, {});
  }
  absl::StatusOr<std::vector<SegmentId>> segments = Check(id, leases);
  if (!segments.ok()) {
    GiveBack(std::move(reserved));
    return segments.status();
  }
  Session& session = *state_.sessions.at(id);
  std::vector<records::TierRoom> rooms;
  std::vector<SegmentId> without_room;
  std::vector<records::TierRoom> unused;  // users have come since
  auto room = reserved.begin();           // both are in the order of the segments
  for (SegmentId segment : Movable(id, leases, *segments)) {
    for (; room != reserved.end() && room->from < segment; ++room) unused.push_back(*room);
    // A request that says otherwise about its contents may have reused the segment since.
    if (room != reserved.end() && room->from == segment &&
        state_.segments.at(room->to)->scratch == state_.segments.at(segment)->scratch) {
      rooms.push_back(*room++);
    } else {
      without_room.push_back(segment);
    }
  }
  unused.insert(unused.end(), room, reserved.end());
  GiveBack(std::move(unused));
  if (absl::Status fits = Reserve(*session.tenant, without_room, rooms); !fits.ok()) {
    GiveBack(std::move(rooms));
    return fits;
  }

  const Segment& first = *state_.segments.at(state_.leases.at(leases.front()).segment);
  Begun begun{.device = first.kind == Kind::kTier ? first.home : first.device};
  for (LeaseId lease_id : leases) {
    Lease& lease = state_.leases.at(lease_id);
    if (lease.suspended) continue;
    Segment& segment = *state_.segments.at(lease.segment);
    lease.suspended = true;
    segment.suspended.insert(lease_id);
    state_.CountMapped(id, session, segment, /*mapped=*/false);
    if (!Mutant(Fault::kSuspendsUnjournaled)) changes_.Touch(lease_id);
    segments_.Unexpose(lease.segment, segment, id, /*all=*/false);
  }
  for (SegmentId segment_id : *segments) {
    const Segment& segment = *state_.segments.at(segment_id);
    // Not one that comes back: its Resume may wait for the very thread that would wait here.
    if (segment.copying && segment.kind != Kind::kTier) begun.copying.push_back(segment_id);
  }
  for (const records::TierRoom& each : rooms) begun.moves.push_back(BeginMove(each));
  for (SegmentId segment_id : *segments) {
    const Segment& segment = *state_.segments.at(segment_id);
    if (segment.kind != Kind::kTier && !segment.copying)
      begun.resident_bytes += segment.charge.bytes();
  }
  return begun;
}

Suspensions::Move Suspensions::BeginMove(const records::TierRoom& room) {
  Segment& segment = *state_.segments.at(room.from);
  segment.copying = true;
  ++segment.pins;
  ++state_.tier_pins;
  return {.from = room.from,
          .to = room.to,
          .device = segment.device,
          .bytes = segment.size(),
          .dropped = segment.scratch};
}

void Suspensions::Made(const Move& move, std::vector<TierExtent> extents) {
  Segment& segment = *state_.segments.at(move.to);
  segment.extents = std::move(extents);
  segment.made = true;
  changes_.Touch(move.to);
  changes_.TouchExtents(move.to, segment.extents.size());
}

std::optional<size_t> Suspensions::Finish(const Move& move, bool copied) {
  Segment& from = *state_.segments.at(move.from);
  Segment& to = *state_.segments.at(move.to);
  from.copying = false;
  --from.pins;
  --to.pins;
  state_.tier_pins -= 2;
  effects_.copied.push_back(move.from);
  // Its holders may have ended meanwhile; new ones could not begin.
  if ((!copied && !Mutant(Fault::kMovesUncopied)) || (from.leases == 0 && from.publications == 0)) {
    from.published.reset();
    segments_.Doom(move.to, to);
    segments_.Settle(move.from, from);
    state_.to_move.erase(move.from);  // a copy that failed is not made again until a holder changes
    return std::nullopt;
  }
  if (!move.dropped) state_.suspended[from.device] += move.bytes;
  const size_t moved = MoveHolders(move.from, move.to);
  segments_.Doom(move.from, from);
  segments_.Settle(move.to, to);
  return moved;
}

void Suspensions::Audit(SessionId session, absl::Span<const LeaseId> leases, const Begun& begun,
                        const absl::Status& copied) const {
  std::vector<Auditor::Moved> moved;
  uint64_t resident = begun.resident_bytes;
  for (const Move& move : begun.moves) {
    if (copied.ok()) {
      moved.push_back(
          {.device = move.device, .to = move.to, .bytes = move.dropped ? 0 : move.bytes});
    } else {
      resident += move.bytes;
    }
  }
  auditor_.Moves(AuditEvent::kSuspended, session, leases, moved, begun.device, resident,
                 copied.message());
}

size_t Suspensions::MoveHolders(SegmentId from_id, SegmentId to_id) {
  Segment& from = *state_.segments.at(from_id);
  Segment& to = *state_.segments.at(to_id);
  if (from.published) {
    const auto& [id, index] = *from.published;
    records::Publication& publication = state_.publications.at(id);
    publication.segments[index] = to_id;
    changes_.TouchItem(id, index);
    --from.publications;
    ++to.publications;
    if (to.kind == Kind::kTier) {
      ++publication.in_tier;
      publication.tier_bytes += to.charge.bytes();
      to.published = from.published;
    } else {
      --publication.in_tier;
      publication.tier_bytes -= from.charge.bytes();
      if (!state_.waiters.empty()) state_.moved_publications.insert(id);
    }
    from.published.reset();
  }
  to.suspended = std::exchange(from.suspended, {});
  to.leases += std::exchange(from.leases, 0);
  for (LeaseId id : to.suspended) {
    Lease& lease = state_.leases.at(id);
    lease.segment = to_id;
    if (!Mutant(Fault::kMovesUnjournaled)) changes_.Touch(id);
    Session& session = *state_.sessions.at(lease.session);
    if (auto leased = session.leased.find(from_id); --leased->second == 0) {
      session.leased.erase(leased);
      session.leased_bytes -= from.charge.bytes();
      if (from.kind == Kind::kTier) session.tier_bytes -= from.charge.bytes();
    }
    if (++session.leased[to_id] == 1) {
      session.leased_bytes += to.charge.bytes();
      if (to.kind == Kind::kTier) session.tier_bytes += to.charge.bytes();
    }
  }
  state_.events.MoveTo(from_id, to_id);
  return to.suspended.size();
}

}  // namespace gpumemd
