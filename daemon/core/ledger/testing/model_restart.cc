// The model of a daemon's end and of its successor: the surviving sessions, and what they hold.
#include <algorithm>
#include <utility>

#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {

std::set<SegmentId> LedgerModel::Lasting() const {
  std::set<SegmentId> lasting;
  for (const auto& [id, segment] : segments_) {
    if (segment.made && !IsContextBound(segment.kind)) lasting.insert(id);
  }
  return lasting;
}

std::map<std::string, Quota> LedgerModel::Overridden() const {
  std::map<std::string, Quota> overridden;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant.quota_set) overridden[name] = tenant.quota;
  }
  return overridden;
}

void LedgerModel::ForgetSession(SessionId id) {
  sessions_.erase(id);
  const auto its = [id](const auto& entry) { return entry.session == id; };
  std::erase_if(mappings_, its);
  std::erase_if(imports_, its);
  std::erase_if(events_, its);
  std::erase_if(leases_, [&](const auto& entry) { return its(entry.second); });
}

void LedgerModel::ForgetSegment(SegmentId id) {
  segments_.erase(id);
  const auto of_it = [id](const auto& entry) { return entry.segment == id; };
  std::erase_if(mappings_, of_it);
  std::erase_if(leases_, [&](const auto& entry) { return of_it(entry.second); });
}

absl::Status LedgerModel::Restart(const Ledger::Survivors& survivors,
                                  const Ledger::Restored& answer) {
  // State that only the daemon knew.
  operations_.clear();
  waiters_.clear();
  refused_.clear();
  in_destruction_.clear();
  forgotten_.clear();
  bereaved_.clear();
  revoked_.clear();
  unbrokered_.clear();
  regrants_.clear();
  attach_waiters_.clear();
  attachable_.clear();
  ended_publications_.clear();
  last_versions_.clear();
  gone_versions_.clear();
  forgotten_version_ = ended_version_;
  draining_ = false;
  last_operation_ = last_waiter_ = 0;
  for (auto& [name, tenant] : tenants_) {
    tenant.denials = 0;
    tenant.peaks.assign(devices_.size(), 0);
    tenant.parent.clear();
  }
  for (const std::string& name : TenantNames()) Link(name);
  for (Publication& publication : publications_) {
    if (!sessions_.contains(publication.publisher)) publication.publisher = {};
  }
  std::vector<SessionId> dead;
  for (auto& [id, session] : sessions_) {
    session.calls = 0;
    session.presence = Presence::kAway;
    if (!survivors.sessions.contains(id)) dead.push_back(id);
  }
  for (SessionId id : dead) ForgetSession(id);
  // The new states of segments, and the segments that are gone.
  std::vector<SegmentId> gone;
  std::map<SegmentId, std::set<SessionId>> lost;
  for (auto& [id, segment] : segments_) {
    segment.given_up = segment.revoking = segment.stuck = false;
    segment.asked_to_end = segment.ended = false;
    segment.kept_since = 0;
    const bool newly_lost = !segment.lost && !survivors.memory.contains(id);
    segment.lost |= newly_lost;
    for (const Mapping& mapping : mappings_) {
      if (segment.made && newly_lost && mapping.segment == id) lost[id].insert(mapping.session);
    }
    const bool held = MayMap(id) || !Importers(id).empty();
    if (!segment.made || (segment.lost && !held)) gone.push_back(id);
  }
  for (SegmentId id : gone) ForgetSegment(id);
  absl::Status published = RestorePublications(survivors, answer);
  if (!published.ok()) return published;
  for (Event& event : events_) {
    if (event.place.lease && !leases_.contains(*event.place.lease)) event.listed = false;
  }
  for (const auto& [id, lease] : leases_) {
    if (segments_.at(lease.segment).lost && Live(lease.session)) bereaved_.insert(lease.session);
    if (lease.request_id > 0) regrants_[{lease.session, lease.request_id}].push_back(id);
  }
  NotePeaks();
  for (const auto& [id, segment] : segments_) Rest(id);
  // Sessions that were ending have ended.
  for (auto& [id, session] : sessions_) {
    session.goes_on = false;
    if (!std::exchange(session.ending, false)) continue;
    std::erase_if(events_, [id = id](const Event& event) { return event.session == id; });
    for (const auto& [lease_id, lease] : std::map<LeaseId, Lease>(leases_)) {
      if (lease.session == id) EndLease(lease_id, /*unmapped=*/false);
    }
  }
  const auto live = static_cast<uint64_t>(std::count_if(
      sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry.second.live; }));
  const size_t segments = segments_.size();
  Sweep();

  if (answer.sessions != live || answer.segments != segments || answer.leases != leases_.size()) {
    return Wrong("expected ", live, " sessions, ", segments, " segments and ", leases_.size(),
                 " leases, got ", answer.sessions, ", ", answer.segments, " and ", answer.leases);
  }
  if (answer.lost.size() != lost.size()) {
    return Wrong("expected ", lost.size(), " losses, got ", answer.lost.size());
  }
  for (const Ledger::Restored::Lost& each : answer.lost) {
    const Segment& segment = segments_.at(each.segment);
    if (each.tenant != segment.tenant || each.device_uuid != devices_[segment.device].uuid ||
        each.kind != segment.kind || each.bytes != segment.bytes ||
        std::set<SessionId>(each.sessions.begin(), each.sessions.end()) != lost[each.segment]) {
      return Wrong("the loss of segment ", ToInt(each.segment), " is told wrongly");
    }
  }
  return absl::OkStatus();
}

// Drops publications that would have ended with a publisher that is gone, and those of which a part
// is.
absl::Status LedgerModel::RestorePublications(const Ledger::Survivors& survivors,
                                              const Ledger::Restored& answer) {
  auto told = answer.lost_publications.begin();
  for (const Publication& each : std::vector<Publication>(publications_)) {
    std::vector<SegmentId> missing;
    for (SegmentId id : each.segments) {
      if (!segments_.contains(id) || segments_.at(id).lost) missing.push_back(id);
    }
    const bool complete =
        missing.empty() && (each.metadata_bytes == 0 || survivors.metadata.contains(each.id));
    const bool publisher_lives = Live(each.publisher);
    if (complete && (!each.ephemeral || publisher_lives)) {
      continue;
    }
    std::erase_if(publications_, [&](const Publication& other) { return other.id == each.id; });
    ended_version_ = std::max(ended_version_, each.version);
    forgotten_version_ = ended_version_;
    if (each.ephemeral && !publisher_lives) continue;
    if (told == answer.lost_publications.end() || told->tenant != each.tenant ||
        told->name != each.name || told->version != each.version || told->segments != missing) {
      return Wrong("the loss of publication ", ToInt(each.id), " is told wrongly");
    }
    ++told;
  }
  if (told != answer.lost_publications.end()) return Wrong("a publication is not lost");
  if (answer.publications == publications_.size()) return absl::OkStatus();
  return Wrong("expected ", publications_.size(), " publications, got ", answer.publications);
}

absl::Status LedgerModel::RegrantAttach(SessionId session, uint64_t request,
                                        const std::optional<Operation>& answer) {
  uint32_t count = 0;
  std::optional<PublicationId> through;
  if (auto it = regrants_.find({session, request}); it != regrants_.end()) {
    auto first = leases_.find(it->second.front());
    if (first != leases_.end()) through = first->second.publication;
  }
  for (const Publication& each : publications_) {
    if (each.id == through) count = static_cast<uint32_t>(each.segments.size());
  }
  if (answer && answer->publication != through) return Wrong("it is another publication's");
  return Regrant(session, request, count, answer);
}

absl::Status LedgerModel::Regrant(SessionId session, uint64_t request, uint32_t count,
                                  const std::optional<Operation>& answer) {
  std::vector<LeaseId> leases;
  bool lost = false;
  if (auto it = regrants_.find({session, request}); it != regrants_.end() && Live(session)) {
    for (LeaseId lease : it->second) {
      if (!leases_.contains(lease)) continue;  // released meanwhile
      leases.push_back(lease);
      lost |= segments_.at(leases_.at(lease).segment).lost;
    }
    regrants_.erase(it);
  }
  if (leases.empty() || leases.size() != count || lost) {
    for (LeaseId lease : leases) EndLease(lease, Trusts(leases_.at(lease)));
    return answer ? Wrong("granted once more what is not there") : absl::OkStatus();
  }
  if (!answer || ToInt(answer->id) <= last_operation_ || answer->session != session ||
      !answer->regrant || answer->request_id != request || OtherSort(session, answer->revocable) ||
      answer->items.size() != count) {
    return Wrong("expected request ", request, " to be granted once more");
  }
  last_operation_ = ToInt(answer->id);
  for (size_t i = 0; i < leases.size(); ++i) {
    const Operation::Item& item = answer->items[i];
    if (item.lease != leases[i] || item.segment != leases_.at(leases[i]).segment || item.fresh) {
      return Wrong("item ", i, " is not what was granted before");
    }
  }
  operations_.emplace(answer->id, *answer);
  return absl::OkStatus();
}

void LedgerModel::DropRegrants(SessionId session, const std::vector<uint64_t>& requests) {
  for (uint64_t request : requests) {
    auto it = regrants_.find({session, request});
    if (it == regrants_.end()) continue;
    const std::vector<LeaseId> leases = it->second;
    regrants_.erase(it);
    for (LeaseId lease : leases) {
      if (leases_.contains(lease)) EndLease(lease, Trusts(leases_.at(lease)));
    }
  }
}

absl::Status LedgerModel::Resume(SessionId id, const PeerIdentity& peer,
                                 const absl::Status& answer) {
  const bool resumes = Live(id) && sessions_.at(id).peer.pid == peer.pid &&
                       sessions_.at(id).peer.start_time == peer.start_time;
  if (resumes) sessions_.at(id).presence = Presence::kReturning;
  return ExpectCode(answer, resumes ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
}

absl::Status LedgerModel::Reconcile(SessionId id, const std::vector<LeaseId>& leases,
                                    const std::set<uint64_t>& requests,
                                    const absl::StatusOr<std::vector<LeaseId>>& answer) {
  if (!Live(id)) return ExpectCode(answer.status(), absl::StatusCode::kAborted);
  sessions_.at(id).presence = Presence::kHere;
  const auto trusts = [&](const std::string& tenant) {
    return QuotaOf(tenant).release == ReleasePolicy::kTrust;
  };
  const std::string tenant = sessions_.at(id).tenant;
  std::vector<LeaseId> unknown, ended;
  for (LeaseId lease : leases) {
    auto it = leases_.find(lease);
    if (it == leases_.end() || it->second.session != id) unknown.push_back(lease);
  }
  for (const auto& [lease_id, lease] : leases_) {
    const bool kept = std::find(leases.begin(), leases.end(), lease_id) != leases.end();
    const bool asked = lease.request_id > 0 && requests.contains(lease.request_id);
    if (lease.session == id && !kept && !asked) ended.push_back(lease_id);
  }
  for (LeaseId lease : ended) EndLease(lease, Trusts(leases_.at(lease)));
  std::erase_if(regrants_, [&](const auto& entry) { return entry.first.first == id; });
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.session != id || lease.request_id == 0 || !requests.contains(lease.request_id)) {
      continue;
    }
    regrants_[{id, lease.request_id}].push_back(lease_id);
  }
  // Mappings beyond its leases were being handed over or have been released: the session has none
  // of them.
  const bool busy = std::any_of(operations_.begin(), operations_.end(),
                                [&](const auto& entry) { return entry.second.session == id; });
  for (const auto& [segment_id, segment] : segments_) {
    if (busy || !trusts(tenant) || !trusts(segment.tenant) || !MayMap(id, segment_id)) continue;
    const auto has = std::count_if(
        leases_.begin(), leases_.end(), [&, segment_id = segment_id](const auto& entry) {
          return entry.second.session == id && entry.second.segment == segment_id;
        });
    while (std::count(mappings_.begin(), mappings_.end(), Mapping{id, segment_id}) > has) {
      Unmap(id, segment_id);
    }
    Rest(segment_id);
  }
  if (answer.ok() && *answer == unknown) return absl::OkStatus();
  return Wrong("expected ", unknown.size(), " unknown leases, got ", answer.status().ToString());
}

}  // namespace gpumemd
