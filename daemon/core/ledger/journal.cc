// What has changed, as records of the journal (journal/records.h). Nothing is said of waiters and
// operations: a daemon that comes after this one knows who may map what, and who has which leases.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd {
namespace {

int64_t Nanos(absl::Time time) { return absl::ToUnixNanos(time); }

template <typename Key>
std::vector<Key> TakeDistinct(std::vector<Key>& touched) {
  std::vector<Key> keys = std::exchange(touched, {});
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace

std::optional<journal::Session> Ledger::RecordOf(SessionId id) const {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return std::nullopt;
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
      // Where it maps nothing, nothing is said: others of its process would change it.
      .revocable = !session.exposed.empty() && processes_.at(ProcessOf(session)).revocable,
      .tenant = session.tenant->name,
      .client_name = journal::Name::Cut(session.details.client_name),
      .command = journal::Command::Cut(session.details.command),
      .connect_id = session.details.connect_id,
  };
}

std::optional<journal::Segment> Ledger::RecordOf(SegmentId id) const {
  auto it = segments_.find(id);
  if (it == segments_.end()) return std::nullopt;
  const Segment& segment = *it->second;
  return journal::Segment{
      .id = id,
      .bytes = segment.charge.bytes(),
      .created_ns = Nanos(segment.created),
      .kind = segment.kind,
      .made = segment.made,
      .lost = segment.lost,
      .shared_out = segment.shared_out,
      .revocable = segment.charge.revocable(),
      .tenant = segment.tenant->name,
      .device_uuid = devices_[segment.device].uuid,
  };
}

std::optional<journal::Lease> Ledger::RecordOf(LeaseId id) const {
  const Lease* found = leases_.Find(id);
  if (found == nullptr) return std::nullopt;
  const Lease& lease = *found;
  return journal::Lease{.id = id,
                        .session = lease.session,
                        .segment = lease.segment,
                        .publication = lease.publication.value_or(PublicationId{}),
                        .request_id = lease.request_id,
                        .tickets = {lease.tickets[0], lease.tickets[1]}};
}

std::optional<journal::Exposure> Ledger::RecordOf(SessionId session, SegmentId segment) const {
  auto it = segments_.find(segment);
  if (it == segments_.end()) return std::nullopt;
  auto exposure = it->second->exposures.find(session);
  if (exposure == it->second->exposures.end()) return std::nullopt;
  return journal::Exposure{.session = session, .segment = segment, .count = exposure->second};
}

std::optional<journal::PoolImport> Ledger::RecordOf(SessionId session, size_t device) const {
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return std::nullopt;
  const auto& importers = it->second->tenant->pools[device].importers;
  auto importer = importers.find(session);
  if (importer == importers.end()) return std::nullopt;
  return journal::PoolImport{
      .session = session, .device_uuid = devices_[device].uuid, .count = importer->second};
}

std::optional<journal::IpcEvent> Ledger::RecordOf(IpcEventId id) const {
  const IpcEvents::Event* event = events_.Find(id);
  if (event == nullptr) return std::nullopt;
  const bool beside = event->lease && leases_.contains(*event->lease);
  return journal::IpcEvent{.id = id,
                           .session = event->session,
                           .lease = beside ? *event->lease : LeaseId{},
                           .handed_out = event->handed_out,
                           .name = event->name,
                           .device_uuid = event->device_uuid,
                           .handle = event->handle};
}

std::optional<journal::Publication> Ledger::RecordOf(PublicationId id) const {
  auto it = publications_.find(id);
  if (it == publications_.end()) return std::nullopt;
  const Publication& publication = it->second;
  const bool expires = publication.expire_after != absl::InfiniteDuration();
  const bool there = sessions_.contains(publication.publisher);
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

std::optional<journal::PublicationItem> Ledger::RecordOf(PublicationId id, size_t index) const {
  auto it = publications_.find(id);
  if (it == publications_.end()) return std::nullopt;
  return journal::PublicationItem{.publication = id,
                                  .index = static_cast<uint32_t>(index),
                                  .segment = it->second.segments.at(index)};
}

std::optional<journal::Answer> Ledger::RecordOf(const RequestKey& key) const {
  auto it = sessions_.find(key.first);
  if (it == sessions_.end()) return std::nullopt;
  const std::optional<uint64_t> number = AnswerTo(*it->second, key.second);
  if (!number) return std::nullopt;
  return journal::Answer{.session = key.first, .request_id = key.second, .number = *number};
}

journal::Counters Ledger::NumbersGivenOut() const {
  return {.session = next_session_ - 1,
          .segment = next_segment_ - 1,
          .lease = next_lease_ - 1,
          .publication = next_publication_ - 1,
          .ipc_event = events_.last(),
          .ended_version = ended_version_};
}

std::vector<journal::Change> Ledger::TakeChanges() {
  std::vector<journal::Change> changes;
  if (!keeps_changes_) return changes;
  const auto add = [&](auto record, const auto& key) {
    using Record = typename decltype(record)::value_type;
    changes.push_back(record ? journal::Put(*std::move(record)) : journal::Erase<Record>(key));
  };
  for (SessionId id : TakeDistinct(touched_.sessions)) add(RecordOf(id), id);
  for (SegmentId id : TakeDistinct(touched_.segments)) add(RecordOf(id), id);
  for (LeaseId id : TakeDistinct(touched_.leases)) add(RecordOf(id), id);
  for (const auto& key : TakeDistinct(touched_.exposures)) {
    add(RecordOf(key.first, key.second), key);
  }
  for (const auto& [session, device] : TakeDistinct(touched_.imports)) {
    add(RecordOf(session, device), std::pair(session, journal::DeviceUuid(devices_[device].uuid)));
  }
  for (IpcEventId id : TakeDistinct(touched_.events)) add(RecordOf(id), id);
  for (const RequestKey& key : TakeDistinct(touched_.answers)) add(RecordOf(key), key);
  for (PublicationId id : TakeDistinct(touched_.publications)) add(RecordOf(id), id);
  for (const auto& [id, segments] : TakeDistinct(touched_.lists)) {
    for (size_t i = 0; i < segments; ++i) {
      add(RecordOf(id, i), std::pair(id, static_cast<uint32_t>(i)));
    }
  }
  // Of a lease that is still to be, or of what has come and gone since the last call, nothing else
  // is put; but a client may have been told its number.
  if (const journal::Counters numbers = NumbersGivenOut(); numbers != recorded_numbers_) {
    changes.push_back(journal::Put(numbers));
    recorded_numbers_ = numbers;
  }
  return changes;
}

JournalImage Ledger::Image() const {
  JournalImage image;
  const auto put = [&](auto record) { image.Apply(journal::Put(*std::move(record))); };
  for (const auto& [id, session] : sessions_) {
    put(RecordOf(id));
    for (size_t device : session->imported) put(RecordOf(id, device));
    for (const Session::Answer& answer : session->answers) {
      put(RecordOf(RequestKey(id, answer.request)));
    }
  }
  for (const auto& [id, segment] : segments_) {
    put(RecordOf(id));
    for (const auto& [session, count] : segment->exposures) put(RecordOf(session, id));
  }
  leases_.ForEach([&](LeaseId id, const Lease&) { put(RecordOf(id)); });
  for (const auto& [id, event] : events_.all()) put(RecordOf(id));
  for (const auto& [id, publication] : publications_) {
    put(RecordOf(id));
    for (size_t i = 0; i < publication.segments.size(); ++i) put(RecordOf(id, i));
  }
  image.Apply(journal::Put(NumbersGivenOut()));
  return image;
}

}  // namespace gpumemd
