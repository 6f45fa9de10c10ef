// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/inspect/invariants.h"

#include <array>
#include <map>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/core/driver/overheads.h"

namespace gpumemd {
namespace {

using Tenant = records::Tenant;
using Session = records::Session;
using Lease = records::Lease;
using Pool = records::Pool;
using TicketEntry = records::TicketEntry;
using ProcessKey = LedgerState::ProcessKey;

// Checks the indexes of retained memory, and of memory that can be taken back.
absl::Status CheckIndexes(const LedgerState& ledger) {
  using Key = std::pair<const Tenant*, size_t>;  // a null tenant: of the device
  std::map<Key, Retainers> retainers;
  std::map<Key, RevocableCharges> to_revoke;
  for (const auto& [name, tenant] : ledger.tenants) {
    for (size_t i = 0; i < ledger.devices.size(); ++i) {
      const uint64_t bytes = tenant->retained[i].bytes();
      if (bytes == 0) continue;
      retainers[{nullptr, i}].Change(tenant.get(), name, 0, bytes);
      for (const Tenant* each = tenant.get(); each != nullptr; each = each->parent) {
        retainers[{each, i}].Change(tenant.get(), name, 0, bytes);
      }
    }
  }
  for (const auto& [id, segment] : ledger.segments) {
    const Charge& charge = segment->charge;
    const bool held =
        charge.state() == SegmentState::kLeased || charge.state() == SegmentState::kLingering;
    if (!held || !charge.revocable() || charge.revoking() || charge.stuck()) continue;
    const ChargeRank rank = {segment->tenant->quota.priority, id};
    to_revoke[{nullptr, segment->device}].Add(rank, charge.bytes());
    for (const Tenant* each = segment->tenant; each != nullptr; each = each->parent) {
      to_revoke[{each, segment->device}].Add(rank, charge.bytes());
    }
  }
  const auto is = [](const auto& index, const auto& expected, const Key& key) {
    const auto found = expected.find(key);
    if (found != expected.end()) return index == found->second;
    return index == std::decay_t<decltype(index)>();
  };
  const auto wrong = [](absl::string_view name, size_t device) {
    return absl::InternalError(absl::StrCat("the index of what can be taken from ", name,
                                            " on device ", device, " is wrong"));
  };
  for (size_t i = 0; i < ledger.devices.size(); ++i) {
    if (!is(ledger.retainers[i], retainers, {nullptr, i}) ||
        !is(ledger.device_accounts[i].to_revoke(), to_revoke, {nullptr, i})) {
      return wrong("all tenants", i);
    }
    for (const auto& [name, tenant] : ledger.tenants) {
      if (!is(tenant->retainers[i], retainers, {tenant.get(), i}) ||
          !is(tenant->accounts[i].to_revoke(), to_revoke, {tenant.get(), i})) {
        return wrong(name, i);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckInvariants(const LedgerState& ledger) {
  const auto wrong = [](auto... what) { return absl::InternalError(absl::StrCat(what...)); };
  const size_t devices = ledger.devices.size();

  // A process that has gone leaves nothing, once its session's end is complete.
  const auto is_gone = [](const Session& session) {
    return session.process_gone && !session.ending;
  };

  // Leases, and how many each segment has.
  absl::flat_hash_map<SegmentId, uint32_t> leases_of;
  absl::flat_hash_map<std::pair<SessionId, SegmentId>, uint32_t> leases_of_session;
  std::map<const Tenant*, uint64_t> tenants_leases;
  std::map<const Tenant*, uint64_t> demoted;
  std::map<std::pair<SessionId, size_t>, uint64_t> mapped;
  size_t tickets = 0;
  const auto check_lease = [&](LeaseId id, const Lease& lease) -> absl::Status {
    auto session = ledger.sessions.find(lease.session);
    if (session == ledger.sessions.end() || !(session->second->live || session->second->ending)) {
      return wrong("lease ", ToInt(id), " has no live session");
    }
    if (!session->second->leases.contains(id)) return wrong("session misses lease ", ToInt(id));
    auto segment = ledger.segments.find(lease.segment);
    if (segment == ledger.segments.end()) return wrong("lease ", ToInt(id), " has no segment");
    if (!lease.suspended && !segment->second->exposures.contains(lease.session)) {
      return wrong("the holder of lease ", ToInt(id), " does not count as exposed");
    }
    if (lease.suspended != segment->second->suspended.contains(id)) {
      return wrong("lease ", ToInt(id), " is wrongly suspended, or not");
    }
    ++leases_of[lease.segment];
    ++leases_of_session[{lease.session, lease.segment}];
    if (!lease.suspended && LedgerState::IsSuspendable(*session->second, *segment->second)) {
      mapped[{lease.session, segment->second->device}] += segment->second->charge.bytes();
    }
    ++tenants_leases[session->second->tenant->books];
    for (const auto& ticket : lease.tickets) {
      if (!ticket) continue;
      ++tickets;
      const TicketEntry* entry = ledger.tickets.Find(*ticket);
      if (entry == nullptr || entry->lease != id) {
        return wrong("a ticket of lease ", ToInt(id), " leads elsewhere");
      }
    }
    return absl::OkStatus();
  };
  absl::Status leases;
  ledger.leases.ForEach(
      [&](LeaseId id, const Lease& lease) { leases.Update(check_lease(id, lease)); });
  if (!leases.ok()) return leases;
  if (tickets != ledger.tickets.size()) return wrong("a ticket outlived its lease");

  // Segments: their state follows from their holders; their charges add up.
  std::map<std::pair<const Tenant*, size_t>, std::array<uint64_t, kSegmentStates>> by_tenant;
  std::map<const Tenant*, uint64_t> segments_by_tenant;
  std::map<std::pair<const Tenant*, size_t>, size_t> own_retained;
  std::map<std::pair<const Tenant*, size_t>, std::array<uint64_t, 2>> revocable_by_tenant;
  std::map<ProcessKey, uint32_t> exposures_of;
  size_t revoking = 0;
  std::vector<uint64_t> by_device(devices, 0);
  uint64_t pins = 0;
  for (const auto& [id, segment] : ledger.segments) {
    const SegmentState state = segment->charge.state();
    if (segment->leases != leases_of[id]) return wrong("segment ", ToInt(id), " miscounts leases");
    pins += segment->pins;
    if (absl::Status right = CheckSuspended(ledger, id, *segment); !right.ok()) return right;
    if ((segment->lost || segment->shared_out || TraitsOf(segment->kind).pooled) &&
        state == SegmentState::kRetained) {
      return wrong("segment ", ToInt(id), " is kept for reuse, but no session may reuse it");
    }
    const bool idle = state == SegmentState::kLingering && segment->exposures.empty();
    if ((idle && !LedgerState::HeldByPool(*segment)) ||
        LedgerState::PoolOf(*segment).idle.Contains(id, segment->kind, segment->charge.bytes()) !=
            (idle && !segment->lost) ||
        LedgerState::PoolOf(*segment).lost.contains(id) != (idle && segment->lost)) {
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
      auto session = ledger.sessions.find(session_id);
      if (session == ledger.sessions.end() || is_gone(*session->second) ||
          !session->second->exposed.contains(id) || count == 0) {
        return wrong("segment ", ToInt(id), " is exposed to the unknown session ",
                     ToInt(session_id));
      }
      ++exposures_of[ledger.ProcessOf(*session->second)];
      if (segment->charge.revocable() &&
          !ledger.processes.at(ledger.ProcessOf(*session->second)).revocable) {
        return wrong("a process with firm leases may map segment ", ToInt(id),
                     ", which is revocable");
      }
      if (TraitsOf(segment->kind).pooled && !session->second->ending &&
          !LedgerState::PoolOf(*segment).importers.contains(session_id)) {
        return wrong("session ", ToInt(session_id),
                     " may map memory of a pool that it may not open");
      }
    }
    const bool given_up = state == SegmentState::kRetained || state == SegmentState::kReleasing;
    if (segment->charge.revoking() != ledger.revoking.contains(id) ||
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
  for (const auto* set : {&ledger.to_move, &ledger.without_room}) {
    for (SegmentId id : *set) {
      if (!ledger.segments.contains(id))
        return wrong("segment ", ToInt(id), " is to move and gone");
    }
  }
  for (size_t i = 0; i < devices; ++i) {
    if (ledger.device_accounts[i].charged() != by_device[i])
      return wrong("device ", i, " does not add up");
    if (by_device[i] > ledger.devices[i].capacity_bytes)
      return wrong("device ", i, " is over capacity");
  }

  if (revoking != ledger.revoking.size())
    return wrong("the segments being taken back are miscounted");
  if (exposures_of.size() != ledger.processes.size()) return wrong("a process is not forgotten");
  for (const auto& [key, process] : ledger.processes) {
    if (exposures_of[key] != process.exposures) return wrong("a process miscounts its segments");
  }

  // Tenants and sessions.
  std::map<const Tenant*, std::array<uint32_t, 3>> counts;  // sessions, live, in flight
  std::map<const Tenant*, uint32_t> tree_sessions, tree_waiting;
  absl::flat_hash_map<uid_t, uint32_t> of_uid;
  absl::btree_set<const Tenant*> have_ending;
  size_t live = 0, waiters = 0;
  uint64_t operations = 0, arriving = 0;
  for (const auto& [id, session] : ledger.sessions) {
    for (const Tenant* each = session->tenant; each != nullptr; each = each->parent) {
      ++tree_sessions[each];
      for (WaiterId waiter : session->waiters) {
        auto it = ledger.waiters.find(waiter);
        if (it == ledger.waiters.end() || it->second.session != id || !session->live) {
          return wrong("a waiter of session ", ToInt(id), " is not known");
        }
        tree_waiting[each] += it->second.asked_to ? 1 : 0;
      }
      tree_waiting[each] += static_cast<uint32_t>(session->attach_waiters.size());
    }
    waiters += session->waiters.size();
    ++of_uid[session->details.peer.uid];
    ++counts[session->tenant][0];
    counts[session->tenant][1] += session->live ? 1 : 0;
    counts[session->tenant->books][2] += session->in_flight;
    operations += session->operations;
    live += session->live ? 1 : 0;
    if (session->ending != ledger.ending.contains(id) || (session->ending && session->live)) {
      return wrong("session ", ToInt(id), " is wrongly ending, or not");
    }
    if (session->ending) have_ending.insert(session->tenant);
    if (!session->live && !session->ending && !session->leases.empty()) {
      return wrong("a closed session holds leases");
    }
    uint64_t leased_bytes = 0, tier_bytes = 0, demoted_bytes = 0;
    for (const auto& [segment, count] : session->leased) {
      auto it = leases_of_session.find({id, segment});
      if (it == leases_of_session.end() || it->second != count) {
        return wrong("session ", ToInt(id), " miscounts its leases of a segment");
      }
      const records::Segment& leased = *ledger.segments.at(segment);
      leased_bytes += leased.charge.bytes();
      if (leased.kind == Kind::kTier) tier_bytes += leased.charge.bytes();
      if (leased.demoted()) demoted_bytes += leased.charge.bytes();
      leases_of_session.erase(it);
    }
    for (Tenant* up = session->tenant; up != nullptr; up = up->parent) demoted[up] += demoted_bytes;
    if (leased_bytes != session->leased_bytes || tier_bytes != session->tier_bytes ||
        demoted_bytes != session->demoted_bytes) {
      return wrong("session ", ToInt(id), " miscounts the bytes that it leases");
    }
    if (absl::Status right = CheckDriverBytes(ledger, id, *session); !right.ok()) return right;
    for (const auto& [device, residence] : session->residences) {
      const auto bytes = mapped.extract({id, device});
      if ((bytes.empty() ? 0 : bytes.mapped()) != residence.bytes) {
        return wrong("session ", ToInt(id), " miscounts the bytes that it maps");
      }
    }
    tenants_leases[session->tenant->books] += session->arriving;
    arriving += session->arriving;
    if (session->operations == 0 && session->arriving != 0) {
      return wrong("session ", ToInt(id), " is given leases by no operation");
    }
    for (SegmentId segment : session->exposed) {
      auto it = ledger.segments.find(segment);
      if (it == ledger.segments.end() || !it->second->exposures.contains(id)) {
        return wrong("session ", ToInt(id), " is exposed to a segment that does not list it");
      }
    }
    for (size_t device : session->imported) {
      if (!session->tenant->pools[device].importers.contains(id)) {
        return wrong("session ", ToInt(id), " imports a pool that does not list it");
      }
    }
  }
  if (!mapped.empty()) return wrong("a session does not count the bytes that it maps");
  if (!leases_of_session.empty()) return wrong("the index of a session's leases is wrong");
  if (waiters != ledger.waiters.size()) return wrong("a waiter outlived its session");
  if (of_uid != ledger.sessions_of_uid) return wrong("a user's sessions are miscounted");
  if (live != ledger.tokens.size()) return wrong("tokens and live sessions differ");
  operations += ledger.operators_operations;
  if (operations != ledger.open_operations) return wrong("sessions miscount their operations");
  if (operations == 0 && pins != ledger.tier_pins) return wrong("pins without operations");
  if (arriving + ledger.regranting + ledger.tier_pins != pins) {
    return wrong("operations have ", pins, " items, of which ", arriving, " arrive and ",
                 ledger.regranting, " are handed over again");
  }
  uint64_t lease_count = 0;
  for (const auto& [name, tenant] : ledger.tenants) {
    if (tenant->leases != tenants_leases[tenant.get()] ||
        tenant->demoted_bytes != demoted[tenant.get()]) {
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
    if (ledger.TotalSegments(*tenant) != segments_by_tenant[tenant.get()]) {
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
        return wrong("tenant ", name, " miscounts revocable memory on device ", i);
      }
      if (tenant->retained[i].size() != own_retained[{tenant.get(), i}]) {
        return wrong("tenant ", name, " lost a retained segment on device ", i);
      }
      const Pool& pool = tenant->pools[i];
      for (const auto& [session_id, times] : pool.importers) {
        auto session = ledger.sessions.find(session_id);
        if (times == 0 || session == ledger.sessions.end() || is_gone(*session->second) ||
            session->second->tenant != tenant.get() || !session->second->imported.contains(i)) {
          return wrong("a pool of tenant ", name, " is open in an unknown process");
        }
      }
      if (pool.idle.bytes() > tenant->accounts[i].bytes(SegmentState::kLingering)) {
        return wrong("a pool of tenant ", name, " has more idle than there is");
      }
      const uint64_t retained = tenant->retained[i].bytes();
      const bool serves = alive > 0 || have_ending.contains(tenant.get());
      if (retained > 0 && (ledger.draining || !serves || !ledger.WithinLimits(*tenant, i) ||
                           retained > ledger.MaxRetainedOn(*tenant, i))) {
        return wrong("tenant ", name, " retains memory that it should release on device ", i);
      }
    }
    const bool made = tenant->made && !tenant->made->ending;
    if (!tenant->configured && !tenant->overridden && !made && all == 0 && tenant->awaited == 0 &&
        ledger.TotalSegments(*tenant) == 0 && tenant->children.empty()) {
      return wrong("tenant ", name, " should have been forgotten");
    }
  }
  if (lease_count != ledger.lease_count) return wrong("the daemon miscounts its leases");
  return CheckIndexes(ledger);
}

}  // namespace gpumemd
