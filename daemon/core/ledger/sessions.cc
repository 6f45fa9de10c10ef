// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/sessions.h"

#include <utility>

#include "absl/container/btree_map.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/bounds.h"

namespace gpumemd {
namespace {

// Answers that each session's repeated requests can get again.
constexpr size_t kMaxAnswers = 64;

// Returns RESOURCE_EXHAUSTED if the tenant, the user or the daemon has too many sessions.
// `predecessor`: the tenant's session that ends as the new one begins. It may be another user's.
absl::Status CheckSessionCount(const LedgerState& state, records::Tenant& tenant, uid_t uid,
                               std::optional<SessionId> predecessor) {
  const uint32_t replaced = predecessor ? 1 : 0;
  const bool of_same_user = predecessor && state.sessions.at(*predecessor)->details.peer.uid == uid;
  for (const records::Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const uint64_t limit = each->quota.max_sessions.value_or(UINT32_MAX);
    const uint64_t used = each->tree_sessions - replaced;
    if (used < limit) continue;
    return DenyCount(tenant, Denial::Cause::kMaxSessions, 1, used, limit,
                     "close sessions that are not needed (gpumemctl ps lists them)", each);
  }
  const auto own = state.sessions_of_uid.find(uid);
  const uint64_t of_user =
      own == state.sessions_of_uid.end() ? 0 : own->second - (of_same_user ? 1 : 0);
  if (of_user >= state.bounds.max_sessions_per_uid) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_user,
                     state.bounds.max_sessions_per_uid,
                     "the user is at the limit of sessions (daemon.max_sessions_per_uid); close "
                     "those that are not needed");
  }
  const uint64_t of_all = state.sessions.size() - replaced;
  if (of_all >= state.bounds.max_sessions) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_all, state.bounds.max_sessions,
                     "the daemon is at its limit of sessions (daemon.max_sessions)");
  }
  if (of_user > 0 && of_all + state.bounds.reserved_sessions >= state.bounds.max_sessions) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_all,
                     state.bounds.max_sessions - state.bounds.reserved_sessions,
                     "the last of the daemon's sessions (daemon.max_sessions) are reserved for "
                     "users without a session");
  }
  return absl::OkStatus();
}

// Returns RESOURCE_EXHAUSTED if the tenant has too many calls in flight.
absl::Status CheckInFlight(records::Tenant& tenant) {
  const records::Tenant& books = *tenant.books;
  const uint64_t limit = books.quota.max_in_flight.value_or(UINT32_MAX);
  if (books.in_flight < limit) return absl::OkStatus();
  return DenyCount(tenant, Denial::Cause::kMaxInFlight, 1, books.in_flight, limit,
                   "wait for an answer before the next call, or put more segments into one call",
                   &books);
}

}  // namespace

absl::StatusOr<SessionId> Sessions::Open(absl::string_view name, SessionDetails details,
                                         const Secret& token) {
  if (absl::Status admits = tenants_.CheckAdmits(name); !admits.ok()) return admits;
  Tenant& tenant = tenants_.Ensure(name);
  const std::optional<SessionId> predecessor = Predecessor(tenant, details.peer);
  absl::Status room = CheckSessionCount(state_, tenant, details.peer.uid, predecessor);
  if (!room.ok()) {
    tenants_.ForgetIfIdle(tenant);
    return room;
  }
  SessionId id{state_.next_session++};
  auto session = std::make_unique<Session>();
  session->tenant = &tenant;
  session->details = std::move(details);
  session->token = token;
  session->opened = session->active = state_.now();
  CountSession(*session, 1);
  by_process_.emplace(state_.ProcessOf(*session), id);
  state_.sessions.emplace(id, std::move(session));
  state_.tokens.emplace(token, id);
  changes_.Touch(id);
  ++tenant.live_sessions;
  auditor_.SessionChanged(AuditEvent::kSessionOpened, id);
  if (predecessor) ForgetIfDone(*predecessor, *state_.sessions.at(*predecessor));
  return id;
}

absl::Status Sessions::CheckRoom(absl::string_view name, const SessionDetails& details) {
  if (state_.draining) return Draining();
  if (absl::Status admits = tenants_.CheckAdmits(name); !admits.ok()) return admits;
  const ProcessKey process = {details.peer.pid, details.peer.start_time};
  // That session ends as the new one begins.
  if (begun_before_.contains({process, details.connect_id})) return absl::OkStatus();
  Tenant& tenant = tenants_.Ensure(name);
  absl::Status room =
      CheckSessionCount(state_, tenant, details.peer.uid, Predecessor(tenant, details.peer));
  tenants_.ForgetIfIdle(tenant);
  return room;
}

void Sessions::CountSession(const Session& session, int change) {
  const uid_t uid = session.details.peer.uid;
  if ((state_.sessions_of_uid[uid] += static_cast<uint32_t>(change)) == 0)
    state_.sessions_of_uid.erase(uid);
  Tenant& tenant = *session.tenant;
  tenant.sessions += static_cast<uint32_t>(change);
  for (Tenant* each = &tenant; each != nullptr; each = each->parent) {
    each->tree_sessions += static_cast<uint32_t>(change);
  }
}

absl::Status Sessions::BeginCall(SessionId id) {
  absl::StatusOr<Session*> session = state_.LiveSession(id);
  if (!session.ok()) return session.status();
  if (absl::Status room = CheckInFlight(*(*session)->tenant); !room.ok()) return room;
  ++(*session)->in_flight;
  ++(*session)->tenant->books->in_flight;
  (*session)->may_reconcile = false;
  return absl::OkStatus();
}

void Sessions::EndCall(SessionId id) {
  auto it = state_.sessions.find(id);  // still there: a call in flight keeps it
  --it->second->in_flight;
  --it->second->tenant->books->in_flight;
  ForgetIfDone(id, *it->second);
}

absl::Status Sessions::BecomeWatch(SessionId id) {
  Session& session = *state_.sessions.at(id);
  if (session.watches >= state_.bounds.max_watches_per_session) {
    return DenyCount(*session.tenant, Denial::Cause::kDaemonLimit, 1, session.watches,
                     state_.bounds.max_watches_per_session,
                     "the session is at its limit of watches; end those that are not needed");
  }
  if (session.tenant->books->watches >= state_.bounds.max_watches_per_tenant) {
    return DenyCount(*session.tenant, Denial::Cause::kDaemonLimit, 1,
                     session.tenant->books->watches, state_.bounds.max_watches_per_tenant,
                     "the tenant is at its limit of watches; use one for each process");
  }
  ++session.watches;
  ++session.tenant->books->watches;
  --session.in_flight;
  --session.tenant->books->in_flight;
  return absl::OkStatus();
}

void Sessions::EndWatch(SessionId id) {
  auto it = state_.sessions.find(id);  // still there, as in EndCall
  --it->second->watches;
  --it->second->tenant->books->watches;
  ForgetIfDone(id, *it->second);
}

bool Sessions::HasCalls(SessionId id) const {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return false;
  const Session& session = *it->second;
  return session.in_flight > 0 || session.operations > 0 || !session.waiters.empty() ||
         !session.attach_waiters.empty();
}

absl::Status Sessions::Resume(SessionId id, const PeerIdentity& peer, bool certain) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end() || !it->second->live) {
    return absl::NotFoundError("this client has no session to resume; connect for a new one");
  }
  Session& session = *it->second;
  const PeerIdentity& its = session.details.peer;
  // /proc may hide a start time (0). The client has the session's token in any case.
  const bool known = its.start_time != 0 && peer.start_time != 0;
  if (its.pid != peer.pid || (known && its.start_time != peer.start_time)) {
    return absl::NotFoundError("the session belongs to another process; connect for a new one");
  }
  session.presence = Presence::kReturning;
  ++session.resumptions;
  session.may_reconcile = true;
  if (certain && !session.details.certain) {
    session.details.certain = true;
    changes_.Touch(id);
  }
  auditor_.SessionChanged(AuditEvent::kSessionResumed, id);
  return absl::OkStatus();
}

void Sessions::RememberAnswer(SessionId id, Session& session, uint64_t request, uint64_t number) {
  if (request == 0) return;
  session.answers.push_back({request, number});
  changes_.Touch(RequestKey(id, request));
  if (session.answers.size() <= kMaxAnswers) return;
  changes_.Touch(RequestKey(id, session.answers.front().request));
  session.answers.pop_front();
}

void Sessions::ForgetIfDone(SessionId id, Session& session) {
  if (!OnlyImports(session)) return;
  if (!session.imported.empty() && !HandOverImports(id, session)) return;
  Tenant& tenant = *session.tenant;
  CountSession(session, -1);
  for (PublicationId publication : session.publications)
    changes_.Touch(publication);  // now without a publisher
  by_process_.erase({state_.ProcessOf(session), id});
  state_.sessions.erase(id);
  changes_.Touch(id);
  effects_.forgotten.push_back(id);
  tenants_.ForgetIfIdle(tenant);
}

bool Sessions::OnlyImports(const Session& session) {
  return !session.live && !session.ending && session.exposed.empty() && session.operations == 0 &&
         session.in_flight == 0 && session.watches == 0 && session.waiters.empty() &&
         session.attach_waiters.empty();
}

// A process that connects again and again thus does not leave many sessions. Takes the session with
// the lowest id.
bool Sessions::HandOverImports(SessionId id, Session& session) {
  const std::optional<SessionId> successor =
      FirstOf(session.details.peer, [&](SessionId other_id, const Session& other) {
        return other_id != id && other.tenant == session.tenant && !other.process_gone;
      });
  if (!successor) return false;
  for (size_t device : session.imported) {
    absl::btree_map<SessionId, uint32_t>& importers = session.tenant->pools[device].importers;
    const uint32_t times = importers.at(id);
    importers.erase(id);
    importers[*successor] += times;
    changes_.Touch(id, device);
    changes_.Touch(*successor, device);
  }
  state_.sessions.at(*successor)->imported.insert(session.imported.begin(), session.imported.end());
  session.imported.clear();
  return true;
}

std::optional<SessionId> Sessions::Predecessor(const Tenant& tenant,
                                               const PeerIdentity& peer) const {
  // The only one: all others have handed their imports over to it.
  return FirstOf(peer, [&](SessionId, const Session& session) {
    return session.tenant == &tenant && !session.process_gone && OnlyImports(session);
  });
}

std::optional<SessionId> Sessions::FirstOf(
    const PeerIdentity& peer, absl::FunctionRef<bool(SessionId, const Session&)> fits) const {
  if (peer.start_time == 0) return std::nullopt;  // unknown: pids are used again
  const ProcessKey process = {peer.pid, peer.start_time};
  for (auto it = by_process_.lower_bound({process, SessionId{}});
       it != by_process_.end() && it->first == process; ++it) {
    if (fits(it->second, *state_.sessions.at(it->second))) return it->second;
  }
  return std::nullopt;
}

void Sessions::Restore(SessionId id, std::unique_ptr<Session> restored) {
  Session& session = *state_.sessions.emplace(id, std::move(restored)).first->second;
  CountSession(session, 1);
  by_process_.emplace(state_.ProcessOf(session), id);
  if (!session.live) return;
  state_.tokens.emplace(session.token, id);
  ++session.tenant->live_sessions;
  if (session.details.connect_id == 0) return;
  begun_before_[{state_.ProcessOf(session), session.details.connect_id}] = id;
}

std::optional<SessionId> Sessions::TakeBegunBefore(const SessionDetails& details) {
  const ProcessKey process = {details.peer.pid, details.peer.start_time};
  const auto begun = begun_before_.extract({process, details.connect_id});
  if (!begun) return std::nullopt;
  auto it = state_.sessions.find(begun.mapped());
  if (it == state_.sessions.end() || it->second->presence != Presence::kAway) return std::nullopt;
  return begun.mapped();
}

}  // namespace gpumemd
