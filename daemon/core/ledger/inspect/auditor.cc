// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/inspect/auditor.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/inspect/inspector.h"

namespace gpumemd {

using records::Lease;
using records::Publication;
using records::Segment;
using records::Session;
using records::Tenant;

namespace {

AuditRecord AuditOf(AuditEvent event, const Publication& publication) {
  return {.event = event,
          .tenant = publication.tenant->name,
          .publication = absl::StrCat(publication.tenant->name, "/", publication.name),
          .version = publication.version,
          .bytes = publication.bytes,
          .count = publication.segments.size()};
}

}  // namespace

void Auditor::Record(AuditRecord record) const {
  record.time = state_.now();
  sink_->Record(std::move(record));
}

void Auditor::RecordSegments(const AuditRecord& about,
                             absl::Span<const AuditedSegment> segments) const {
  // Nearly always one entry: all segments have the same owner, device and kind.
  std::vector<std::pair<std::tuple<const Tenant*, size_t, Kind>, AuditRecord>> records;
  for (const auto& [id, lease] : segments) {
    const Segment& segment = *state_.segments.at(id);
    const std::tuple group(segment.tenant, segment.device, segment.kind);
    auto record = std::find_if(records.begin(), records.end(),
                               [&](const auto& each) { return each.first == group; });
    if (record == records.end()) {
      record = records.emplace(records.end(), group, about);
      AuditRecord& made = record->second;
      if (segment.tenant->name != made.tenant) made.owner = segment.tenant->name;
      made.device = state_.devices[segment.device].uuid;
      made.kind = std::string(KindName(segment.kind));
      made.bytes = made.count = 0;
    }
    AuditRecord& of = record->second;
    *of.bytes += segment.charge.bytes();
    if (++*of.count > kMaxAuditIds) continue;
    of.segments.push_back(id);
    if (lease != LeaseId{}) of.leases.push_back(lease);
  }
  for (auto& [group, record] : records) Record(std::move(record));
}

bool Auditor::LeavesOut(AuditEvent event, SessionId session,
                        absl::Span<const AuditedSegment> segments) const {
  uint64_t bytes = 0;
  for (const auto& [id, lease] : segments) bytes += state_.segments.at(id)->charge.bytes();
  return sink_->LeavesOut(event, state_.sessions.at(session)->tenant->name, bytes, state_.now());
}

void Auditor::Granted(const Operation& operation) const {
  if (sink_ == nullptr) return;
  std::vector<AuditedSegment> segments;
  for (const Operation::Item& item : operation.items) {
    // Of many, the first may have been released while the last became live.
    if (state_.segments.contains(item.segment)) segments.push_back({item.segment, item.lease});
  }
  if (LeavesOut(AuditEvent::kGranted, operation.session, segments)) return;
  AuditRecord about = Inspector(&state_).AuditOf(AuditEvent::kGranted, operation.session);
  const Operation::Item& first = operation.items.front();
  about.call = operation.publication ? "attach" : first.fresh || first.reused ? "acquire" : "open";
  if (operation.publication) {
    // It may have ended meanwhile; then the record names no publication.
    auto attached = state_.publications.find(*operation.publication);
    if (attached != state_.publications.end()) {
      about.publication = absl::StrCat(attached->second.tenant->name, "/", attached->second.name);
      about.version = attached->second.version;
    }
  }
  RecordSegments(about, segments);
}

void Auditor::Released(SessionId session, absl::Span<const LeaseId> leases,
                       absl::string_view why) const {
  if (sink_ == nullptr) return;
  std::vector<AuditedSegment> segments;
  for (LeaseId lease : leases) {
    const Lease* found = state_.leases.Find(lease);
    if (found == nullptr || found->session != session) continue;
    segments.push_back({found->segment, lease});
  }
  if (segments.empty() || LeavesOut(AuditEvent::kReleased, session, segments)) return;
  AuditRecord about = Inspector(&state_).AuditOf(AuditEvent::kReleased, session);
  about.why = std::string(why);
  RecordSegments(about, segments);
}

// An operator's is recorded with the operator.
void Auditor::PublicationResumed(const Operation& operation) const {
  auto publication = state_.publications.find(*operation.publication);
  if (operation.session == SessionId{} || publication == state_.publications.end()) return;
  AuditRecord record = AuditOf(AuditEvent::kPublicationResumed, publication->second);
  AuditRecord session =
      Inspector(&state_).AuditOf(AuditEvent::kPublicationResumed, operation.session);
  session.publication = std::move(record.publication);
  session.version = record.version;
  if (session.tenant != record.tenant) session.owner = std::move(record.tenant);
  session.bytes = session.count = 0;
  for (const Operation::Item& item : operation.items) {
    auto segment = state_.segments.find(item.segment);
    if (segment == state_.segments.end()) continue;
    *session.bytes += segment->second->charge.bytes();
    ++*session.count;
  }
  Record(std::move(session));
}

void Auditor::MovedLater(const Tenant& tenant, const Moved& moved, absl::string_view why) const {
  if (sink_ == nullptr) return;
  const uint64_t bytes = why.empty() ? moved.bytes : 0;
  if (sink_->LeavesOut(AuditEvent::kMoved, tenant.name, bytes, state_.now())) return;
  AuditRecord record{.event = AuditEvent::kMoved,
                     .tenant = tenant.name,
                     .device = state_.devices[moved.device].uuid,
                     .bytes = bytes,
                     .count = why.empty() ? 1 : 0,
                     .why = std::string(why)};
  if (why.empty()) record.segments.push_back(moved.to);
  Record(std::move(record));
}

void Auditor::Resumed(const Operation& operation) const {
  if (sink_ == nullptr) return;
  if (operation.publication) return PublicationResumed(operation);
  std::vector<LeaseId> leases;
  std::vector<Moved> moved;
  absl::btree_map<SegmentId, uint64_t> resident;
  for (const Operation::Item& item : operation.items) {
    leases.push_back(item.lease);
    auto segment = state_.segments.find(item.segment);
    if (segment == state_.segments.end()) continue;  // released meanwhile
    const uint64_t bytes = segment->second->charge.bytes();
    if (item.fresh) {
      moved.push_back({operation.device, item.segment, segment->second->scratch ? 0 : bytes});
    }
    if (!item.tier) resident[item.segment] = bytes;
  }
  uint64_t resident_bytes = 0;
  for (const auto& [segment, bytes] : resident) resident_bytes += bytes;
  Moves(AuditEvent::kResumed, operation.session, leases, moved, operation.device, resident_bytes);
}

void Auditor::Exchanged(SessionId session, absl::Span<const LeaseId> leases) const {
  if (sink_ == nullptr) return;
  std::vector<LeaseId> demoted, promoted;
  std::vector<Moved> to_host, to_device;
  for (LeaseId lease : leases) {
    const SegmentId id = state_.leases.at(lease).segment;
    const Segment& segment = *state_.segments.at(id);
    (segment.demoted() ? demoted : promoted).push_back(lease);
    (segment.demoted() ? to_host : to_device).push_back({segment.home, id, segment.size()});
  }
  const auto record = [&](AuditEvent event, absl::Span<const LeaseId> of,
                          absl::Span<const Moved> moved) {
    if (!of.empty()) Moves(event, session, of, moved, moved.front().device, std::nullopt);
  };
  record(AuditEvent::kDemoted, demoted, to_host);
  record(AuditEvent::kPromoted, promoted, to_device);
}

void Auditor::Moves(AuditEvent event, SessionId session, absl::Span<const LeaseId> leases,
                    absl::Span<const Moved> moved, size_t device, std::optional<uint64_t> resident,
                    absl::string_view why) const {
  if (sink_ == nullptr) return;
  uint64_t bytes = 0;
  for (const Moved& each : moved) bytes += each.bytes;
  const std::string& tenant = state_.sessions.at(session)->tenant->name;
  if (sink_->LeavesOut(event, tenant, bytes, state_.now())) return;
  AuditRecord about = Inspector(&state_).AuditOf(event, session);
  about.why = std::string(why);
  about.bytes = about.count = 0;
  about.resident = resident;
  about.leases.assign(leases.begin(), leases.begin() + static_cast<ptrdiff_t>(
                                                           std::min(leases.size(), kMaxAuditIds)));
  absl::btree_map<size_t, AuditRecord> records;  // by device
  for (const Moved& each : moved) {
    AuditRecord& record = records.try_emplace(each.device, about).first->second;
    record.device = state_.devices[each.device].uuid;
    *record.bytes += each.bytes;
    if (++*record.count <= kMaxAuditIds) record.segments.push_back(each.to);
  }
  if (records.empty()) {
    about.device = state_.devices[device].uuid;
    Record(std::move(about));
  }
  for (auto& [index, record] : records) {
    record.resident = resident;
    if (resident) resident = 0;  // once
    Record(std::move(record));
  }
}

void Auditor::SessionChanged(AuditEvent event, SessionId id) const {
  if (sink_ == nullptr) return;
  const Session& session = *state_.sessions.at(id);
  AuditRecord record = Inspector(&state_).AuditOf(event, id);
  if (event == AuditEvent::kSessionOpened) record.rule = session.details.rule;
  if (event == AuditEvent::kSessionEnded) {
    record.bytes = session.leased_bytes;
    record.count = session.leased.size();
    record.why = session.process_gone ? "its process has ended" : "its socket was closed";
  }
  Record(std::move(record));
}

void Auditor::Reclaimed(SessionId id, absl::Span<const SegmentId> mapped) const {
  if (sink_ == nullptr) return;
  std::vector<AuditedSegment> freed;
  for (SegmentId segment : mapped) {
    // A doomed segment is still in the map.
    const SegmentState state = state_.segments.at(segment)->charge.state();
    const bool is_free = state == SegmentState::kRetained || state == SegmentState::kReleasing;
    if (is_free) freed.push_back({segment, LeaseId{}});
  }
  RecordSegments(Inspector(&state_).AuditOf(AuditEvent::kReclaimed, id), freed);
}

void Auditor::RevocationChanged(AuditEvent event, absl::Span<const SegmentId> segments,
                                absl::string_view why) const {
  if (sink_ == nullptr) return;
  for (SegmentId id : segments) {
    const Segment& segment = *state_.segments.at(id);
    AuditRecord about{.event = event, .tenant = segment.tenant->name, .why = std::string(why)};
    if (event == AuditEvent::kRevoking) {
      for (const auto& [holder, times] : segment.exposures) about.holders.push_back(holder);
    }
    RecordSegments(about, {{id, LeaseId{}}});
  }
}

void Auditor::SwapChanged(AuditEvent event, SessionId id, uint64_t bytes,
                          absl::string_view why) const {
  if (sink_ == nullptr) return;
  AuditRecord record = Inspector(&state_).AuditOf(event, id);
  record.bytes = bytes;
  record.why = std::string(why);
  Record(std::move(record));
}

void Auditor::Lost(const absl::flat_hash_set<SegmentId>& segments) const {
  if (sink_ == nullptr) return;
  for (SegmentId id : absl::btree_set<SegmentId>(segments.begin(), segments.end())) {
    const Segment& segment = *state_.segments.at(id);
    AuditRecord about{.event = AuditEvent::kLost,
                      .tenant = segment.tenant->name,
                      .why = "its CUDA context ended"};
    for (const auto& [holder, times] : segment.exposures) about.holders.push_back(holder);
    RecordSegments(about, {{id, LeaseId{}}});
  }
}

void Auditor::ClaimChanged(AuditEvent event, SessionId session, const records::Contents& contents,
                           absl::string_view why) const {
  if (sink_ == nullptr) return;
  if (sink_->LeavesOut(event, contents.tenant, /*bytes=*/0, state_.now())) return;
  AuditRecord record = Inspector(&state_).AuditOf(event, session);
  record.publication = absl::StrCat(contents.tenant, "/", contents.name);
  record.content = absl::BytesToHexString(contents.content_id);
  record.why = std::string(why);
  Record(std::move(record));
}

void Auditor::TenantChanged(AuditEvent event, const Tenant& tenant, SessionId session,
                            absl::Span<const AuditOperator> by, std::vector<std::string> changes,
                            absl::string_view why) const {
  if (sink_ == nullptr) return;
  AuditRecord record{.event = event, .tenant = tenant.name};
  if (state_.sessions.contains(session)) {
    // Of all that the session's tenant makes, the audit bounds the records.
    record = Inspector(&state_).AuditOf(event, session);
    record.owner = tenant.name;
  }
  if (sink_->LeavesOut(event, record.tenant, /*bytes=*/0, state_.now())) return;
  record.why = std::string(why);
  record.by = {by.begin(), by.end()};
  record.changes = std::move(changes);
  Record(std::move(record));
}

void Auditor::PublicationEnded(const Publication& publication, bool replaced,
                               absl::Span<const AuditOperator> by) const {
  if (sink_ == nullptr) return;
  AuditRecord record = AuditOf(AuditEvent::kPublicationEnded, publication);
  const auto publisher = state_.sessions.find(publication.publisher);
  const bool orphaned = publisher == state_.sessions.end() || !publisher->second->live;
  if (replaced) {
    record.why = "another version replaced it";
  } else if (publication.ephemeral && orphaned) {
    record.why = "its publisher's session has ended";
  } else if (state_.ExpiryOf(publication) <= state_.now()) {
    record.why = "it expired: no session was attached to it";
  } else {
    record.why = "it was unpublished";
    record.by.assign(by.begin(), by.end());
  }
  Record(std::move(record));
}

void Auditor::Published(SessionId session, const Publication& publication) const {
  if (sink_ == nullptr) return;
  AuditRecord record = Inspector(&state_).AuditOf(AuditEvent::kPublished, session);
  AuditRecord of = AuditOf(AuditEvent::kPublished, publication);
  record.publication = std::move(of.publication);
  record.version = of.version;
  record.bytes = of.bytes;
  record.count = of.count;
  Record(std::move(record));
}

}  // namespace gpumemd
