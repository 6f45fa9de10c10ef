// SPDX-License-Identifier: Apache-2.0
// How operations begin, and what they say about fresh memory. How they end: operation_ends.cc.
#include "daemon/core/ledger/operations.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/admission/request_checks.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

absl::StatusOr<Operation> Operations::BeginOpen(SessionId session_id,
                                                absl::Span<const Secret> tickets, bool revocable,
                                                uint64_t request_id) {
  if (state_.draining) return Draining();
  absl::StatusOr<Session*> session = state_.LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (tickets.empty() || tickets.size() > kMaxSegmentsPerCall) {
    return absl::InvalidArgumentError(absl::StrCat("one Open takes 1 to ", kMaxSegmentsPerCall,
                                                   " tickets; this has ", tickets.size()));
  }
  if (absl::Status room = CheckLeaseCount(state_, **session, tickets.size()); !room.ok())
    return room;
  Operation operation;
  operation.session = session_id;
  operation.revocable = revocable || (*session)->tenant->quota.revocable;
  operation.request_id = request_id;
  for (const Secret& ticket : tickets) {
    const TicketEntry* entry = state_.tickets.Find(ticket);
    if (entry == nullptr || !state_.sessions.at(state_.leases.at(entry->lease).session)->live) {
      return absl::NotFoundError(
          "the lease of this ticket has ended: its holder released it or ended; ask for a new "
          "ticket");
    }
    SegmentId id = state_.leases.at(entry->lease).segment;
    const Segment& segment = *state_.segments.at(id);
    if (entry->scope == TicketScope::kTenant && segment.tenant != (*session)->tenant &&
        !Mutant(Fault::kOpenIgnoresScope)) {
      return absl::PermissionDeniedError(absl::StrCat(
          "this ticket is for sessions of the tenant that owns the segment, not for tenant ",
          (*session)->tenant->name, "; ask its holder to share it with scope ANY"));
    }
    if (segment.lost) return LostSegment(id);
    if (segment.kind == Kind::kTier || segment.copying) {
      return absl::FailedPreconditionError(absl::StrCat(
          "segment ", ToInt(id), " is suspended: a session that has a lease of it must resume it"));
    }
    if (segment.charge.revoking()) {
      return absl::FailedPreconditionError(
          absl::StrCat("segment ", ToInt(id), " is being taken back from its holders"));
    }
    if (segment.charge.revocable() && !operation.revocable) {
      return absl::FailedPreconditionError(
          absl::StrCat("segment ", ToInt(id), " is revocable: open it with a revocable lease"));
    }
    operation.device = segment.device;
    operation.kind = segment.kind;
    operation.items.push_back({.segment = id});
  }
  if (absl::Status lease_type = CheckLeaseType(state_, **session, operation.revocable);
      !lease_type.ok())
    return lease_type;
  operation.id = OperationId{state_.next_operation++};
  for (Operation::Item& item : operation.items) item.lease = LeaseId{state_.next_lease++};
  Pin(operation, **session);
  return operation;
}

absl::StatusOr<Admission> Operations::BeginAttach(SessionId session_id, const AttachSpec& spec,
                                                  size_t steps) {
  if (state_.draining) return Draining();
  absl::StatusOr<Session*> live = state_.LiveSession(session_id);
  if (!live.ok()) return live.status();
  Session& session = **live;
  Tenant& tenant = *session.tenant;
  absl::StatusOr<Publications::Name> name = Publications::ParseName(spec.name, tenant.name);
  if (!name.ok()) return name.status();
  const Publication* found = state_.FindPublication(*name, &tenant);
  if (spec.claims) {
    if (absl::Status valid = ContentClaims::Check(session, spec); !valid.ok()) return valid;
    if (found == nullptr || found->content_id != spec.content_id ||
        session.claims.contains(spec.request_id)) {
      return claims_.Begin(session_id, spec, *name);
    }
  } else if (found == nullptr && spec.version == 0) {
    return NoSuchPublication(name->first, name->second);
  }
  if (found == nullptr || found->version < spec.version) {
    if (absl::Status room = CheckWaiting(state_, tenant); !room.ok()) return room;
    return Admission{
        .waiter = attach_waiters_.Add(
            {.session = session_id, .name = *std::move(name), .version = spec.version})};
  }

  const Publication& publication = state_.publications.at(state_.by_name.at(*name));
  if (absl::Status room = CheckLeaseCount(state_, session, publication.segments.size());
      !room.ok()) {
    return room;
  }
  Operation operation;
  operation.session = session_id;
  operation.revocable = spec.revocable || tenant.quota.revocable;
  operation.request_id = spec.request_id;
  operation.publication = state_.by_name.at(*name);
  if (absl::Status lease_type = CheckLeaseType(state_, session, operation.revocable);
      !lease_type.ok())
    return lease_type;
  if (publication.in_tier > 0) return Admission{.suspended = operation.publication};
  for (SegmentId id : publication.segments) {
    if (state_.segments.at(id)->lost) return LostSegment(id);
    if (state_.segments.at(id)->copying) return Admission{.suspended = operation.publication};
    operation.items.push_back({.segment = id});
  }
  operation.id = OperationId{state_.next_operation++};
  for (Operation::Item& item : operation.items) item.lease = LeaseId{state_.next_lease++};
  publications_.Attach(*operation.publication, session_id,
                       static_cast<uint32_t>(operation.items.size()));
  Pin(operation, session, steps);
  return Admission{.operation = std::move(operation)};
}

Operation Operations::Grant(SessionId session, const Request& request,
                            std::vector<SegmentId> reused) {
  Operation operation;
  operation.id = OperationId{state_.next_operation++};
  operation.session = session;
  operation.device = request.device;
  operation.kind = request.kind;
  operation.revocable = request.revocable;
  operation.request_id = request.request_id;
  operation.tag = request.tag;
  for (SegmentId id : reused) {
    Segment& segment = *state_.segments.at(id);
    segment.charge.MoveTo(SegmentState::kPending);
    segment.charge.SetRevocable(request.revocable);
    segment.scratch = request.scratch;
    changes_.Touch(id);
    operation.items.push_back(
        {.lease = LeaseId{state_.next_lease++}, .segment = id, .reused = true});
  }
  while (operation.items.size() < request.count) {
    SegmentId id{state_.next_segment++};
    auto segment = std::make_unique<Segment>();
    segment->tenant = request.tenant;
    segment->device = segment->home = request.device;
    segment->kind = request.kind;
    segment->charge =
        request.tenant->ChargeFor(id, request.device, request.bytes, request.revocable);
    segment->created = state_.now();
    segment->scratch = request.scratch;
    state_.segments.emplace(id, std::move(segment));
    if (!Mutant(Fault::kGrantsUnjournaled)) changes_.Touch(id);
    operation.items.push_back(
        {.lease = LeaseId{state_.next_lease++}, .segment = id, .fresh = true});
  }
  Pin(operation, *state_.sessions.at(session));
  return operation;
}

// Prevents the segments from being taken away until Commit or Abort.
void Operations::Pin(Operation& operation, Session& session, size_t steps) {
  ++session.operations;
  ++state_.open_operations;
  session.arriving += static_cast<uint32_t>(operation.items.size());
  state_.CountLeases(*session.tenant, static_cast<int64_t>(operation.items.size()));
  for (const Operation::Item& item : operation.items) {
    if (Mutant(Fault::kPinsTooFew) && &item == &operation.items.front()) continue;
    ++state_.segments.at(item.segment)->pins;
  }
  Expose(operation, session, steps);
}

absl::Status Operations::Expose(Operation& operation, size_t steps) {
  absl::StatusOr<Session*> session = state_.LiveSession(operation.session);
  if (!session.ok()) return session.status();
  Expose(operation, **session, steps);
  return absl::OkStatus();
}

// The process counts as exposed before a descriptor is sent, never after.
void Operations::Expose(Operation& operation, Session& session, size_t steps) {
  for (; operation.exposed < operation.items.size() && steps > 0; ++operation.exposed, --steps) {
    const Operation::Item& item = operation.items[operation.exposed];
    Segment& segment = *state_.segments.at(item.segment);
    if (Mutant(Fault::kExposesNothing)) continue;
    if (!segment.shared_out && segment.tenant != session.tenant &&
        !Mutant(Fault::kExposesUnmarked)) {
      segment.shared_out = true;
      changes_.Touch(item.segment);
    }
    ++segment.exposures[operation.session];
    if (!Mutant(Fault::kExposesUnjournaled)) changes_.Touch(operation.session, item.segment);
    if (session.exposed.insert(item.segment).second) {
      const ProcessKey key = state_.ProcessOf(session);
      Process& process = state_.processes[key];
      if (++process.exposures == 1 && !state_.waiters.empty()) state_.newly_holding.push_back(key);
      process.revocable = operation.revocable;
      if (session.exposed.size() == 1) changes_.Touch(operation.session);  // firm or revocable
    }
    if (TraitsOf(segment.kind).pooled) segments_.Import(operation.session, session, segment.device);
  }
}

// --- Fresh memory ----------------------------------------------------------------------

CreateSpec Operations::Creation(const Operation& operation, const Operation::Item& item) const {
  const Segment& segment = *state_.segments.at(item.segment);
  return {.kind = segment.kind,
          .bytes = segment.charge.bytes(),
          .tenant = segment.tenant->name,
          .limit_bytes = state_.LimitOn(*segment.tenant, operation.device)};
}

void Operations::Created(SegmentId segment) {
  state_.segments.at(segment)->made = true;
  if (!Mutant(Fault::kCreatesUnjournaled)) changes_.Touch(segment);
}

bool Operations::MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes) {
  auto it = state_.sessions.find(session);
  Tenant& tenant = *it->second->tenant;  // exists: the caller's call is in flight
  const Account& account = state_.device_accounts[device];
  while (account.bytes(SegmentState::kReleasing) < bytes) {
    if (segments_.DoomOldest(tenant, device)) continue;
    Tenant* other = segments_.RichestRetainer(device);
    if (other == nullptr) break;
    segments_.DoomOldest(*other, device);
  }
  return account.bytes(SegmentState::kReleasing) > 0;
}

void Operations::NoteElsewhere(size_t device, uint64_t bytes) {
  Account& account = state_.device_accounts[device];
  const DeviceInfo& info = state_.devices[device];
  const uint64_t left = info.capacity_bytes - account.charged();
  if (left >= bytes) account.SetElsewhere(left - bytes + info.granularity_bytes);
}

void Operations::ForgetElsewhere() {
  for (Account& account : state_.device_accounts) {
    if (account.elsewhere() > 0) account.SetElsewhere(0);
  }
}

absl::Status Operations::DriverDenial(SessionId session, size_t device, uint64_t bytes,
                                      absl::string_view driver_says) {
  Tenant& tenant = *state_.sessions.at(session)->tenant;
  Denial denial;
  denial.cause = Denial::Cause::kDriver;
  denial.tenant = tenant.name;
  denial.device_uuid = state_.devices[device].uuid;
  denial.asked = bytes;
  denial.used = state_.device_accounts[device].charged();
  denial.limit = state_.devices[device].capacity_bytes;
  denial.help = absl::StrCat("the driver has no memory left for it (", driver_says,
                             "): processes that allocate past the broker may hold it "
                             "(nvidia-smi shows them)");
  return Deny(tenant, denial);
}

}  // namespace gpumemd
