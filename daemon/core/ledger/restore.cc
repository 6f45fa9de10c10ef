// Continues from the state of an earlier daemon, at whatever moment it stopped.
#include <algorithm>
#include <utility>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

Ledger::Restored Ledger::Restore(const JournalImage& image, const Survivors& survivors) {
  Restored restored;
  state_.next_session = image.counters.session + 1;
  state_.next_segment = image.counters.segment + 1;
  state_.next_lease = image.counters.lease + 1;
  state_.next_publication = image.counters.publication + 1;
  state_.events.GoOnAfter(image.counters.ipc_event);
  state_.versions.Forget(image.counters.ended_version);
  RestoreSessions(image, survivors);
  RestoreSegments(image, survivors, restored);
  RestorePublications(image, survivors, restored);
  RestoreHolders(image);
  // A segment's holders determine its state.
  for (const auto& [id, record] : image.segments) {
    if (auto it = state_.segments.find(id); it != state_.segments.end()) Settle(id, *it->second);
  }
  std::vector<SessionId> ended;
  for (const auto& [id, session] : state_.sessions) {
    if (!session->live) ended.push_back(id);
  }
  restored.sessions = static_cast<uint32_t>(state_.sessions.size() - ended.size());
  // In the order in which they began, so that the choice of a successor does not depend on a hash.
  std::sort(ended.begin(), ended.end());
  for (SessionId id : ended) {
    // The earlier daemon may have been killed while it ended the session's holdings.
    size_t steps = SIZE_MAX;
    WindUp(id, *state_.sessions.at(id), steps);
    ForgetIfDone(id, *state_.sessions.at(id));
  }
  restored.segments = static_cast<uint32_t>(state_.segments.size());
  restored.leases = static_cast<uint32_t>(state_.leases.size());
  restored.publications = static_cast<uint32_t>(state_.publications.size());
  changes_.NoteNumbers(state_);  // Image() has them
  return restored;
}

void Ledger::RestoreSessions(const JournalImage& image, const Survivors& survivors) {
  for (const auto& [id, details] : survivors.sessions) {
    auto record = image.sessions.find(id);
    if (record == image.sessions.end()) continue;
    Tenant& tenant = EnsureTenant(record->second.tenant.view());
    auto session = std::make_unique<Session>();
    session->tenant = &tenant;
    session->details = details;
    session->token = record->second.token;
    session->opened = absl::FromUnixNanos(record->second.opened_ns);
    session->live = !record->second.ended;
    session->presence = Presence::kAway;
    session->details.connect_id = record->second.connect_id;
    if (session->live) {
      state_.tokens.emplace(session->token, id);
      ++tenant.live_sessions;
      if (session->details.connect_id != 0) {
        begun_before_[{state_.ProcessOf(*session), session->details.connect_id}] = id;
      }
    }
    CountSession(*session, 1);
    state_.sessions.emplace(id, std::move(session));
  }
  for (const auto& [key, answer] : image.answers) {
    auto session = state_.sessions.find(key.first);
    if (session == state_.sessions.end() || !session->second->live) continue;
    session->second->answers.push_back({answer.request_id, answer.number});
  }
}

void Ledger::RestoreSegments(const JournalImage& image, const Survivors& survivors,
                             Restored& restored) {
  absl::flat_hash_map<SegmentId, std::vector<SessionId>> held_by;
  for (const auto& [key, exposure] : image.exposures) {
    if (state_.sessions.contains(key.first)) held_by[key.second].push_back(key.first);
  }
  absl::btree_set<std::pair<journal::TenantName, journal::DeviceUuid>> open_pools;
  for (const auto& [key, import] : image.pool_imports) {
    if (!state_.sessions.contains(key.first)) continue;
    open_pools.emplace(image.sessions.at(key.first).tenant, key.second);
  }
  for (const auto& [id, record] : image.segments) {
    if (!record.made) continue;  // no process has ever seen it
    const absl::StatusOr<size_t> device = state_.FindDevice(record.device_uuid.view());
    const bool there = device.ok() && !record.lost && survivors.memory.contains(id);
    const std::vector<SessionId>& holders = held_by[id];
    if (!there && !record.lost && !holders.empty()) {
      restored.lost.push_back({.segment = id,
                               .tenant = std::string(record.tenant.view()),
                               .device_uuid = std::string(record.device_uuid.view()),
                               .kind = record.kind,
                               .bytes = record.bytes,
                               .sessions = holders});
    }
    // Processes that have its pool open hold it if it has no other holder.
    const bool held =
        !holders.empty() || (TraitsOf(record.kind).pooled &&
                             open_pools.contains(std::pair(record.tenant, record.device_uuid)));
    if (!device.ok() || (!there && !held)) continue;
    Tenant& tenant = EnsureTenant(record.tenant.view());
    auto segment = std::make_unique<Segment>();
    segment->tenant = &tenant;
    segment->device = *device;
    segment->kind = record.kind;
    segment->charge = Charge(&tenant.accounts[*device], record.bytes, record.revocable);
    segment->created = absl::FromUnixNanos(record.created_ns);
    segment->made = true;
    segment->lost = !there;
    segment->shared_out = record.shared_out;
    state_.segments.emplace(id, std::move(segment));
  }
}

void Ledger::RestorePublications(const JournalImage& image, const Survivors& survivors,
                                 Restored& restored) {
  for (const auto& [id, record] : image.publications) {
    auto publisher = state_.sessions.find(record.publisher);
    const bool publisher_lives = publisher != state_.sessions.end() && publisher->second->live;
    if (!record.persistent && !publisher_lives) {  // it has ended with its publisher
      state_.versions.Forget(record.version);
      continue;
    }
    Publication publication{.tenant = &EnsureTenant(record.tenant.view()),
                            .name = std::string(record.name.view()),
                            .version = record.version,
                            .metadata_bytes = record.metadata_bytes,
                            .to_any = record.any_tenant,
                            .ephemeral = !record.persistent,
                            .published = absl::FromUnixNanos(record.created_ns),
                            .idle_since = record.idle_since_ns == 0
                                              ? state_.now()  // the attached sessions may be gone
                                              : absl::FromUnixNanos(record.idle_since_ns),
                            .publisher = record.publisher};
    if (record.expire_after_ns != 0) {
      publication.expire_after = absl::Nanoseconds(record.expire_after_ns);
    }
    Restored::LostPublication lost{.tenant = std::string(record.tenant.view()),
                                   .name = publication.name,
                                   .version = record.version};
    for (auto item = image.publication_items.lower_bound({id, 0});
         item != image.publication_items.end() && item->first.first == id; ++item) {
      const SegmentId segment = item->second.segment;
      auto found = state_.segments.find(segment);
      if (found == state_.segments.end() || found->second->lost) {
        lost.segments.push_back(segment);
        continue;
      }
      publication.segments.push_back(segment);
      publication.bytes += found->second->charge.bytes();
    }
    const bool has_metadata = record.metadata_bytes == 0 || survivors.metadata.contains(id);
    Tenant& tenant = *publication.tenant;
    if (!lost.segments.empty() || !has_metadata) {
      state_.versions.Forget(record.version);
      restored.lost_publications.push_back(std::move(lost));
      ForgetIfIdle(tenant);
      continue;
    }
    for (SegmentId segment : publication.segments) ++state_.segments.at(segment)->publications;
    CountPublication(tenant, 1);
    tenant.metadata_bytes += publication.metadata_bytes;
    state_.metadata_bytes += publication.metadata_bytes;
    if (publisher != state_.sessions.end()) publisher->second->publications.insert(id);
    if (publisher_lives) {
      Session& session = *publisher->second;
      publication.publisher_pid = session.details.peer.pid;
      publication.publisher_name = session.details.client_name;
      if (publication.ephemeral) session.ephemeral.insert(id);
    }
    state_.by_name[{tenant.name, publication.name}] = id;
    expiries_.emplace(state_.ExpiryOf(publication), id);
    state_.publications.emplace(id, std::move(publication));
  }
}

void Ledger::RestoreHolders(const JournalImage& image) {
  for (const auto& [key, exposure] : image.exposures) {
    auto session = state_.sessions.find(key.first);
    auto segment = state_.segments.find(key.second);
    if (session == state_.sessions.end() || segment == state_.segments.end()) continue;
    segment->second->exposures[key.first] = exposure.count;
    session->second->exposed.insert(key.second);
    Process& process = state_.processes[state_.ProcessOf(*session->second)];
    ++process.exposures;
    process.revocable = image.sessions.at(key.first).revocable;
  }
  for (const auto& [id, record] : image.leases) {
    auto session = state_.sessions.find(record.session);
    auto segment = state_.segments.find(record.segment);
    if (session == state_.sessions.end() || segment == state_.segments.end()) continue;
    Lease lease{
        .session = record.session, .segment = record.segment, .request_id = record.request_id};
    if (record.publication != PublicationId{}) lease.publication = record.publication;
    for (size_t scope = 0; scope < record.tickets.size(); ++scope) {
      lease.tickets[scope] = record.tickets[scope];
      if (!record.tickets[scope]) continue;
      state_.tickets.Insert(*record.tickets[scope], {id, static_cast<TicketScope>(scope)});
    }
    AddLease(id, lease);
    CountLeases(*session->second->tenant, 1);
    if (auto source = state_.publications.find(record.publication);
        source != state_.publications.end()) {
      Publication& publication = source->second;
      expiries_.erase({state_.ExpiryOf(publication), source->first});
      ++publication.attached[record.session];
      expiries_.emplace(state_.ExpiryOf(publication), source->first);
    }
    if (segment->second->lost && session->second->live) bereaved_.insert(record.session);
    if (record.request_id != 0) session->second->regrants[record.request_id].push_back(id);
  }
  for (const auto& [key, import] : image.pool_imports) {
    auto session = state_.sessions.find(key.first);
    const absl::StatusOr<size_t> device = state_.FindDevice(key.second.view());
    if (session == state_.sessions.end() || !device.ok()) continue;
    session->second->tenant->pools[*device].importers[key.first] = import.count;
    session->second->imported.insert(*device);
  }
  for (const auto& [id, record] : image.ipc_events) {
    auto session = state_.sessions.find(record.session);
    if (session == state_.sessions.end()) continue;
    IpcEvents::Event event{.session = record.session,
                           .device_uuid = std::string(record.device_uuid.view()),
                           .handle = record.handle,
                           .tenant = session->second->tenant->name,
                           .name = std::string(record.name.view()),
                           .handed_out = record.handed_out};
    if (const Lease* lease = state_.leases.Find(record.lease); lease != nullptr) {
      event.lease = record.lease;
      event.segment = lease->segment;
    }
    state_.events.Restore(id, std::move(event));
  }
}

std::optional<Operation> Ledger::Regrant(SessionId session_id, uint64_t request_id,
                                         uint32_t count) {
  auto it = state_.sessions.find(session_id);
  if (request_id == 0 || it == state_.sessions.end() || !it->second->live) return std::nullopt;
  Session& session = *it->second;
  auto regrant = session.regrants.find(request_id);
  if (regrant == session.regrants.end()) return std::nullopt;
  std::vector<LeaseId> leases = std::move(regrant->second);
  session.regrants.erase(regrant);
  std::erase_if(leases, [&](LeaseId lease) { return !session.leases.contains(lease); });
  const bool usable = count > 0 && leases.size() == count &&
                      std::none_of(leases.begin(), leases.end(), [&](LeaseId lease) {
                        return state_.segments.at(state_.leases.at(lease).segment)->lost;
                      });
  if (!usable) {
    for (LeaseId lease : leases) EndLease(lease, TrustsRelease(session, lease));
    return std::nullopt;
  }
  Operation operation{.id = OperationId{state_.next_operation++},
                      .session = session_id,
                      .revocable = state_.processes.at(state_.ProcessOf(session)).revocable,
                      .regrant = true,
                      .request_id = request_id};
  for (LeaseId lease : leases) {
    const SegmentId id = state_.leases.at(lease).segment;
    Segment& segment = *state_.segments.at(id);
    operation.device = segment.device;
    operation.kind = segment.kind;
    operation.items.push_back({.lease = lease, .segment = id, .reused = true});
    ++segment.pins;
  }
  state_.regranting += operation.items.size();
  ++session.operations;
  ++state_.open_operations;
  return operation;
}

std::optional<Operation> Ledger::RegrantAttach(SessionId session_id, uint64_t request_id) {
  auto it = state_.sessions.find(session_id);
  if (request_id == 0 || it == state_.sessions.end()) return std::nullopt;
  auto regrant = it->second->regrants.find(request_id);
  if (regrant == it->second->regrants.end()) return std::nullopt;
  // If the lease has ended, its publication is no longer known.
  uint32_t count = 0;
  std::optional<PublicationId> publication;
  if (const Lease* lease = state_.leases.Find(regrant->second.front()); lease != nullptr) {
    publication = lease->publication;
  }
  auto found = publication ? state_.publications.find(*publication) : state_.publications.end();
  if (found != state_.publications.end())
    count = static_cast<uint32_t>(found->second.segments.size());
  std::optional<Operation> operation = Regrant(session_id, request_id, count);
  if (operation) operation->publication = publication;
  return operation;
}

absl::Status Ledger::Resume(SessionId id, const PeerIdentity& peer) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end() || !it->second->live) {
    return absl::NotFoundError("no session waits for this client; connect for a new one");
  }
  Session& session = *it->second;
  const PeerIdentity& its = session.details.peer;
  if (its.pid != peer.pid || its.start_time != peer.start_time) {
    return absl::NotFoundError("the session is another process's; connect for one of your own");
  }
  session.presence = Presence::kReturning;
  ++session.resumptions;
  session.may_reconcile = true;
  auditor_.SessionChanged(AuditEvent::kSessionResumed, id);
  return absl::OkStatus();
}

bool Ledger::HasCalls(SessionId id) const {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return false;
  const Session& session = *it->second;
  return session.in_flight > 0 || session.operations > 0 || !session.waiters.empty() ||
         !session.attach_waiters.empty();
}

size_t Ledger::DropRegrants(SessionId session_id, absl::Span<const uint64_t> requests,
                            size_t steps) {
  Session& session = *state_.sessions.at(session_id);
  for (size_t done = 0; done < requests.size(); ++done) {
    if (steps == 0) return done;
    auto regrant = session.regrants.find(requests[done]);
    if (regrant == session.regrants.end()) {
      --steps;
      continue;
    }
    std::vector<LeaseId>& granted = regrant->second;
    const size_t kept = granted.size() - std::min(steps, granted.size());
    const std::vector<LeaseId> leases(granted.begin() + static_cast<ptrdiff_t>(kept),
                                      granted.end());
    steps -= leases.size();
    granted.resize(kept);
    if (kept == 0) session.regrants.erase(regrant);
    auditor_.Released(session_id, leases,
                      "its client gave up the request and was never told of it");
    for (LeaseId lease : leases) {
      // The descriptors may have been sent, but the process has not mapped the segments.
      if (session.leases.contains(lease)) EndLease(lease, TrustsRelease(session, lease));
    }
    if (kept > 0) return done;
  }
  return requests.size();
}

absl::Status Ledger::BeginReconcile(SessionId id) {
  absl::StatusOr<Session*> session = LiveSession(id);
  if (!session.ok()) return session.status();
  if (!(*session)->may_reconcile) {
    return absl::FailedPreconditionError(
        "the session was not resumed, or has made calls since: there is nothing to reconcile");
  }
  if (HasCalls(id)) {
    // The pending calls could be granted leases that the client does not name: it no longer gets
    // their answers.
    return absl::UnavailableError(
        "calls of the session's earlier connection have yet to end; ask again");
  }
  absl::Status begun = BeginCall(id);
  // The client asks again if the answer is lost.
  (*session)->may_reconcile = true;
  return begun;
}

Ledger::Statement::Statement(absl::Span<const LeaseId> leases, absl::Span<const uint64_t> requests)
    : leases_(leases.begin(), leases.end()),
      requests_(requests.begin(), requests.end()),
      kept_(leases.begin(), leases.end()),
      asked_(requests.begin(), requests.end()) {}

absl::StatusOr<bool> Ledger::Reconcile(SessionId session_id, Statement& it, size_t steps) {
  using Stage = Statement::Stage;
  absl::StatusOr<Session*> found = LiveSession(session_id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  if (!it.resumptions_) it.resumptions_ = session.resumptions;
  if (*it.resumptions_ != session.resumptions) {
    return absl::UnavailableError("the session's client has connected anew meanwhile; ask again");
  }
  for (; it.stage_ == Stage::kNamed && steps > 0; --steps) {
    if (it.next_ == it.leases_.size()) {
      it.stage_ = Stage::kHeld;
      break;
    }
    const LeaseId lease = it.leases_[it.next_++];
    if (!session.leases.contains(lease)) it.unknown_.push_back(lease);
  }
  if (it.stage_ == Stage::kHeld) {
    std::vector<LeaseId> ended;
    auto lease = session.leases.lower_bound(it.lease_);
    for (; lease != session.leases.end() && steps > 0; ++lease, --steps) {
      it.lease_ = LeaseId{ToInt(*lease) + 1};
      const uint64_t request = state_.leases.at(*lease).request_id;
      // The client may not have received the answers of its lost connection, either.
      const bool asked = request != 0 && it.asked_.contains(request);
      if (asked) it.before_[request].push_back(*lease);
      if (!asked && !it.kept_.contains(*lease)) ended.push_back(*lease);
    }
    if (lease == session.leases.end()) {
      it.stage_ = Stage::kAsked;
      it.next_ = 0;
      it.replaced_.swap(session.regrants);
    }
    auditor_.Released(session_id, ended, "its client has connected anew and does not have it");
    for (LeaseId each : ended) EndLease(each, TrustsRelease(session, each));
  }
  for (; it.stage_ == Stage::kAsked && steps > 0; --steps) {
    if (it.next_ == it.requests_.size()) {
      session.regrants.swap(it.after_);
      // Segments that the process was being handed when the daemon ended: the client states that it
      // does not have them.
      const bool trusted = session.tenant->quota.release == ReleasePolicy::kTrust;
      it.stage_ = trusted && session.operations == 0 ? Stage::kMapped : Stage::kDone;
      break;
    }
    auto regrant = it.before_.find(it.requests_[it.next_++]);
    if (regrant == it.before_.end()) continue;
    it.after_.emplace(regrant->first, std::move(regrant->second));
    it.before_.erase(regrant);
  }
  for (; it.stage_ == Stage::kMapped && steps > 0; --steps) {
    auto next = session.exposed.lower_bound(it.segment_);
    if (next == session.exposed.end()) {
      it.stage_ = Stage::kDone;
      break;
    }
    const SegmentId id = *next;
    it.segment_ = SegmentId{ToInt(id) + 1};
    Segment& segment = *state_.segments.at(id);
    if (segment.tenant->quota.release != ReleasePolicy::kTrust) continue;
    auto leased = session.leased.find(id);
    const uint32_t has = leased == session.leased.end() ? 0 : leased->second;
    if (has == 0) {
      Unexpose(id, segment, session_id, /*all=*/true);
    } else if (uint32_t& times = segment.exposures.at(session_id); times > has) {
      times = has;
      changes_.Touch(session_id, id);
    }
    Settle(id, segment);
  }
  if (it.stage_ != Stage::kDone) return false;
  session.presence = Presence::kHere;
  return true;
}

absl::StatusOr<std::vector<LeaseId>> Ledger::Reconcile(SessionId session,
                                                       absl::Span<const LeaseId> leases,
                                                       absl::Span<const uint64_t> requests) {
  Statement statement(leases, requests);
  absl::StatusOr<bool> done = Reconcile(session, statement, SIZE_MAX);
  if (!done.ok()) return done.status();
  return statement.TakeUnknown();
}

}  // namespace gpumemd
