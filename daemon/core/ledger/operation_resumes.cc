// SPDX-License-Identifier: Apache-2.0
// Operations that bring suspended leases back.
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/admission/trim.h"
#include "daemon/core/ledger/operations.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

SegmentId Operations::ChargeFresh(SegmentId tier, bool revocable) {
  Segment& source = *state_.segments.at(tier);
  const SegmentId id{state_.next_segment++};
  auto segment = std::make_unique<Segment>();
  segment->tenant = source.tenant;
  segment->device = segment->home = source.home;
  segment->charge = source.tenant->ChargeFor(id, source.home, source.size(), revocable);
  segment->created = state_.now();
  segment->shared_out = source.shared_out;
  segment->scratch = source.scratch;
  state_.segments.emplace(id, std::move(segment));
  changes_.Touch(id);
  source.copying = !Mutant(Fault::kResumesUnmarked);
  ++source.pins;
  ++state_.tier_pins;
  // No limit of segments blocks a move, but above one no memory is retained.
  TrimForShortfall(state_, segments_, {.tenant = source.tenant, .device = source.home}, 0, {});
  return id;
}

Operation Operations::GrantResume(SessionId session_id, const Request& request) {
  Operation operation;
  operation.id = OperationId{state_.next_operation++};
  operation.session = session_id;
  operation.device = request.device;
  operation.resumes = true;
  operation.publication = request.publication;
  absl::flat_hash_map<SegmentId, SegmentId> fresh_of;  // by the segment in the tier
  for (LeaseId lease_id : request.resumes) {
    const records::Lease& lease = state_.leases.at(lease_id);
    if (state_.segments.at(lease.segment)->kind != Kind::kTier) {
      operation.items.push_back({.lease = lease_id, .segment = lease.segment, .reused = true});
      continue;
    }
    const auto [fresh, is_new] = fresh_of.try_emplace(lease.segment);
    if (is_new) fresh->second = ChargeFresh(lease.segment, request.revocable);
    operation.items.push_back({.lease = lease_id,
                               .segment = fresh->second,
                               .fresh = is_new,
                               .reused = true,
                               .tier = lease.segment});
  }
  if (request.publication) {
    for (SegmentId id : state_.publications.at(*request.publication).segments) {
      const Segment& source = *state_.segments.at(id);
      if (source.kind != Kind::kTier || source.home != request.device) continue;
      operation.items.push_back({.segment = ChargeFresh(id, /*revocable=*/false),
                                 .fresh = true,
                                 .reused = true,
                                 .tier = id});
    }
  }
  operation.kind = Kind::kVmm;
  Session* const session = SessionOf(operation);
  ++(session == nullptr ? state_.operators_operations : session->operations);
  ++state_.open_operations;
  state_.regranting += operation.items.size();
  for (const Operation::Item& item : operation.items) ++state_.segments.at(item.segment)->pins;
  // No process gets a publication's segments by this.
  if (!request.publication) Expose(operation, *session, SIZE_MAX);
  return operation;
}

size_t Operations::CommitResumed(SessionId session, const Operation::Item& item) {
  size_t moved = 0;
  // The first item of a segment in the tier moves all holders of it.
  if (item.fresh) {
    moved = suspensions_.MoveHolders(*item.tier, item.segment);
    suspensions_.EndResume(*item.tier, /*resumed=*/true);
    const Segment& fresh = *state_.segments.at(item.segment);
    if (!fresh.scratch) state_.resumed[fresh.device] += fresh.charge.bytes();
  }
  records::Lease* const lease = state_.leases.Find(item.lease);
  if (lease == nullptr) return moved;  // released meanwhile: its process may map the memory
  Segment& segment = *state_.segments.at(item.segment);
  // The lease was not suspended, or another operation has resumed it: its mapping counts already.
  if (!lease->suspended) {
    segments_.Unexpose(item.segment, segment, session, /*all=*/false);
    return moved;
  }
  lease->suspended = false;
  segment.suspended.erase(item.lease);
  state_.CountMapped(session, *state_.sessions.at(session), segment, /*mapped=*/true);
  changes_.Touch(item.lease);
  return moved;
}

}  // namespace gpumemd
