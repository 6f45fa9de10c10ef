#include "daemon/core/ledger/ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/inspect/invariants.h"

namespace gpumemd {
namespace {

// Answers that each session's repeated requests can get again.
constexpr size_t kMaxAnswers = 64;

absl::Status Ended() { return absl::AbortedError("the session has ended; connect again"); }

}  // namespace

absl::Status Ledger::NoSuchLease(LeaseId lease) {
  return absl::NotFoundError(absl::StrCat("this session has no lease ", ToInt(lease),
                                          "; it may have been released already"));
}

Ledger::Ledger(std::vector<DeviceInfo> devices, Bounds bounds, std::function<absl::Time()> now)
    : state_(std::move(devices), bounds, std::move(now)), limits_(state_.devices.size() + 1) {}

absl::Status Ledger::CheckInvariants() const {
  absl::Status consistent = gpumemd::CheckInvariants(state_);
  if (consistent.ok()) consistent = CheckQueue();
  if (consistent.ok()) consistent = CheckPublications();
  return consistent;
}

// --- Sessions ------------------------------------------------------------------------

absl::StatusOr<SessionId> Ledger::OpenSession(absl::string_view name, SessionDetails details,
                                              const Secret& token) {
  if (state_.draining) return Draining();
  const ProcessKey process = {details.peer.pid, details.peer.start_time};
  if (auto begun = begun_before_.extract({process, details.connect_id})) {
    // The process begins anew because its Welcome was lost with the daemon: no client returns for
    // the old session.
    auto it = state_.sessions.find(begun.mapped());
    if (it != state_.sessions.end() && it->second->presence == Presence::kAway) {
      SocketClosed(begun.mapped());
    }
  }
  Tenant& tenant = EnsureTenant(name);
  const std::optional<SessionId> predecessor = Predecessor(tenant, details.peer);
  absl::Status room = CheckSessionCount(tenant, details.peer.uid, predecessor);
  if (!room.ok()) {
    ForgetIfIdle(tenant);
    return room;
  }
  SessionId id{state_.next_session++};
  auto session = std::make_unique<Session>();
  session->tenant = &tenant;
  session->details = std::move(details);
  session->token = token;
  session->opened = state_.now();
  CountSession(*session, 1);
  state_.sessions.emplace(id, std::move(session));
  state_.tokens.emplace(token, id);
  changes_.Touch(id);
  ++tenant.live_sessions;
  auditor_.SessionChanged(AuditEvent::kSessionOpened, id);
  if (predecessor) ForgetIfDone(*predecessor, *state_.sessions.at(*predecessor));
  return id;
}

absl::StatusOr<SessionId> Ledger::FindByToken(const Secret& token) const {
  auto it = state_.tokens.find(token);
  if (it == state_.tokens.end()) return absl::NotFoundError("no live session has this token");
  return it->second;
}

absl::StatusOr<Ledger::Session*> Ledger::LiveSession(SessionId id) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end() || !it->second->live) {
    return Ended();
  }
  return it->second.get();
}

void Ledger::EndSession(SessionId id, Session& session) {
  if (!session.live) return;
  session.live = false;
  auditor_.SessionChanged(AuditEvent::kSessionEnded, id);
  changes_.Touch(id);
  state_.tokens.erase(session.token);
  for (const Session::Answer& answer : session.answers)
    changes_.Touch(RequestKey(id, answer.request));
  session.answers.clear();
  while (!session.waiters.empty()) {
    const WaiterId waiter = *session.waiters.begin();
    RemoveWaiter(waiter);
    refused_.emplace_back(waiter, absl::AbortedError("the session ended while the request waited"));
  }
  while (!session.attach_waiters.empty()) {
    const WaiterId waiter = *session.attach_waiters.begin();
    RemoveAttachWaiter(waiter);
    attachable_.push_back(waiter);
  }
  --session.tenant->live_sessions;
}

bool Ledger::WindUp(SessionId id, Session& session, size_t& steps) {
  for (; steps > 0; --steps) {
    const std::optional<IpcEventId> event = state_.events.AnyOf(id);
    if (!event) break;
    state_.events.Remove(*event);
    changes_.Touch(*event);
  }
  // Ending one takes no longer than beginning it did.
  while (steps > 0 && !session.ephemeral.empty()) {
    const PublicationId publication = *session.ephemeral.begin();
    const size_t segments = state_.publications.at(publication).segments.size();
    EndPublication(publication);
    steps -= std::min(steps, segments);
  }
  // Retained memory serves the tenant's running processes. Without one it would only be kept from
  // other tenants.
  Tenant& tenant = *session.tenant;
  for (size_t device = 0; device < state_.devices.size() && tenant.live_sessions == 0; ++device) {
    for (; steps > 0 && DoomOldest(tenant, device); --steps) {
    }
  }
  for (; steps > 0 && !session.leases.empty(); --steps) {
    EndLease(*session.leases.begin(), /*unmapped=*/false);
  }
  if (!session.process_gone || steps == 0) return steps > 0;
  while (steps > 0 && !session.imported.empty()) {
    EndImport(id, session, *session.imported.begin(), steps);
  }
  std::vector<SegmentId> mapped;
  for (; steps > 0 && !session.exposed.empty(); --steps) {
    mapped.push_back(*session.exposed.begin());
    Segment& segment = *state_.segments.at(mapped.back());
    Unexpose(mapped.back(), segment, id, /*all=*/true);
    Settle(mapped.back(), segment);
    const SegmentState state = segment.charge.state();  // a doomed segment is still in the map
    if (state != SegmentState::kRetained && state != SegmentState::kReleasing) continue;
    state_.reclaimed[segment.device] += segment.charge.bytes();
  }
  auditor_.Reclaimed(id, mapped);
  return steps > 0;
}

void Ledger::ContinueEnding(SessionId id, size_t& steps) {
  Session& session = *state_.sessions.at(id);
  session.ending = !WindUp(id, session, steps);
  if (session.ending) {
    state_.ending.insert(id);
    return;
  }
  if (state_.ending.erase(id) > 0 && state_.ending.empty() && !state_.waiters.empty()) {
    // Waiters that do not fit yet were not refused, and no memory was revoked for them.
    WakeAwaitingEnd();
  }
  ForgetIfDone(id, session);
}

void Ledger::ContinueEnding(size_t steps) {
  while (steps > 0 && !state_.ending.empty()) ContinueEnding(*state_.ending.begin(), steps);
}

void Ledger::Answer(SessionId id, Session& session, uint64_t request, uint64_t number) {
  if (request == 0) return;
  session.answers.push_back({request, number});
  changes_.Touch(RequestKey(id, request));
  if (session.answers.size() <= kMaxAnswers) return;
  changes_.Touch(RequestKey(id, session.answers.front().request));
  session.answers.pop_front();
}

void Ledger::SocketClosed(SessionId id, size_t steps) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  EndSession(id, *it->second);
  ContinueEnding(id, steps);
}

void Ledger::ProcessGone(SessionId id, size_t steps) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  it->second->process_gone = true;
  EndSession(id, *it->second);
  ContinueEnding(id, steps);
}

void Ledger::ForgetIfDone(SessionId id, Session& session) {
  if (!OnlyImports(session)) return;
  if (!session.imported.empty() && !Bequeath(id, session)) return;
  Tenant& tenant = *session.tenant;
  CountSession(session, -1);
  for (PublicationId publication : session.publications)
    changes_.Touch(publication);  // now without a publisher
  state_.sessions.erase(id);
  changes_.Touch(id);
  forgotten_.push_back(id);
  ForgetIfIdle(tenant);
}

std::vector<SessionId> Ledger::TakeForgotten() { return std::exchange(forgotten_, {}); }

absl::Status Ledger::BeginCall(SessionId id) {
  absl::StatusOr<Session*> session = LiveSession(id);
  if (!session.ok()) return session.status();
  if (absl::Status room = CheckInFlight(*(*session)->tenant); !room.ok()) return room;
  ++(*session)->in_flight;
  ++(*session)->tenant->in_flight;
  (*session)->may_reconcile = false;
  return absl::OkStatus();
}

void Ledger::EndCall(SessionId id) {
  auto it = state_.sessions.find(id);  // still there: a call in flight keeps it
  --it->second->in_flight;
  --it->second->tenant->in_flight;
  ForgetIfDone(id, *it->second);
}

absl::Status Ledger::BecomeWatch(SessionId id) {
  Session& session = *state_.sessions.at(id);
  if (session.watches >= state_.bounds.max_watches_per_session) {
    return DenyCount(*session.tenant, Denial::Cause::kDaemonLimit, 1, session.watches,
                     state_.bounds.max_watches_per_session,
                     "a session has only so many watches; end those that are not needed");
  }
  if (session.tenant->watches >= state_.bounds.max_watches_per_tenant) {
    return DenyCount(*session.tenant, Denial::Cause::kDaemonLimit, 1, session.tenant->watches,
                     state_.bounds.max_watches_per_tenant,
                     "a tenant has only so many watches; one for each process is enough");
  }
  ++session.watches;
  ++session.tenant->watches;
  --session.in_flight;
  --session.tenant->in_flight;
  return absl::OkStatus();
}

void Ledger::EndWatch(SessionId id) {
  auto it = state_.sessions.find(id);  // still there, as in EndCall
  --it->second->watches;
  --it->second->tenant->watches;
  ForgetIfDone(id, *it->second);
}

// --- Operations ----------------------------------------------------------------------

absl::StatusOr<Operation> Ledger::BeginOpen(SessionId session_id, absl::Span<const Secret> tickets,
                                            bool revocable, uint64_t request_id) {
  if (state_.draining) return Draining();
  absl::StatusOr<Session*> session = LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (tickets.empty() || tickets.size() > kMaxSegmentsPerCall) {
    return absl::InvalidArgumentError(absl::StrCat("one Open takes 1 to ", kMaxSegmentsPerCall,
                                                   " tickets; this has ", tickets.size()));
  }
  if (absl::Status room = CheckLeaseCount(**session, tickets.size()); !room.ok()) return room;
  Operation operation;
  operation.session = session_id;
  operation.revocable = revocable || (*session)->tenant->quota.revocable;
  operation.request_id = request_id;
  for (const Secret& ticket : tickets) {
    const TicketEntry* entry = state_.tickets.Find(ticket);
    if (entry == nullptr || !state_.sessions.at(state_.leases.at(entry->lease).session)->live) {
      return absl::NotFoundError(
          "no lease stands behind this ticket: its holder has released it or is gone; ask for a "
          "new ticket");
    }
    SegmentId id = state_.leases.at(entry->lease).segment;
    const Segment& segment = *state_.segments.at(id);
    if (entry->scope == TicketScope::kTenant && segment.tenant != (*session)->tenant) {
      return absl::PermissionDeniedError(absl::StrCat(
          "this ticket is for sessions of the tenant that owns the segment, not for tenant ",
          (*session)->tenant->name, "; ask its holder to share it with scope ANY"));
    }
    if (segment.lost) return Lost(id);
    if (segment.charge.revoking()) {
      return absl::FailedPreconditionError(
          absl::StrCat("segment ", ToInt(id), " is being taken back from its holders"));
    }
    if (segment.charge.revocable() && !operation.revocable) {
      return absl::FailedPreconditionError(absl::StrCat(
          "segment ", ToInt(id), " is revocable: open it with a lease that is revocable, too"));
    }
    operation.device = segment.device;
    operation.kind = segment.kind;
    operation.items.push_back({.segment = id});
  }
  if (absl::Status sort = CheckSort(**session, operation.revocable); !sort.ok()) return sort;
  operation.id = OperationId{state_.next_operation++};
  for (Operation::Item& item : operation.items) item.lease = LeaseId{state_.next_lease++};
  Pin(operation, **session);
  return operation;
}

// Prevents the segments from being taken away until Commit or Abort.
void Ledger::Pin(Operation& operation, Session& session, size_t steps) {
  ++session.operations;
  ++state_.open_operations;
  session.arriving += static_cast<uint32_t>(operation.items.size());
  CountLeases(*session.tenant, static_cast<int64_t>(operation.items.size()));
  queue_moves_ = true;  // waiters may have lost their place, or their right to wait (CheckSort)
  for (const Operation::Item& item : operation.items) ++state_.segments.at(item.segment)->pins;
  Expose(operation, session, steps);
}

absl::Status Ledger::Expose(Operation& operation, size_t steps) {
  absl::StatusOr<Session*> session = LiveSession(operation.session);
  if (!session.ok()) return session.status();
  Expose(operation, **session, steps);
  return absl::OkStatus();
}

// The process counts as exposed before a descriptor is sent, never after.
void Ledger::Expose(Operation& operation, Session& session, size_t steps) {
  for (; operation.exposed < operation.items.size() && steps > 0; ++operation.exposed, --steps) {
    const Operation::Item& item = operation.items[operation.exposed];
    Segment& segment = *state_.segments.at(item.segment);
    if (!segment.shared_out && segment.tenant != session.tenant) {
      segment.shared_out = true;
      changes_.Touch(item.segment);
    }
    ++segment.exposures[operation.session];
    changes_.Touch(operation.session, item.segment);
    if (session.exposed.insert(item.segment).second) {
      const ProcessKey key = state_.ProcessOf(session);
      Process& process = state_.processes[key];
      if (++process.exposures == 1 && waiting_processes_.contains(key)) {
        sorted_processes_.push_back(key);
      }
      process.revocable = operation.revocable;
      if (session.exposed.size() == 1) changes_.Touch(operation.session);  // firm or revocable
    }
    if (TraitsOf(segment.kind).pooled) Import(operation.session, session, segment.device);
  }
}

absl::Status Ledger::Commit(const Operation& operation) {
  size_t next = 0;
  return Commit(operation, next, SIZE_MAX).status();
}

absl::StatusOr<bool> Ledger::Commit(const Operation& operation, size_t& next, size_t steps) {
  Session& session = *state_.sessions.at(operation.session);
  const bool live = session.live;
  for (; next < operation.items.size() && steps > 0; ++next, --steps) {
    const Operation::Item& item = operation.items[next];
    Segment& segment = *state_.segments.at(item.segment);
    --segment.pins;
    if (segment.charge.revocable()) queue_moves_ = true;  // it can be revoked now
    if (operation.regrant) {
      --state_.regranting;
    } else {
      StopArriving(session, /*ended=*/!live);
    }
    if (live && !operation.regrant) {
      AddLease(item.lease, {.session = operation.session,
                            .segment = item.segment,
                            .publication = operation.publication,
                            .request_id = operation.request_id});
      changes_.Touch(item.lease);
      if (segment.lost) bereaved_.insert(operation.session);
      if (segment.charge.revoking()) revoked_.insert(operation.session);
    } else if (!operation.regrant) {
      Detach(operation.publication, operation.session);
    }
    Settle(item.segment, segment);
  }
  if (next < operation.items.size()) return false;
  --state_.open_operations;
  --session.operations;
  if (live && !operation.regrant) auditor_.Granted(operation);
  ForgetIfDone(operation.session, session);
  if (!live) return absl::AbortedError("the session ended while the request was being served");
  return true;
}

// Counts a lease as arrived at the session. `ended`: it ended before the session had it.
void Ledger::StopArriving(Session& session, bool ended) {
  --session.arriving;
  if (ended) CountLeases(*session.tenant, -1);
}

void Ledger::Abort(const Operation& operation, bool handed_over) {
  size_t next = 0;
  Abort(operation, handed_over, next, SIZE_MAX);
}

bool Ledger::Abort(const Operation& operation, bool handed_over, size_t& next, size_t steps) {
  Session& session = *state_.sessions.at(operation.session);
  // First all mappings by its process, then the states of the segments.
  const size_t unexposed = handed_over || operation.regrant ? 0 : operation.exposed;
  for (; next < unexposed && steps > 0; ++next, --steps) {
    const Operation::Item& item = operation.items[next];
    Segment& segment = *state_.segments.at(item.segment);
    Unexpose(item.segment, segment, operation.session, /*all=*/false);
    if (TraitsOf(segment.kind).pooled) {
      Unimport(operation.session, session, segment.device, /*all=*/false);
    }
  }
  for (; next < unexposed + operation.items.size() && steps > 0; ++next, --steps) {
    const Operation::Item& item = operation.items[next - unexposed];
    Segment& segment = *state_.segments.at(item.segment);
    if (operation.regrant) {
      --state_.regranting;
    } else {
      StopArriving(session, /*ended=*/true);
      Detach(operation.publication, operation.session);
    }
    --segment.pins;
    if (segment.charge.revocable()) queue_moves_ = true;  // as in Commit
    if (item.fresh && !handed_over && !(segment.made && state_.HeldByPool(segment))) {
      Doom(item.segment, segment);
    } else {
      Settle(item.segment, segment);
    }
  }
  if (next < unexposed + operation.items.size()) return false;
  --state_.open_operations;
  --session.operations;
  ForgetIfDone(operation.session, session);
  return true;
}

absl::Status Ledger::Release(SessionId session_id, absl::Span<const LeaseId> leases) {
  absl::StatusOr<Session*> session = LiveSession(session_id);
  if (!session.ok()) return session.status();
  std::vector<LeaseId> distinct(leases.begin(), leases.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (absl::Status had = CheckLeases(session_id, distinct); !had.ok()) return had;
  auditor_.Released(session_id, distinct);
  for (LeaseId lease : distinct) {
    EndLease(lease, /*unmapped=*/TrustsRelease(**session, lease));
  }
  return absl::OkStatus();
}

absl::Status Ledger::CheckLeases(SessionId session_id, absl::Span<const LeaseId> leases) const {
  auto session = state_.sessions.find(session_id);
  if (session == state_.sessions.end() || !session->second->live) return Ended();
  for (LeaseId lease : leases) {
    if (!session->second->leases.contains(lease)) return NoSuchLease(lease);
  }
  return absl::OkStatus();
}

absl::StatusOr<Secret> Ledger::Share(SessionId session_id, LeaseId lease_id, TicketScope scope,
                                     const Secret& candidate) {
  absl::StatusOr<Session*> session = LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (!(*session)->leases.contains(lease_id)) return NoSuchLease(lease_id);
  const SegmentId id = state_.leases.at(lease_id).segment;
  const Segment& segment = *state_.segments.at(id);
  if (segment.lost) return Lost(id);
  // A pool's descriptor opens all of its tenant's segments in the pool.
  if (!TraitsOf(segment.kind).any_tenant && scope == TicketScope::kAny) {
    return absl::FailedPreconditionError(
        "a segment of kind mempool cannot be shared with other tenants: the descriptor of its "
        "pool would open all that this tenant has in it; use kind vmm or ipc");
  }
  std::optional<Secret>& ticket = state_.leases.at(lease_id).tickets[static_cast<size_t>(scope)];
  if (!ticket) {
    ticket = candidate;
    state_.tickets.Insert(candidate, {lease_id, scope});
    changes_.Touch(lease_id);
  }
  return *ticket;
}

CreateSpec Ledger::Creation(const Operation& operation, const Operation::Item& item) const {
  const Segment& segment = *state_.segments.at(item.segment);
  return {.kind = segment.kind,
          .bytes = segment.charge.bytes(),
          .tenant = segment.tenant->name,
          .limit_bytes = state_.LimitOn(*segment.tenant, operation.device)};
}

void Ledger::Created(SegmentId segment) {
  state_.segments.at(segment)->made = true;
  changes_.Touch(segment);
}

}  // namespace gpumemd
