// SPDX-License-Identifier: Apache-2.0
// Moves to the host tier that no session asks for: of segments that their last user has let go of,
// and of publications.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/suspension/suspensions.h"

namespace gpumemd {

std::optional<Suspensions::Move> Suspensions::BeginLater(size_t steps) {
  for (; steps > 0 && !state_.to_move.empty(); --steps) {
    const SegmentId id = *state_.to_move.begin();
    state_.to_move.erase(state_.to_move.begin());
    const Segment& segment = *state_.segments.at(id);
    if (!Segments::IsMovable(segment) || !HasTier()) continue;
    std::vector<records::TierRoom> rooms;
    if (Reserve(*segment.tenant, {id}, rooms, /*asked=*/false).ok()) {
      return BeginMove(rooms.front());
    }
    state_.without_room.insert(id);
  }
  return std::nullopt;
}

void Suspensions::AuditLater(const Move& move, const absl::Status& copied) const {
  // Only the one that the leases are of stays; neither if they have ended.
  auto segment = state_.segments.find(copied.ok() ? move.to : move.from);
  if (segment == state_.segments.end() ||
      segment->second->charge.state() != SegmentState::kLeased) {
    return;
  }
  auditor_.MovedLater(
      *segment->second->tenant,
      {.device = move.device, .to = move.to, .bytes = move.dropped ? 0 : move.bytes},
      copied.message());
}

absl::Status Suspensions::CheckIdle(const records::Publication& publication) const {
  size_t leased = 0, many = 0, mapped = 0, shared = 0, busy = 0;
  for (SegmentId id : publication.segments) {
    const Segment& segment = *state_.segments.at(id);
    if (absl::Status still = CheckStill(id, segment); !still.ok()) return still;
    if (segment.kind == Kind::kTier || !TraitsOf(segment.kind).suspendable) continue;
    leased += segment.leases > segment.suspended.size() ? 1 : 0;
    many += segment.leases > kMaxLeasesMoved ? 1 : 0;
    mapped += segment.exposures.empty() ? 0 : 1;
    shared += segment.publications > 1 ? 1 : 0;
    busy += segment.pins > 0 ? 1 : 0;
  }
  std::vector<std::string> holders;
  const auto add = [&](size_t count, absl::string_view what) {
    if (count > 0) holders.push_back(absl::StrCat(count, " ", what));
  };
  add(publication.attached.size(), "sessions are attached to it");
  add(leased, "of its segments have leases that are not suspended");
  add(many, absl::StrCat("of its segments have more than ", kMaxLeasesMoved,
                         " leases, the most that move at once"));
  add(mapped, "may still be mapped by processes");
  add(shared, "are in other publications as well");
  add(busy, "are just being opened");
  if (holders.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "publication ", publication.tenant->name, "/", publication.name, " of ",
      publication.segments.size(), " segments is in use: ", absl::StrJoin(holders, ", ")));
}

absl::StatusOr<std::vector<Suspensions::Move>> Suspensions::BeginPublication(PublicationId id) {
  auto found = state_.publications.find(id);
  if (found == state_.publications.end()) {
    return absl::NotFoundError("the publication has ended");
  }
  if (!HasTier()) return NoHostTier();
  records::Publication& publication = found->second;
  if (absl::Status idle = CheckIdle(publication); !idle.ok()) return idle;
  std::vector<SegmentId> segments;
  std::vector<uint32_t> places;
  for (uint32_t i = 0; i < publication.segments.size(); ++i) {
    const Segment& segment = *state_.segments.at(publication.segments[i]);
    if (!TraitsOf(segment.kind).suspendable) continue;
    segments.push_back(publication.segments[i]);
    places.push_back(i);
  }
  if (segments.empty() && publication.in_tier == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no segment of publication ", publication.tenant->name, "/", publication.name,
                     " can be suspended: segments of kind ",
                     gpumem::ListKinds(", ", " or ", &gpumem::KindTraits::suspendable), " can"));
  }
  std::vector<records::TierRoom> rooms;
  absl::Status room = Reserve(*publication.tenant, segments, rooms);
  if (!room.ok()) return room;
  std::vector<Move> moves;
  for (size_t i = 0; i < rooms.size(); ++i) {
    state_.segments.at(segments[i])->published = {id, places[i]};
    moves.push_back(BeginMove(rooms[i]));
  }
  return moves;
}

}  // namespace gpumemd
