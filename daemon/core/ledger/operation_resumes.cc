// SPDX-License-Identifier: Apache-2.0
// Operations that bring suspended leases back.
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/ledger/operations.h"

namespace gpumemd {

Operation Operations::GrantResume(SessionId session_id, const Request& request) {
  Operation operation;
  operation.id = OperationId{state_.next_operation++};
  operation.session = session_id;
  operation.device = request.device;
  operation.resumes = true;
  absl::flat_hash_map<SegmentId, SegmentId> fresh_of;  // by the segment in the tier
  for (LeaseId lease_id : request.resumes) {
    const records::Lease& lease = state_.leases.at(lease_id);
    Segment& source = *state_.segments.at(lease.segment);
    if (source.kind != Kind::kTier) {
      operation.items.push_back({.lease = lease_id, .segment = lease.segment, .reused = true});
      continue;
    }
    const auto [fresh, is_new] = fresh_of.try_emplace(lease.segment);
    if (is_new) {
      fresh->second = SegmentId{state_.next_segment++};
      auto segment = std::make_unique<Segment>();
      segment->tenant = source.tenant;
      segment->device = source.home;
      segment->charge =
          Charge(&source.tenant->accounts[source.home], source.charge.bytes(), request.revocable);
      segment->created = state_.now();
      segment->shared_out = source.shared_out;
      state_.segments.emplace(fresh->second, std::move(segment));
      changes_.Touch(fresh->second);
      source.copying = true;
      ++source.pins;
      ++state_.tier_pins;
    }
    operation.items.push_back({.lease = lease_id,
                               .segment = fresh->second,
                               .fresh = is_new,
                               .reused = true,
                               .tier = lease.segment});
  }
  operation.kind = Kind::kVmm;
  Session& session = *state_.sessions.at(session_id);
  ++session.operations;
  ++state_.open_operations;
  state_.regranting += operation.items.size();
  for (const Operation::Item& item : operation.items) ++state_.segments.at(item.segment)->pins;
  Expose(operation, session, SIZE_MAX);
  return operation;
}

size_t Operations::CommitResumed(SessionId session, const Operation::Item& item) {
  size_t moved = 0;
  // The first item of a segment in the tier moves all leases of it.
  if (item.fresh) {
    moved = suspensions_.MoveLeases(*item.tier, item.segment);
    suspensions_.EndResume(*item.tier, /*resumed=*/true);
    const Segment& fresh = *state_.segments.at(item.segment);
    state_.resumed[fresh.device] += fresh.charge.bytes();
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
  changes_.Touch(item.lease);
  return moved;
}

}  // namespace gpumemd
