// What the ledger shows of itself, and the check that it is right.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

LeaseView Ledger::Describe(const Operation::Item& item) const {
  const Segment& segment = *segments_.at(item.segment);
  return {.lease = item.lease,
          .segment = item.segment,
          .device_uuid = devices_[segment.device].uuid,
          .kind = segment.kind,
          .bytes = segment.charge.bytes(),
          .tenant = segment.tenant->name,
          .reused = item.reused};
}

TenantView Ledger::View(const Tenant& tenant) const {
  TenantView view{.name = tenant.name,
                  .configured = tenant.configured,
                  .quota = tenant.quota,
                  .charged = TotalCharged(tenant),
                  .segments = TotalSegments(tenant),
                  .sessions = tenant.tree_sessions,
                  .in_flight = tenant.in_flight,
                  .waiting = tenant.tree_waiting,
                  .publications = tenant.tree_publications,
                  .denials_by_cause = tenant.denials};
  for (const auto& [cause, count] : tenant.denials) view.denials += count;
  for (const Tenant* each = tenant.parent; each != nullptr; each = each->parent) {
    view.above.push_back(each->name);
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Account& account = tenant.accounts[i];
    view.devices.push_back(
        {.device_uuid = devices_[i].uuid,
         .leased = account.bytes(SegmentState::kLeased),
         .retained = account.bytes(SegmentState::kRetained),
         .lingering = account.bytes(SegmentState::kLingering),
         .charged = account.charged(),
         .limit = LimitOn(tenant, i),
         .peak = account.peak(),
         .guarantee = account.guarantee(),
         .borrowed = account.held() - std::min(account.held(), account.guarantee()),
         .revocable = account.revocable(),
         .unbrokered = UnbrokeredOf(tenant, devices_[i].uuid)});
  }
  if (tenant.tree_waiting == 0) return view;
  for (const auto& [id, waiter] : waiters_) {
    if (!waiter.asked_to || !IsUnder(*waiter.request.tenant, tenant)) continue;
    DeviceUsageView& device = view.devices[waiter.request.device];
    device.waited_for += waiter.request.bytes * waiter.request.count;
    ++device.waiting;
  }
  return view;
}

absl::StatusOr<TenantView> Ledger::GetTenant(absl::string_view name) const {
  const Tenant* tenant = FindTenant(name);
  if (tenant == nullptr) return NoSuchTenant(name);
  return View(*tenant);
}

absl::StatusOr<std::string> Ledger::TenantOf(SessionId id) const {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return absl::AbortedError("the session has ended; connect again");
  return it->second->tenant->name;
}

std::vector<TenantView> Ledger::ListTenants() const {
  std::vector<TenantView> views;
  for (const auto& [name, tenant] : tenants_) views.push_back(View(*tenant));
  return views;
}

namespace {

template <typename Map>
auto KeysOf(const Map& map) {
  std::vector<typename Map::key_type> keys;
  keys.reserve(map.size());
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

template <typename T>
std::vector<T> Sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

size_t Ledger::LeaseCountOf(SessionId session) const {
  auto it = sessions_.find(session);
  return it == sessions_.end() ? 0 : it->second->leases.size();
}

std::vector<SessionId> Ledger::SessionIds() const { return KeysOf(sessions_); }
std::vector<SegmentId> Ledger::SegmentIds() const { return KeysOf(segments_); }

absl::Status Ledger::CheckListed(absl::string_view tenant, absl::string_view device) const {
  if (!tenant.empty() && FindTenant(tenant) == nullptr) return NoSuchTenant(tenant);
  return device.empty() ? absl::OkStatus() : FindDevice(device).status();
}

void Ledger::View(absl::Span<const SessionId> ids, absl::string_view tenant,
                  std::vector<SessionView>& views) const {
  for (SessionId id : ids) {
    auto it = sessions_.find(id);
    if (it == sessions_.end()) continue;
    const Session& session = *it->second;
    if (!tenant.empty() && session.tenant->name != tenant) continue;
    views.push_back({.id = id,
                     .tenant = session.tenant->name,
                     .live = session.live,
                     .presence = session.presence,
                     .details = session.details,
                     .leases = static_cast<uint32_t>(session.leases.size()),
                     .leased_bytes = session.leased_bytes,
                     .unbrokered = UnbrokeredOf(id),
                     .age = now_() - session.opened});
  }
}

absl::StatusOr<std::vector<SessionView>> Ledger::ListSessions(absl::string_view tenant) const {
  if (absl::Status known = CheckListed(tenant, ""); !known.ok()) return known;
  std::vector<SessionView> views;
  View(Sorted(SessionIds()), tenant, views);
  return views;
}

void Ledger::View(absl::Span<const SegmentId> ids, absl::string_view tenant,
                  absl::string_view device, std::vector<SegmentView>& views) const {
  for (SegmentId id : ids) {
    auto it = segments_.find(id);
    if (it == segments_.end()) continue;
    const Segment& segment = *it->second;
    if (!tenant.empty() && segment.tenant->name != tenant) continue;
    if (!device.empty() && devices_[segment.device].uuid != device) continue;
    SegmentView view{.id = id,
                     .tenant = segment.tenant->name,
                     .device_uuid = devices_[segment.device].uuid,
                     .kind = segment.kind,
                     .bytes = segment.charge.bytes(),
                     .state = segment.charge.state(),
                     .leases = segment.leases,
                     .publications = segment.publications,
                     .lost = segment.lost,
                     .revocable = segment.charge.revocable(),
                     .age = now_() - segment.created};
    const auto& holders = segment.exposures.empty() && HeldByPool(segment)
                              ? PoolOf(segment).importers
                              : segment.exposures;
    for (const auto& [session, count] : holders) view.sessions.push_back(session);
    views.push_back(std::move(view));
  }
}

absl::StatusOr<std::vector<SegmentView>> Ledger::ListSegments(absl::string_view tenant,
                                                              absl::string_view device) const {
  if (absl::Status known = CheckListed(tenant, device); !known.ok()) return known;
  std::vector<SegmentView> views;
  View(Sorted(SegmentIds()), tenant, device, views);
  return views;
}

std::optional<LeaseId> Ledger::View(SessionId session_id, std::optional<SegmentId> only,
                                    LeaseId next, size_t count,
                                    std::vector<LeaseHolderView>& views) const {
  auto found = sessions_.find(session_id);
  if (found == sessions_.end()) return std::nullopt;
  const Session& session = *found->second;
  if (only && !session.leased.contains(*only)) return std::nullopt;
  auto it = session.leases.lower_bound(next);
  for (; it != session.leases.end() && count > 0; ++it, --count) {
    const Lease& lease = leases_.at(*it);
    if (only && lease.segment != *only) continue;
    LeaseHolderView view{.id = *it,
                         .segment = lease.segment,
                         .session = session_id,
                         .tenant = session.tenant->name,
                         .attached = lease.publication.has_value(),
                         .shared = lease.tickets[0].has_value(),
                         .shared_to_any = lease.tickets[1].has_value()};
    if (lease.publication) {
      auto through = publications_.find(*lease.publication);
      if (through != publications_.end()) {
        view.publication = absl::StrCat(through->second.tenant->name, "/", through->second.name);
        view.version = through->second.version;
      }
    }
    views.push_back(std::move(view));
  }
  return it == session.leases.end() ? std::nullopt : std::optional(*it);
}

std::vector<PublicationHolderView> Ledger::PublicationHolders(std::optional<SegmentId> only) const {
  std::vector<PublicationHolderView> holders;
  for (const auto& [name, id] : by_name_) {
    const Publication& publication = publications_.at(id);
    const std::vector<SegmentId>& segments = publication.segments;
    if (only && std::find(segments.begin(), segments.end(), *only) == segments.end()) continue;
    holders.push_back({.tenant = publication.tenant->name,
                       .name = publication.name,
                       .version = publication.version,
                       .segments = segments});
  }
  return holders;
}

HoldersView Ledger::ListHolders(std::optional<SegmentId> only) const {
  HoldersView holders{.publications = PublicationHolders(only)};
  for (SessionId session : SessionIds()) View(session, only, LeaseId{}, SIZE_MAX, holders.leases);
  std::sort(holders.leases.begin(), holders.leases.end(),
            [](const LeaseHolderView& a, const LeaseHolderView& b) { return a.id < b.id; });
  return holders;
}

absl::Status Ledger::CheckInvariants() const {
  const auto wrong = [](auto... what) { return absl::InternalError(absl::StrCat(what...)); };
  const size_t devices = devices_.size();

  // Of a process that has gone nothing is left, once that has ended.
  const auto is_gone = [](const Session& session) {
    return session.process_gone && !session.ending;
  };

  // Leases, and how many each segment has.
  absl::flat_hash_map<SegmentId, uint32_t> leases_of;
  absl::flat_hash_map<std::pair<SessionId, SegmentId>, uint32_t> leases_of_session;
  std::map<const Tenant*, uint64_t> tenants_leases;
  size_t tickets = 0;
  const auto check_lease = [&](LeaseId id, const Lease& lease) -> absl::Status {
    auto session = sessions_.find(lease.session);
    if (session == sessions_.end() || !(session->second->live || session->second->ending)) {
      return wrong("lease ", ToInt(id), " has no live session");
    }
    if (!session->second->leases.contains(id)) return wrong("session misses lease ", ToInt(id));
    auto segment = segments_.find(lease.segment);
    if (segment == segments_.end()) return wrong("lease ", ToInt(id), " has no segment");
    if (!segment->second->exposures.contains(lease.session)) {
      return wrong("the holder of lease ", ToInt(id), " does not count as exposed");
    }
    ++leases_of[lease.segment];
    ++leases_of_session[{lease.session, lease.segment}];
    ++tenants_leases[session->second->tenant];
    for (const auto& ticket : lease.tickets) {
      if (!ticket) continue;
      ++tickets;
      const TicketEntry* entry = tickets_.Find(*ticket);
      if (entry == nullptr || entry->lease != id) {
        return wrong("a ticket of lease ", ToInt(id), " leads elsewhere");
      }
    }
    return absl::OkStatus();
  };
  absl::Status leases;
  leases_.ForEach([&](LeaseId id, const Lease& lease) { leases.Update(check_lease(id, lease)); });
  if (!leases.ok()) return leases;
  if (tickets != tickets_.size()) return wrong("a ticket outlived its lease");

  // Segments: their state follows from their holders; their charges add up.
  std::map<std::pair<const Tenant*, size_t>, std::array<uint64_t, kSegmentStates>> by_tenant;
  std::map<const Tenant*, uint64_t> segments_by_tenant;
  std::map<std::pair<const Tenant*, size_t>, size_t> own_retained;
  std::map<std::pair<const Tenant*, size_t>, std::array<uint64_t, 2>> revocable_by_tenant;
  std::map<ProcessKey, uint32_t> exposures_of;
  size_t revoking = 0;
  std::vector<uint64_t> by_device(devices, 0);
  uint64_t pins = 0;
  for (const auto& [id, segment] : segments_) {
    const SegmentState state = segment->charge.state();
    if (segment->leases != leases_of[id]) return wrong("segment ", ToInt(id), " miscounts leases");
    pins += segment->pins;
    if ((segment->lost || segment->shared_out || segment->kind == Kind::kMempool) &&
        state == SegmentState::kRetained) {
      return wrong("segment ", ToInt(id), " is kept for reuse though nobody may reuse it");
    }
    const bool idle = state == SegmentState::kLingering && segment->exposures.empty();
    if ((idle && !HeldByPool(*segment)) ||
        PoolOf(*segment).idle.Contains(id, segment->kind, segment->charge.bytes()) !=
            (idle && !segment->lost) ||
        PoolOf(*segment).lost.contains(id) != (idle && segment->lost)) {
      return wrong("segment ", ToInt(id), " is wrongly idle in its pool, or not");
    }
    const bool leased = segment->leases > 0 || segment->publications > 0;
    const bool held = leased || segment->pins > 0 || !segment->exposures.empty();
    if ((state == SegmentState::kRetained || state == SegmentState::kReleasing) && held) {
      return wrong("segment ", ToInt(id), " is given up while something holds it");
    }
    if ((state == SegmentState::kLeased) != leased) {
      return wrong("segment ", ToInt(id), " is in the wrong state for its leases");
    }
    if (state == SegmentState::kRetained && !segment->tenant->retained[segment->device].Contains(
                                                id, segment->kind, segment->charge.bytes())) {
      return wrong("segment ", ToInt(id), " is retained and in no pool");
    }
    if (state == SegmentState::kLingering && segment->pins > 0) {
      return wrong("segment ", ToInt(id), " lingers though an operation holds it");
    }
    if (state == SegmentState::kPending && segment->pins == 0) {
      return wrong("segment ", ToInt(id), " is pending without an operation");
    }
    for (const auto& [session_id, count] : segment->exposures) {
      auto session = sessions_.find(session_id);
      if (session == sessions_.end() || is_gone(*session->second) ||
          !session->second->exposed.contains(id) || count == 0) {
        return wrong("segment ", ToInt(id), " is exposed to nobody's session ", ToInt(session_id));
      }
      ++exposures_of[ProcessOf(*session->second)];
      if (segment->charge.revocable() && !processes_.at(ProcessOf(*session->second)).revocable) {
        return wrong("a process with firm leases may map segment ", ToInt(id),
                     ", which is revocable");
      }
      if (segment->kind == Kind::kMempool && !session->second->ending &&
          !PoolOf(*segment).importers.contains(session_id)) {
        return wrong("session ", ToInt(session_id), " may map what is in a pool, and not open it");
      }
    }
    const bool given_up = state == SegmentState::kRetained || state == SegmentState::kReleasing;
    if (segment->charge.revoking() != revoking_.contains(id) ||
        (segment->charge.revoking() && (given_up || !segment->charge.revocable()))) {
      return wrong("segment ", ToInt(id), " is wrongly being taken back, or not");
    }
    revoking += segment->charge.revoking() ? 1 : 0;
    own_retained[{segment->tenant, segment->device}] += state == SegmentState::kRetained ? 1 : 0;
    for (const Tenant* each = segment->tenant; each != nullptr; each = each->parent) {
      by_tenant[{each, segment->device}][static_cast<size_t>(state)] += segment->charge.bytes();
      ++segments_by_tenant[each];
      if (given_up || !segment->charge.revocable()) continue;
      auto& [revocable, taken_back] = revocable_by_tenant[{each, segment->device}];
      revocable += segment->charge.bytes();
      taken_back += segment->charge.revoking() ? segment->charge.bytes() : 0;
    }
    by_device[segment->device] += segment->charge.bytes();
  }
  for (size_t i = 0; i < devices; ++i) {
    if (device_accounts_[i].charged() != by_device[i])
      return wrong("device ", i, " does not add up");
    if (by_device[i] > devices_[i].capacity_bytes) return wrong("device ", i, " is over capacity");
  }

  if (revoking != revoking_.size()) return wrong("what is being taken back is miscounted");
  if (exposures_of.size() != processes_.size()) return wrong("a process is not forgotten");
  for (const auto& [key, process] : processes_) {
    if (exposures_of[key] != process.exposures) return wrong("a process miscounts its segments");
  }

  // Tenants and sessions.
  std::map<const Tenant*, std::array<uint32_t, 3>> counts;  // sessions, live, in flight
  std::map<const Tenant*, uint32_t> tree_sessions, tree_waiting;
  absl::flat_hash_map<uid_t, uint32_t> of_uid;
  absl::btree_set<const Tenant*> have_ending;
  size_t live = 0, waiters = 0;
  uint64_t operations = 0, arriving = 0;
  for (const auto& [id, session] : sessions_) {
    for (const Tenant* each = session->tenant; each != nullptr; each = each->parent) {
      ++tree_sessions[each];
      for (WaiterId waiter : session->waiters) {
        auto it = waiters_.find(waiter);
        if (it == waiters_.end() || it->second.session != id || !session->live) {
          return wrong("a waiter of session ", ToInt(id), " is not known");
        }
        tree_waiting[each] += it->second.asked_to ? 1 : 0;
      }
      tree_waiting[each] += static_cast<uint32_t>(session->attach_waiters.size());
    }
    waiters += session->waiters.size();
    ++of_uid[session->details.peer.uid];
    auto& [all, alive, calls] = counts[session->tenant];
    ++all;
    alive += session->live ? 1 : 0;
    calls += session->in_flight;
    operations += session->operations;
    live += session->live ? 1 : 0;
    if (session->ending != ending_.contains(id) || (session->ending && session->live)) {
      return wrong("session ", ToInt(id), " is wrongly ending, or not");
    }
    if (session->ending) have_ending.insert(session->tenant);
    if (!session->live && !session->ending && !session->leases.empty()) {
      return wrong("a closed session holds leases");
    }
    uint64_t leased_bytes = 0;
    for (const auto& [segment, count] : session->leased) {
      auto it = leases_of_session.find({id, segment});
      if (it == leases_of_session.end() || it->second != count) {
        return wrong("session ", ToInt(id), " miscounts its leases of a segment");
      }
      leased_bytes += segments_.at(segment)->charge.bytes();
      leases_of_session.erase(it);
    }
    if (leased_bytes != session->leased_bytes) {
      return wrong("session ", ToInt(id), " miscounts the bytes that it leases");
    }
    tenants_leases[session->tenant] += session->arriving;
    arriving += session->arriving;
    if (session->operations == 0 && session->arriving != 0) {
      return wrong("session ", ToInt(id), " is given leases by no operation");
    }
    for (SegmentId segment : session->exposed) {
      auto it = segments_.find(segment);
      if (it == segments_.end() || !it->second->exposures.contains(id)) {
        return wrong("session ", ToInt(id), " is exposed to a segment that does not know");
      }
    }
    for (size_t device : session->imported) {
      if (!session->tenant->pools[device].importers.contains(id)) {
        return wrong("session ", ToInt(id), " imports a pool that does not know");
      }
    }
  }
  if (!leases_of_session.empty()) return wrong("a session does not know what it leases");
  if (waiters != waiters_.size()) return wrong("a waiter outlived its session");
  if (absl::Status queue = CheckQueue(); !queue.ok()) return queue;
  if (of_uid != sessions_of_uid_) return wrong("a user's sessions are miscounted");
  if (live != tokens_.size()) return wrong("tokens and live sessions differ");
  if (operations != open_operations_) return wrong("sessions miscount their operations");
  if (operations == 0 && pins != 0) return wrong("pins without operations");
  if (arriving + regranting_ != pins) {
    return wrong("operations have ", pins, " items, of which ", arriving, " arrive and ",
                 regranting_, " are handed over again");
  }
  uint64_t lease_count = 0;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant->leases != tenants_leases[tenant.get()]) {
      return wrong("tenant ", name, " miscounts its leases");
    }
    lease_count += tenant->leases;
    const auto& [all, alive, calls] = counts[tenant.get()];
    if (tenant->sessions != all || tenant->live_sessions != alive || tenant->in_flight != calls) {
      return wrong("tenant ", name, " miscounts its sessions or calls");
    }
    if (tenant->tree_sessions != tree_sessions[tenant.get()] ||
        tenant->tree_waiting != tree_waiting[tenant.get()]) {
      return wrong("tenant ", name, " miscounts the sessions or waiters under it");
    }
    if (TotalSegments(*tenant) != segments_by_tenant[tenant.get()]) {
      return wrong("tenant ", name, " miscounts its segments");
    }
    for (size_t i = 0; i < devices; ++i) {
      for (size_t state = 0; state < kSegmentStates; ++state) {
        if (tenant->accounts[i].bytes(static_cast<SegmentState>(state)) !=
            by_tenant[{tenant.get(), i}][state]) {
          return wrong("tenant ", name, " does not add up on device ", i);
        }
      }
      const auto& [revocable, taken_back] = revocable_by_tenant[{tenant.get(), i}];
      if (tenant->accounts[i].revocable() != revocable ||
          tenant->accounts[i].revoking() != taken_back) {
        return wrong("tenant ", name, " miscounts what is revocable on device ", i);
      }
      if (tenant->retained[i].size() != own_retained[{tenant.get(), i}]) {
        return wrong("tenant ", name, " lost a retained segment on device ", i);
      }
      const Pool& pool = tenant->pools[i];
      for (const auto& [session_id, times] : pool.importers) {
        auto session = sessions_.find(session_id);
        if (times == 0 || session == sessions_.end() || is_gone(*session->second) ||
            session->second->tenant != tenant.get() || !session->second->imported.contains(i)) {
          return wrong("a pool of tenant ", name, " is open in nobody's process");
        }
      }
      if (pool.idle.bytes() > tenant->accounts[i].bytes(SegmentState::kLingering)) {
        return wrong("a pool of tenant ", name, " has more idle than there is");
      }
      const uint64_t retained = tenant->retained[i].bytes();
      const bool serves = alive > 0 || have_ending.contains(tenant.get());
      if (retained > 0 && (draining_ || !serves || !WithinLimits(*tenant, i) ||
                           retained > MaxRetainedOn(*tenant, i))) {
        return wrong("tenant ", name, " retains what it should give up on device ", i);
      }
    }
    if (!tenant->configured && !tenant->quota_set && all == 0 && TotalSegments(*tenant) == 0 &&
        tenant->children == 0) {
      return wrong("tenant ", name, " should have been forgotten");
    }
  }
  if (lease_count != lease_count_) return wrong("the daemon miscounts its leases");
  return CheckPublications();
}

}  // namespace gpumemd
