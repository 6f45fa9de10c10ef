// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/recovery/restore.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

std::vector<TierExtent> ExtentsOf(const JournalImage& image, SegmentId segment) {
  std::vector<TierExtent> extents;
  for (auto extent = image.tier_extents.lower_bound({segment, 0});
       extent != image.tier_extents.end() && extent->first.first == segment; ++extent) {
    extents.push_back({extent->second.offset, extent->second.bytes});
  }
  return extents;
}

Restored Restorer::Restore(const JournalImage& image, const Survivors& survivors) {
  Restored restored;
  state_.next_session = image.counters.session + 1;
  state_.next_segment = image.counters.segment + (Mutant(Fault::kRestoresNumbers) ? 0 : 1);
  state_.next_lease = image.counters.lease + 1;
  state_.next_publication = image.counters.publication + 1;
  state_.events.GoOnAfter(image.counters.ipc_event);
  state_.versions.Forget(image.counters.ended_version);
  restored.without_guarantees = made_tenants_.Restore(image);
  RestoreSessions(image, survivors);
  RestoreSegments(image, survivors, restored);
  made_tenants_.RestoreUses(image);
  RestorePublications(image, survivors, restored);
  RestoreHolders(image);
  // A segment's holders determine its state.
  for (const auto& [id, record] : image.segments) {
    if (auto it = state_.segments.find(id); it != state_.segments.end())
      segments_.Settle(id, *it->second);
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
    if (!Mutant(Fault::kRestoresDead)) endings_.Complete(id);
  }
  made_tenants_.EndOrphans();
  restored.segments = static_cast<uint32_t>(state_.segments.size());
  restored.leases = static_cast<uint32_t>(state_.leases.size());
  restored.publications = static_cast<uint32_t>(state_.publications.size());
  changes_.NoteNumbers(state_);  // Image() has them
  return restored;
}

void Restorer::RestoreSessions(const JournalImage& image, const Survivors& survivors) {
  for (const auto& [id, details] : survivors.sessions) {
    auto record = image.sessions.find(id);
    if (record == image.sessions.end()) continue;
    Tenant& tenant = tenants_.Ensure(record->second.tenant.view());
    auto session = std::make_unique<Session>();
    session->tenant = &tenant;
    session->details = details;
    session->token = record->second.token;
    session->opened = absl::FromUnixNanos(record->second.opened_ns);
    session->active = state_.now();
    session->live = !record->second.ended;
    session->presence = Presence::kAway;
    session->details.connect_id = record->second.connect_id;
    sessions_.Restore(id, std::move(session));
  }
  for (const auto& [key, answer] : image.answers) {
    auto session = state_.sessions.find(key.first);
    if (session == state_.sessions.end() || !session->second->live) continue;
    session->second->answers.push_back({answer.request_id, answer.number});
  }
  for (const auto& [key, claim] : image.claims) {
    auto session = state_.sessions.find(key.first);
    if (session == state_.sessions.end() || !session->second->live) continue;
    claims_.Restore(key.first, claim.request_id,
                    {.tenant = session->second->tenant->name,
                     .name = std::string(claim.name.view()),
                     .content_id = std::string(claim.content_id.view())});
  }
}

void Restorer::RestoreSegments(const JournalImage& image, const Survivors& survivors,
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
  absl::flat_hash_map<SegmentId, absl::btree_set<SessionId>> suspended_by;
  for (const auto& [id, lease] : image.leases) {
    if (lease.suspended && state_.sessions.contains(lease.session))
      suspended_by[lease.segment].insert(lease.session);
  }
  for (const auto& [id, record] : image.segments) {
    if (!record.made) continue;  // no process has ever seen it
    const absl::StatusOr<size_t> device = state_.FindDevice(record.device_uuid.view());
    const absl::StatusOr<size_t> home = record.home_uuid.empty() && record.kind != Kind::kTier
                                            ? device
                                            : state_.FindDevice(record.home_uuid.view());
    const bool dropped = record.kind == Kind::kTier && record.scratch;
    // Contents in the tier can only go back to a device of this daemon.
    const bool there = device.ok() && (home.ok() || record.kind != Kind::kTier) && !record.lost &&
                       (dropped || survivors.memory.contains(id));
    const std::vector<SessionId>& holders = held_by[id];
    const absl::btree_set<SessionId>& suspended = suspended_by[id];
    if (!there && !record.lost && (!holders.empty() || !suspended.empty())) {
      Restored::Lost lost{.segment = id,
                          .tenant = std::string(record.tenant.view()),
                          .device_uuid = std::string(record.device_uuid.view()),
                          .kind = record.kind,
                          .bytes = record.bytes,
                          .sessions = holders,
                          .suspended = holders.empty()};
      if (lost.suspended) lost.sessions.assign(suspended.begin(), suspended.end());
      restored.lost.push_back(std::move(lost));
    }
    // Processes that have its pool open hold it if it has no other holder.
    const bool held =
        !holders.empty() || (TraitsOf(record.kind).pooled &&
                             open_pools.contains(std::pair(record.tenant, record.device_uuid)));
    if (!device.ok() || (!there && !held)) continue;
    Tenant& tenant = tenants_.Ensure(record.tenant.view());
    auto segment = std::make_unique<Segment>();
    segment->tenant = &tenant;
    segment->device = *device;
    segment->kind = record.kind;
    segment->dropped_bytes = dropped ? record.bytes : 0;
    segment->charge =
        tenant.ChargeFor(id, *device, record.bytes - segment->dropped_bytes, record.revocable);
    segment->created = absl::FromUnixNanos(record.created_ns);
    segment->made = true;
    segment->lost = !there;
    segment->shared_out = record.shared_out;
    segment->scratch = record.scratch;
    segment->home = home.value_or(*device);
    if (record.kind == Kind::kTier && !Mutant(Fault::kRestoresNoExtents))
      segment->extents = ExtentsOf(image, id);
    state_.segments.emplace(id, std::move(segment));
  }
}

void Restorer::RestorePublications(const JournalImage& image, const Survivors& survivors,
                                   Restored& restored) {
  for (const auto& [id, record] : image.publications) {
    auto publisher = state_.sessions.find(record.publisher);
    const bool publisher_lives = publisher != state_.sessions.end() && publisher->second->live;
    if (!record.persistent && !publisher_lives) {  // it has ended with its publisher
      state_.versions.Forget(record.version);
      continue;
    }
    Publication publication{.tenant = &tenants_.Ensure(record.tenant.view()),
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
    if (auto contents = image.publication_contents.find(id);
        contents != image.publication_contents.end()) {
      publication.content_id = std::string(contents->second.content_id.view());
    }
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
      tenants_.ForgetIfIdle(tenant);
      continue;
    }
    if (publisher != state_.sessions.end()) publisher->second->publications.insert(id);
    if (publisher_lives) {
      Session& session = *publisher->second;
      publication.publisher_pid = session.details.peer.pid;
      publication.publisher_name = session.details.client_name;
      if (publication.ephemeral) session.ephemeral.insert(id);
    }
    publications_.Restore(id, std::move(publication));
  }
}

void Restorer::RestoreHolders(const JournalImage& image) {
  for (const auto& [key, exposure] : image.exposures) {
    auto session = state_.sessions.find(key.first);
    auto segment = state_.segments.find(key.second);
    if (session == state_.sessions.end() || segment == state_.segments.end()) continue;
    if (Mutant(Fault::kRestoresNoMappings)) continue;
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
    lease.suspended = record.suspended && !Mutant(Fault::kRestoresUnsuspended);
    lease.tag = std::string(record.tag.view());
    if (lease.suspended) segment->second->suspended.insert(id);
    if (record.publication != PublicationId{}) lease.publication = record.publication;
    for (size_t scope = 0; scope < record.tickets.size(); ++scope) {
      lease.tickets[scope] = record.tickets[scope];
      if (!record.tickets[scope]) continue;
      state_.tickets.Insert(*record.tickets[scope], {id, static_cast<TicketScope>(scope)});
    }
    state_.AddLease(id, lease);
    state_.CountLeases(*session->second->tenant, 1);
    if (auto source = state_.publications.find(record.publication);
        source != state_.publications.end()) {
      Publication& publication = source->second;
      state_.expiries.erase({state_.ExpiryOf(publication), source->first});
      ++publication.attached[record.session];
      state_.expiries.emplace(state_.ExpiryOf(publication), source->first);
    }
    if (segment->second->lost && session->second->live) effects_.orphaned.insert(record.session);
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
                           .books = session->second->tenant->books->name,
                           .handed_out = record.handed_out};
    if (const Lease* lease = state_.leases.Find(record.lease); lease != nullptr) {
      event.lease = record.lease;
      event.segment = lease->segment;
    }
    state_.events.Restore(id, std::move(event));
  }
}

}  // namespace gpumemd
