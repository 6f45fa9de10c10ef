// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/change_log.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/core/ledger/made/journal.h"
#include "daemon/core/ledger/made/made_tenants.h"

namespace gpumemd {

using records::Lease;
using records::Publication;
using records::Segment;
using records::Session;
using RequestKey = ChangeLog::RequestKey;

namespace {

int64_t Nanos(absl::Time time) { return absl::ToUnixNanos(time); }

template <typename Key>
std::vector<Key> TakeDistinct(std::vector<Key>& touched) {
  std::vector<Key> keys = std::exchange(touched, {});
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

std::optional<journal::Session> RecordOf(const LedgerState& state, SessionId id) {
  auto it = state.sessions.find(id);
  if (it == state.sessions.end()) return std::nullopt;
  const Session& session = *it->second;
  const PeerIdentity& peer = session.details.peer;
  return journal::Session{
      .id = id,
      .token = session.token,
      .pid = peer.pid,
      .start_time = peer.start_time,
      .uid = peer.uid,
      .gid = peer.gid,
      .opened_ns = Nanos(session.opened),
      .certain = session.details.certain,
      .ended = !session.live,
      // Recorded as false if it maps nothing: other sessions of its process would change it
      // otherwise.
      .revocable =
          !session.exposed.empty() && state.processes.at(state.ProcessOf(session)).revocable,
      .tenant = session.tenant->name,
      .client_name = journal::Name::Cut(session.details.client_name),
      .command = journal::Command::Cut(session.details.command),
      .connect_id = session.details.connect_id,
  };
}

std::optional<journal::Segment> RecordOf(const LedgerState& state, SegmentId id) {
  auto it = state.segments.find(id);
  if (it == state.segments.end()) return std::nullopt;
  const Segment& segment = *it->second;
  return journal::Segment{
      .id = id,
      .bytes = segment.size(),
      .created_ns = Nanos(segment.created),
      .kind = segment.kind,
      .made = segment.made,
      .lost = segment.lost,
      .shared_out = segment.shared_out,
      .revocable = segment.charge.revocable(),
      .tenant = segment.tenant->name,
      .device_uuid = state.devices[segment.device].uuid,
      .home_uuid =
          segment.kind == Kind::kTier || segment.demoted() ? state.devices[segment.home].uuid : "",
      .scratch = segment.scratch,
  };
}

std::optional<journal::TierExtent> RecordOf(const LedgerState& state, SegmentId id, size_t index) {
  auto it = state.segments.find(id);
  if (it == state.segments.end()) return std::nullopt;
  const TierExtent& extent = it->second->extents.at(index);
  return journal::TierExtent{.segment = id,
                             .index = static_cast<uint32_t>(index),
                             .offset = extent.offset,
                             .bytes = extent.bytes};
}

std::optional<journal::Lease> RecordOf(const LedgerState& state, LeaseId id) {
  const Lease* found = state.leases.Find(id);
  if (found == nullptr) return std::nullopt;
  const Lease& lease = *found;
  return journal::Lease{.id = id,
                        .session = lease.session,
                        .segment = lease.segment,
                        .publication = lease.publication.value_or(PublicationId{}),
                        .request_id = lease.request_id,
                        .tickets = {lease.tickets[0], lease.tickets[1]},
                        .suspended = lease.suspended,
                        .tag = lease.tag};
}

std::optional<journal::Exposure> RecordOf(const LedgerState& state, SessionId session,
                                          SegmentId segment) {
  auto it = state.segments.find(segment);
  if (it == state.segments.end()) return std::nullopt;
  auto exposure = it->second->exposures.find(session);
  if (exposure == it->second->exposures.end()) return std::nullopt;
  return journal::Exposure{.session = session, .segment = segment, .count = exposure->second};
}

std::optional<journal::PoolImport> RecordOf(const LedgerState& state, SessionId session,
                                            size_t device) {
  auto it = state.sessions.find(session);
  if (it == state.sessions.end()) return std::nullopt;
  const auto& importers = it->second->tenant->pools[device].importers;
  auto importer = importers.find(session);
  if (importer == importers.end()) return std::nullopt;
  return journal::PoolImport{
      .session = session, .device_uuid = state.devices[device].uuid, .count = importer->second};
}

std::optional<journal::IpcEvent> RecordOf(const LedgerState& state, IpcEventId id) {
  const IpcEvents::Event* event = state.events.Find(id);
  if (event == nullptr) return std::nullopt;
  const bool beside = event->lease && state.leases.contains(*event->lease);
  return journal::IpcEvent{.id = id,
                           .session = event->session,
                           .lease = beside ? *event->lease : LeaseId{},
                           .handed_out = event->handed_out,
                           .name = event->name,
                           .device_uuid = event->device_uuid,
                           .handle = event->handle};
}

std::optional<journal::Publication> RecordOf(const LedgerState& state, PublicationId id) {
  auto it = state.publications.find(id);
  if (it == state.publications.end()) return std::nullopt;
  const Publication& publication = it->second;
  const bool expires = publication.expire_after != absl::InfiniteDuration();
  const bool there = state.sessions.contains(publication.publisher);
  return journal::Publication{
      .id = id,
      .version = publication.version,
      .persistent = !publication.ephemeral,
      .any_tenant = publication.to_any,
      .expire_after_ns = expires ? absl::ToInt64Nanoseconds(publication.expire_after) : 0,
      .publisher = there ? publication.publisher : SessionId{},
      .created_ns = Nanos(publication.published),
      .idle_since_ns = publication.attached.empty() ? Nanos(publication.idle_since) : 0,
      .metadata_bytes = static_cast<uint32_t>(publication.metadata_bytes),
      .tenant = publication.tenant->name,
      .name = publication.name};
}

// Requires that the publication has a content id, or has ended.
std::optional<journal::PublicationContent> ContentOf(const LedgerState& state, PublicationId id) {
  auto it = state.publications.find(id);
  if (it == state.publications.end()) return std::nullopt;
  return journal::PublicationContent{.publication = id, .content_id = it->second.content_id};
}

std::optional<journal::Claim> ClaimOf(const LedgerState& state, const RequestKey& key) {
  auto session = state.sessions.find(key.first);
  if (session == state.sessions.end()) return std::nullopt;
  auto claim = session->second->claims.find(key.second);
  if (claim == session->second->claims.end()) return std::nullopt;
  return journal::Claim{.session = key.first,
                        .request_id = key.second,
                        .name = claim->second.name,
                        .content_id = claim->second.content_id};
}

std::optional<journal::PublicationItem> RecordOf(const LedgerState& state, PublicationId id,
                                                 size_t index) {
  auto it = state.publications.find(id);
  if (it == state.publications.end()) return std::nullopt;
  return journal::PublicationItem{.publication = id,
                                  .index = static_cast<uint32_t>(index),
                                  .segment = it->second.segments.at(index)};
}

std::optional<journal::Answer> RecordOf(const LedgerState& state, const RequestKey& key) {
  auto it = state.sessions.find(key.first);
  if (it == state.sessions.end()) return std::nullopt;
  const std::optional<uint64_t> number = state.AnswerTo(*it->second, key.second);
  if (!number) return std::nullopt;
  return journal::Answer{.session = key.first, .request_id = key.second, .number = *number};
}

journal::Counters NumbersOf(const LedgerState& state) {
  return {.session = state.next_session - 1,
          .segment = state.next_segment - 1,
          .lease = state.next_lease - 1,
          .publication = state.next_publication - 1,
          .ipc_event = state.events.last(),
          .ended_version = state.versions.highest(),
          .made_tenant = state.next_made_tenant - 1};
}

// Adds the changes of a made tenant's use of a device. Nothing was used, or there is no such tenant
// any more: an erasure.
void AddUse(const LedgerState& state, MadeTenantId id, size_t device,
            std::vector<journal::Change>& changes) {
  const auto found = state.made_by_id.find(id);
  const auto record =
      found == state.made_by_id.end() ? std::nullopt : UseRecordOf(state, *found->second, device);
  changes.push_back(record ? journal::Put(*record)
                           : journal::Erase<journal::MadeTenantUse>(
                                 {id, journal::DeviceUuid(state.devices[device].uuid)}));
}

// Adds the changes of a made tenant, with at most this many devices before and after.
void AddMade(const LedgerState& state, MadeTenantId id, size_t devices,
             std::vector<journal::Change>& changes) {
  const auto found = state.made_by_id.find(id);
  const records::Tenant* tenant = found == state.made_by_id.end() ? nullptr : found->second;
  if (tenant == nullptr) {
    changes.push_back(journal::Erase<journal::MadeTenant>(id));
    changes.push_back(journal::Erase<journal::MadeTenantQuota>(id));
  } else {
    changes.push_back(journal::Put(gpumemd::RecordOf(*tenant)));
    changes.push_back(journal::Put(QuotaRecordOf(*tenant->made)));
  }
  for (uint32_t i = 0; i < devices; ++i) {
    const auto record = tenant == nullptr ? std::nullopt : DeviceRecordOf(*tenant->made, i);
    changes.push_back(record ? journal::Put(*record)
                             : journal::Erase<journal::MadeTenantDevice>({id, i}));
  }
  for (size_t i = 0; i < state.devices.size(); ++i) AddUse(state, id, i, changes);
}

}  // namespace

std::vector<journal::Change> ChangeLog::Take(LedgerState& state) {
  std::vector<journal::Change> changes;
  if (!kept_) return changes;
  const auto add = [&](auto record, const auto& key) {
    using Record = typename decltype(record)::value_type;
    changes.push_back(record ? journal::Put(*std::move(record)) : journal::Erase<Record>(key));
  };
  for (SessionId id : TakeDistinct(sessions_)) add(RecordOf(state, id), id);
  for (SegmentId id : TakeDistinct(segments_)) add(RecordOf(state, id), id);
  for (LeaseId id : TakeDistinct(leases_)) add(RecordOf(state, id), id);
  for (const auto& key : TakeDistinct(exposures_)) {
    add(RecordOf(state, key.first, key.second), key);
  }
  for (const auto& [session, device] : TakeDistinct(imports_)) {
    add(RecordOf(state, session, device),
        std::pair(session, journal::DeviceUuid(state.devices[device].uuid)));
  }
  for (IpcEventId id : TakeDistinct(events_)) add(RecordOf(state, id), id);
  for (const RequestKey& key : TakeDistinct(answers_)) add(RecordOf(state, key), key);
  for (PublicationId id : TakeDistinct(publications_)) add(RecordOf(state, id), id);
  for (PublicationId id : TakeDistinct(contents_)) add(ContentOf(state, id), id);
  for (const RequestKey& key : TakeDistinct(claims_)) add(ClaimOf(state, key), key);
  for (const auto& [id, segments] : TakeDistinct(lists_)) {
    for (uint32_t i = 0; i < segments; ++i) items_.emplace_back(id, i);
  }
  for (const auto& item : TakeDistinct(items_)) add(RecordOf(state, item.first, item.second), item);
  for (const auto& [id, extents] : TakeDistinct(extents_)) {
    for (size_t i = 0; i < extents; ++i) {
      add(RecordOf(state, id, i), std::pair(id, static_cast<uint32_t>(i)));
    }
  }
  for (const auto& [id, device] : TakeDistinct(state.uses_changed.keys)) {
    AddUse(state, id, device, changes);
  }
  for (const auto& [id, devices] : TakeDistinct(made_)) AddMade(state, id, devices, changes);
  // The numbers cover objects without another record: leases not made yet, and objects that came
  // and went since the last call. A client may have been told such a number.
  if (const journal::Counters numbers = NumbersOf(state); numbers != numbers_) {
    changes.push_back(journal::Put(numbers));
    numbers_ = numbers;
  }
  return changes;
}

JournalImage ImageOf(const LedgerState& state) {
  JournalImage image;
  const auto put = [&](auto record) { image.Apply(journal::Put(*std::move(record))); };
  for (const auto& [id, session] : state.sessions) {
    put(RecordOf(state, id));
    for (size_t device : session->imported) put(RecordOf(state, id, device));
    for (const Session::Answer& answer : session->answers) {
      put(RecordOf(state, RequestKey(id, answer.request)));
    }
    for (const auto& [request, contents] : session->claims) {
      put(ClaimOf(state, RequestKey(id, request)));
    }
  }
  for (const auto& [id, segment] : state.segments) {
    put(RecordOf(state, id));
    for (const auto& [session, count] : segment->exposures) put(RecordOf(state, session, id));
    for (size_t i = 0; i < segment->extents.size(); ++i) put(RecordOf(state, id, i));
  }
  state.leases.ForEach([&](LeaseId id, const Lease&) { put(RecordOf(state, id)); });
  for (const auto& [id, event] : state.events.all()) put(RecordOf(state, id));
  for (const auto& [id, publication] : state.publications) {
    put(RecordOf(state, id));
    if (!publication.content_id.empty()) put(ContentOf(state, id));
    for (size_t i = 0; i < publication.segments.size(); ++i) put(RecordOf(state, id, i));
  }
  std::vector<journal::Change> made;
  for (const auto& [id, tenant] : state.made_by_id) {
    AddMade(state, id, DevicesOf(tenant->made->quota).size(), made);
  }
  for (const journal::Change& change : made) image.Apply(change);
  image.Apply(journal::Put(NumbersOf(state)));
  return image;
}

void ChangeLog::NoteNumbers(const LedgerState& state) { numbers_ = NumbersOf(state); }

}  // namespace gpumemd
