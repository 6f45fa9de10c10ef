// What the ledger tells the audit: all that it alone knows. Denials are the broker's to tell, who
// knows which call they answer.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

AuditRecord Ledger::AuditOf(AuditEvent event, SessionId id) const {
  const Session& session = *sessions_.at(id);
  return {.event = event,
          .tenant = session.tenant->name,
          .session = id,
          .pid = session.details.peer.pid,
          .uid = session.details.peer.uid,
          .client = session.details.client_name,
          .command = session.details.command};
}

AuditRecord Ledger::AuditOf(AuditEvent event, const Publication& publication) {
  return {.event = event,
          .tenant = publication.tenant->name,
          .publication = absl::StrCat(publication.tenant->name, "/", publication.name),
          .version = publication.version,
          .bytes = publication.bytes,
          .count = publication.segments.size()};
}

void Ledger::Audit(AuditRecord record) const {
  record.time = now_();
  audit_->Record(std::move(record));
}

void Ledger::AuditSegments(const AuditRecord& about,
                           absl::Span<const AuditedSegment> segments) const {
  // Nearly always they are all of one sort.
  std::vector<std::pair<std::tuple<const Tenant*, size_t, Kind>, AuditRecord>> records;
  for (const auto& [id, lease] : segments) {
    const Segment& segment = *segments_.at(id);
    const std::tuple sort(segment.tenant, segment.device, segment.kind);
    auto record = std::find_if(records.begin(), records.end(),
                               [&](const auto& each) { return each.first == sort; });
    if (record == records.end()) {
      record = records.emplace(records.end(), sort, about);
      AuditRecord& made = record->second;
      if (segment.tenant->name != made.tenant) made.owner = segment.tenant->name;
      made.device = devices_[segment.device].uuid;
      made.kind = std::string(KindName(segment.kind));
      made.bytes = made.count = 0;
    }
    AuditRecord& of = record->second;
    *of.bytes += segment.charge.bytes();
    if (++*of.count > kMaxAuditIds) continue;
    of.segments.push_back(id);
    if (lease != LeaseId{}) of.leases.push_back(lease);
  }
  for (auto& [sort, record] : records) Audit(std::move(record));
}

bool Ledger::LeavesOut(AuditEvent event, SessionId session,
                       absl::Span<const AuditedSegment> segments) const {
  uint64_t bytes = 0;
  for (const auto& [id, lease] : segments) bytes += segments_.at(id)->charge.bytes();
  return audit_->LeavesOut(event, sessions_.at(session)->tenant->name, bytes, now_());
}

void Ledger::AuditGrant(const Operation& operation) const {
  if (audit_ == nullptr) return;
  std::vector<AuditedSegment> segments;
  for (const Operation::Item& item : operation.items) {
    segments.push_back({item.segment, item.lease});
  }
  if (LeavesOut(AuditEvent::kGranted, operation.session, segments)) return;
  AuditRecord about = AuditOf(AuditEvent::kGranted, operation.session);
  const Operation::Item& first = operation.items.front();
  about.call = operation.publication ? "attach" : first.fresh || first.reused ? "acquire" : "open";
  if (operation.publication) {
    // It may have ended meanwhile; then it is named by nothing.
    auto attached = publications_.find(*operation.publication);
    if (attached != publications_.end()) {
      about.publication = absl::StrCat(attached->second.tenant->name, "/", attached->second.name);
      about.version = attached->second.version;
    }
  }
  AuditSegments(about, segments);
}

void Ledger::AuditRelease(SessionId session, absl::Span<const LeaseId> leases,
                          absl::string_view why) const {
  if (audit_ == nullptr) return;
  std::vector<AuditedSegment> segments;
  for (LeaseId lease : leases) {
    const Lease* found = leases_.Find(lease);
    if (found == nullptr || found->session != session) continue;
    segments.push_back({found->segment, lease});
  }
  if (segments.empty() || LeavesOut(AuditEvent::kReleased, session, segments)) return;
  AuditRecord about = AuditOf(AuditEvent::kReleased, session);
  about.why = std::string(why);
  AuditSegments(about, segments);
}

void Ledger::AuditSession(AuditEvent event, SessionId id) const {
  if (audit_ == nullptr) return;
  const Session& session = *sessions_.at(id);
  AuditRecord record = AuditOf(event, id);
  if (event == AuditEvent::kSessionOpened) record.rule = session.details.rule;
  if (event == AuditEvent::kSessionEnded) {
    record.bytes = session.leased_bytes;
    record.count = session.leased.size();
    record.why = session.process_gone ? "its process has ended" : "its socket was closed";
  }
  Audit(std::move(record));
}

void Ledger::AuditReclaim(SessionId id, absl::Span<const SegmentId> mapped) const {
  if (audit_ == nullptr) return;
  std::vector<AuditedSegment> freed;
  for (SegmentId segment : mapped) {
    // What is doomed is still there.
    const SegmentState state = segments_.at(segment)->charge.state();
    const bool is_free = state == SegmentState::kRetained || state == SegmentState::kReleasing;
    if (is_free) freed.push_back({segment, LeaseId{}});
  }
  AuditSegments(AuditOf(AuditEvent::kReclaimed, id), freed);
}

void Ledger::AuditRevocation(AuditEvent event, absl::Span<const SegmentId> segments,
                             absl::string_view why) const {
  if (audit_ == nullptr) return;
  for (SegmentId id : segments) {
    const Segment& segment = *segments_.at(id);
    AuditRecord about{.event = event, .tenant = segment.tenant->name, .why = std::string(why)};
    if (event == AuditEvent::kRevoking) {
      for (const auto& [holder, times] : segment.exposures) about.holders.push_back(holder);
    }
    AuditSegments(about, {{id, LeaseId{}}});
  }
}

void Ledger::AuditLost(const absl::flat_hash_set<SegmentId>& segments) const {
  if (audit_ == nullptr) return;
  for (SegmentId id : absl::btree_set<SegmentId>(segments.begin(), segments.end())) {
    const Segment& segment = *segments_.at(id);
    AuditRecord about{.event = AuditEvent::kLost,
                      .tenant = segment.tenant->name,
                      .why = "the CUDA context that it lived in is gone"};
    for (const auto& [holder, times] : segment.exposures) about.holders.push_back(holder);
    AuditSegments(about, {{id, LeaseId{}}});
  }
}

void Ledger::AuditPublicationEnd(const Publication& publication, bool replaced,
                                 absl::Span<const AuditOperator> by) const {
  if (audit_ == nullptr) return;
  AuditRecord record = AuditOf(AuditEvent::kPublicationEnded, publication);
  const auto publisher = sessions_.find(publication.publisher);
  const bool orphaned = publisher == sessions_.end() || !publisher->second->live;
  if (replaced) {
    record.why = "another version has taken its place";
  } else if (publication.ephemeral && orphaned) {
    record.why = "its publisher's session has ended";
  } else if (ExpiryOf(publication) <= now_()) {
    record.why = "nobody has been attached to it for as long as it was to be kept";
  } else {
    record.why = "it was unpublished";
    record.by.assign(by.begin(), by.end());
  }
  Audit(std::move(record));
}

void Ledger::AuditPublish(SessionId session, const Publication& publication) const {
  if (audit_ == nullptr) return;
  AuditRecord record = AuditOf(AuditEvent::kPublished, session);
  AuditRecord of = AuditOf(AuditEvent::kPublished, publication);
  record.publication = std::move(of.publication);
  record.version = of.version;
  record.bytes = of.bytes;
  record.count = of.count;
  Audit(std::move(record));
}

}  // namespace gpumemd
