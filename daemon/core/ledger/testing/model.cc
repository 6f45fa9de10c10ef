#include "daemon/core/ledger/testing/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/denial.h"

namespace gpumemd {

LedgerModel::LedgerModel(std::vector<DeviceInfo> devices, Bounds bounds)
    : devices_(std::move(devices)), bounds_(bounds) {}

absl::Status LedgerModel::ExpectCode(const absl::Status& answer, absl::StatusCode code) {
  if (answer.code() == code) return absl::OkStatus();
  return Wrong("expected ", absl::StatusCodeToString(code), ", got ", answer.ToString());
}

// --- Holders -------------------------------------------------------------------------

bool LedgerModel::Live(SessionId session) const {
  auto it = sessions_.find(session);
  return it != sessions_.end() && it->second.live;
}

bool LedgerModel::MayMap(SessionId session, SegmentId segment) const {
  return std::find(mappings_.begin(), mappings_.end(), Mapping{session, segment}) !=
         mappings_.end();
}

SegmentState LedgerModel::StateOf(SegmentId id) const {
  const Segment& segment = segments_.at(id);
  if (segment.given_up) return SegmentState::kReleasing;
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.segment == id) return SegmentState::kLeased;
  }
  if (IsPublished(id)) return SegmentState::kLeased;
  for (const auto& [operation_id, operation] : operations_) {
    for (const Operation::Item& item : operation.items) {
      if (item.segment == id) return SegmentState::kPending;
    }
  }
  if (MayMap(id) || !Importers(id).empty()) return SegmentState::kLingering;
  return SegmentState::kRetained;
}

bool LedgerModel::MayMap(SegmentId segment) const {
  return std::any_of(mappings_.begin(), mappings_.end(),
                     [&](const Mapping& mapping) { return mapping.segment == segment; });
}

std::set<SessionId> LedgerModel::Importers(SegmentId id) const {
  const Segment& segment = segments_.at(id);
  std::set<SessionId> importers;
  for (const Import& import : imports_) {
    if (segment.kind == Kind::kMempool && import.device == segment.device &&
        sessions_.at(import.session).tenant == segment.tenant) {
      importers.insert(import.session);
    }
  }
  return importers;
}

// By a lease, an operation or a process that may map it.
bool LedgerModel::Held(SegmentId id) const {
  const SegmentState state = StateOf(id);
  return state == SegmentState::kLeased || state == SegmentState::kPending ||
         state == SegmentState::kLingering;
}

bool LedgerModel::AnyReleasing() const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [](const auto& entry) { return entry.second.given_up; });
}

size_t LedgerModel::DeviceIndex(const std::string& uuid) const {
  size_t index = 0;
  while (index < devices_.size() && devices_[index].uuid != uuid) ++index;
  return index;
}

LedgerModel::Sum LedgerModel::Of(absl::string_view tenant, size_t device, Which which,
                                 const std::set<SegmentId>& without) const {
  Sum sum;
  for (const auto& [id, segment] : segments_) {
    if (!IsUnder(segment.tenant, tenant)) continue;
    if (device == kUnpinned ? Pinned(segment.device)
                            : device != kEverywhere && segment.device != device) {
      continue;
    }
    const bool held = !segment.given_up && segment.kept_since == 0;
    const bool counts = which == Which::kAll || (which == Which::kStaying && !segment.given_up) ||
                        (which == Which::kHeld && held) ||
                        (which == Which::kNotTaken && held && !segment.revoking) ||
                        (which == Which::kFirm && held && !segment.revocable) ||
                        (which == Which::kGivenUp && segment.given_up);
    if (!counts || without.contains(id)) continue;
    sum.bytes += segment.bytes;
    ++sum.segments;
  }
  return sum;
}

uint64_t LedgerModel::Retained(const std::string& tenant, size_t device) const {
  uint64_t bytes = 0;
  for (const auto& [id, segment] : segments_) {
    if (segment.tenant == tenant && segment.device == device && segment.kept_since > 0) {
      bytes += segment.bytes;
    }
  }
  return bytes;
}

// --- Sessions ------------------------------------------------------------------------

absl::Status LedgerModel::OpenSession(const std::string& name, const std::string& client,
                                      const PeerIdentity& peer, absl::Time now, const Secret& token,
                                      const absl::StatusOr<SessionId>& answer) {
  if (draining_) return ExpectCode(answer.status(), absl::StatusCode::kUnavailable);
  if (!tenants_.contains(name)) {
    tenants_[name] = {.quota = defaults_, .peaks = std::vector<uint64_t>(devices_.size())};
    Link(name);
  }
  const auto replaced = static_cast<uint64_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
        return entry.second.tenant == name && entry.second.peer.pid == peer.pid &&
               entry.second.peer.start_time == peer.start_time && peer.start_time != 0 &&
               OnlyImports(entry.first);
      }));
  const uint64_t in_all = sessions_.size() - replaced;
  std::optional<Expected> denial;
  for (const std::string& each : PathOf(name)) {
    const auto sessions = static_cast<uint64_t>(
        std::count_if(sessions_.begin(), sessions_.end(),
                      [&](const auto& entry) { return IsUnder(entry.second.tenant, each); }));
    const uint64_t limit = QuotaOf(each).max_sessions.value_or(UINT32_MAX);
    if (denial || sessions - replaced < limit) continue;
    denial = {{Denial::Cause::kMaxSessions, each, kEverywhere}, 1, sessions - replaced, limit};
  }
  if (!denial && in_all >= bounds_.max_sessions) {
    denial = {{Denial::Cause::kDaemonLimit, "", kEverywhere}, 1, in_all, bounds_.max_sessions};
  }
  absl::Status verdict;
  if (denial) {
    verdict = ExpectDenial(answer.status(), name, *denial);
  } else if (!answer.ok() || ToInt(*answer) <= last_session_) {
    return Wrong("expected a new session, got ", answer.status().ToString());
  } else {
    last_session_ = ToInt(*answer);
    sessions_[*answer] = {
        .tenant = name, .client = client, .peer = peer, .token = token, .opened = now};
  }
  Sweep();
  return verdict;
}

void LedgerModel::EndSession(SessionId id) {
  Session& session = sessions_.at(id);
  if (!session.live) return;
  session.live = false;
  session.ending = true;
  std::vector<WaiterId> waiting;
  for (const auto& [waiter_id, waiter] : waiters_) {
    if (waiter.session == id) waiting.push_back(waiter_id);
  }
  for (WaiterId waiter : waiting) {
    Leave(waiter);
    refused_.push_back(waiter);
  }
  EndAttachWaitsOf(id);
}

void LedgerModel::SocketClosed(SessionId id) {
  if (sessions_.contains(id)) EndSession(id);
}

void LedgerModel::ProcessGone(SessionId id) {
  if (!sessions_.contains(id)) return;
  sessions_.at(id).process_gone = true;
  EndSession(id);
  sessions_.at(id).ending = true;
}

bool LedgerModel::HasEnding() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& entry) { return entry.second.ending; });
}

bool LedgerModel::HasEnded(SessionId id) const {
  const auto its = [id](const auto& each) { return each.session == id; };
  const bool tenant_lives = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second.live && entry.second.tenant == sessions_.at(id).tenant;
  });
  return std::none_of(events_.begin(), events_.end(), its) &&
         std::none_of(
             publications_.begin(), publications_.end(),
             [id](const Publication& each) { return each.ephemeral && each.publisher == id; }) &&
         std::none_of(leases_.begin(), leases_.end(),
                      [&](const auto& entry) { return its(entry.second); }) &&
         (tenant_lives || std::none_of(segments_.begin(), segments_.end(),
                                       [&](const auto& entry) {
                                         return entry.second.tenant == sessions_.at(id).tenant &&
                                                entry.second.kept_since > 0;
                                       })) &&
         (!sessions_.at(id).process_gone ||
          (std::none_of(imports_.begin(), imports_.end(), its) &&
           std::none_of(mappings_.begin(), mappings_.end(), its)));
}

absl::Status LedgerModel::ContinueEnding(const Ledger& ledger) {
  if (!HasEnding()) return absl::OkStatus();
  const JournalImage image = ledger.Image();
  std::set<SegmentId> given_up;  // by the ledger
  const auto views = ledger.look().ListSegments("", "");
  for (const SegmentView& view : *views) {
    if (view.state == SegmentState::kReleasing) given_up.insert(view.id);
  }
  bool any_ended = false;  // of those that were ending after an earlier call
  for (auto& [id, session] : sessions_) {
    if (!session.ending) continue;
    std::erase_if(events_, [&, id = id](const Event& event) {
      return event.session == id && !image.ipc_events.contains(event.id);
    });
    for (const Publication& each : std::vector<Publication>(publications_)) {
      if (each.ephemeral && each.publisher == id && !image.publications.contains(each.id)) {
        EndPublication(each.id);
      }
    }
    const std::string tenant = session.tenant;
    const bool tenant_lives =
        std::any_of(sessions_.begin(), sessions_.end(), [&tenant](const auto& entry) {
          return entry.second.live && entry.second.tenant == tenant;
        });
    for (auto& [segment_id, segment] : segments_) {
      if (!tenant_lives && segment.tenant == tenant && segment.kept_since > 0 &&
          given_up.contains(segment_id)) {
        GiveUp(segment);
      }
    }
    for (const auto& [lease_id, lease] : std::map<LeaseId, Lease>(leases_)) {
      if (lease.session != id || image.leases.contains(lease_id)) continue;
      EndLease(lease_id, /*unmapped=*/false);
    }
    if (session.process_gone) {
      for (auto& [segment_id, segment] : segments_) {
        // Segments of a pool that no other process has open.
        if (segment.kind == Kind::kMempool && given_up.contains(segment_id) &&
            StateOf(segment_id) == SegmentState::kLingering && !MayMap(segment_id) &&
            Importers(segment_id) == std::set<SessionId>{id}) {
          GiveUp(segment);
        }
      }
      for (size_t device = 0; device < devices_.size(); ++device) {
        const std::pair key(id, journal::DeviceUuid(devices_[device].uuid));
        if (!image.pool_imports.contains(key)) Unimport(id, device, /*all=*/true);
      }
      std::set<SegmentId> unmapped;
      for (const Mapping& mapping : mappings_) {
        if (mapping.session == id && !image.exposures.contains(std::pair(id, mapping.segment))) {
          unmapped.insert(mapping.segment);
        }
      }
      for (SegmentId segment : unmapped) {
        while (MayMap(id, segment)) Unmap(id, segment);
        Rest(segment);
      }
    }
    session.ending = ledger.state().ending.contains(id);
    if (!session.ending && !HasEnded(id)) return Wrong("session ", ToInt(id), " has not ended");
    if (std::exchange(session.goes_on, session.ending) && !session.ending) any_ended = true;
  }
  if (any_ended && !HasEnding()) stirred_ = true;  // others may have waited for that
  Sweep();
  return absl::OkStatus();
}

bool LedgerModel::OnlyImports(SessionId id) const {
  const Session& session = sessions_.at(id);
  return !session.live && !session.ending && session.calls == 0 &&
         std::none_of(mappings_.begin(), mappings_.end(),
                      [&](const Mapping& mapping) { return mapping.session == id; }) &&
         std::none_of(operations_.begin(), operations_.end(),
                      [&](const auto& entry) { return entry.second.session == id; }) &&
         std::none_of(waiters_.begin(), waiters_.end(),
                      [&](const auto& entry) { return entry.second.session == id; }) &&
         std::none_of(attach_waiters_.begin(), attach_waiters_.end(),
                      [&](const auto& entry) { return entry.second.session == id; });
}

std::optional<SessionId> LedgerModel::OtherOfItsProcess(SessionId id) const {
  const Session& session = sessions_.at(id);
  for (const auto& [other_id, other] : sessions_) {
    if (other_id != id && other.tenant == session.tenant && other.peer.pid == session.peer.pid &&
        other.peer.start_time == session.peer.start_time && other.peer.start_time != 0 &&
        !other.process_gone) {
      return other_id;
    }
  }
  return std::nullopt;
}

void LedgerModel::Sweep() {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const SessionId id = it->first;
    bool needed = !OnlyImports(id);
    const auto imports = std::count_if(imports_.begin(), imports_.end(),
                                       [&](const Import& import) { return import.session == id; });
    if (!needed && imports > 0) {
      const std::optional<SessionId> other = OtherOfItsProcess(id);
      needed = !other.has_value();
      for (Import& import : imports_) {
        if (other && import.session == id) import.session = *other;
      }
    }
    if (needed) {
      ++it;
      continue;
    }
    forgotten_.push_back(id);
    it = sessions_.erase(it);
  }
  const auto forgotten = std::erase_if(tenants_, [&](const auto& entry) {
    const std::string& name = entry.first;
    return !entry.second.configured && !entry.second.quota_set &&
           std::none_of(sessions_.begin(), sessions_.end(),
                        [&](const auto& session) { return session.second.tenant == name; }) &&
           std::none_of(segments_.begin(), segments_.end(),
                        [&](const auto& segment) { return segment.second.tenant == name; });
  });
  std::erase_if(last_versions_, [&](const auto& entry) {
    if (tenants_.contains(entry.first.first)) return false;
    uint64_t& version = gone_versions_[entry.first.first];
    version = std::max(version, entry.second);
    return true;
  });
  if (forgotten > 0) stirred_ = true;  // their guarantees are free
}

absl::Status LedgerModel::TakeForgotten(std::vector<SessionId> answer) {
  std::vector<SessionId> expected = std::exchange(forgotten_, {});
  std::sort(expected.begin(), expected.end());
  std::sort(answer.begin(), answer.end());
  if (answer == expected) return absl::OkStatus();
  return Wrong("expected ", expected.size(), " sessions to be forgotten, got ", answer.size());
}

absl::Status LedgerModel::BeginCall(SessionId id, const absl::Status& answer) {
  if (!Live(id)) return ExpectCode(answer, absl::StatusCode::kAborted);
  const std::string& tenant = sessions_.at(id).tenant;
  uint64_t calls = 0;
  for (const auto& [other_id, other] : sessions_) {
    if (other.tenant == tenant) calls += other.calls;
  }
  const uint64_t limit = tenants_.at(tenant).quota.max_in_flight.value_or(UINT32_MAX);
  if (calls >= limit) {
    return ExpectDenial(answer, tenant,
                        {{Denial::Cause::kMaxInFlight, tenant, kEverywhere}, 1, calls, limit});
  }
  ++sessions_.at(id).calls;
  return ExpectCode(answer, absl::StatusCode::kOk);
}

void LedgerModel::EndCall(SessionId id) {
  --sessions_.at(id).calls;
  Sweep();
}

// --- Giving memory back --------------------------------------------------------------

bool LedgerModel::GiveUpOldest(const std::string& tenant, size_t device) {
  Segment* oldest = nullptr;
  for (auto& [id, segment] : segments_) {
    if (segment.tenant != tenant || segment.device != device || segment.kept_since == 0) continue;
    if (oldest == nullptr || segment.kept_since < oldest->kept_since) oldest = &segment;
  }
  if (oldest == nullptr) return false;
  GiveUp(*oldest);
  return true;
}

void LedgerModel::GiveUp(Segment& segment) {
  segment.kept_since = 0;
  segment.given_up = true;
  segment.revoking = false;
  stirred_ = true;
}

bool LedgerModel::GiveUpAnywhere(const std::string& tenant, bool pinned_too) {
  for (size_t device = 0; device < devices_.size(); ++device) {
    if (!pinned_too && Pinned(device)) continue;
    if (GiveUpOldest(tenant, device)) return true;
  }
  return false;
}

bool LedgerModel::GiveUpOfTheRichest(size_t device, absl::string_view above) {
  std::string richest;
  uint64_t most = 0;
  for (const auto& [name, tenant] : tenants_) {
    const uint64_t bytes = Retained(name, device);
    if (bytes <= most || !IsUnder(name, above)) continue;
    most = bytes;
    richest = name;
  }
  return most > 0 && GiveUpOldest(richest, device);
}

void LedgerModel::GiveUpAllOf(const std::string& tenant) {
  while (GiveUpAnywhere(tenant)) {
  }
}

void LedgerModel::Unmap(SessionId session, SegmentId segment) {
  mappings_.erase(std::find(mappings_.begin(), mappings_.end(), Mapping{session, segment}));
}

void LedgerModel::Unimport(SessionId session, size_t device, bool all) {
  do {
    const auto found = std::find(imports_.begin(), imports_.end(), Import{session, device});
    if (found == imports_.end()) break;
    imports_.erase(found);
  } while (all);
  for (const auto& [id, segment] : segments_) {
    if (segment.kind == Kind::kMempool && !Held(id)) Rest(id);
  }
}

void LedgerModel::EndLease(LeaseId id, bool unmapped) {
  const Lease lease = leases_.at(id);
  leases_.erase(id);
  for (Event& event : events_) {
    if (event.place.lease == id) event.listed = false;
  }
  if (unmapped) Unmap(lease.session, lease.segment);
  Rest(lease.segment);
}

void LedgerModel::Rest(SegmentId id) {
  Segment& segment = segments_.at(id);
  // A segment that is idle in a pool is available to its tenant.
  if (StateOf(id) == SegmentState::kLingering && !MayMap(id) && !segment.lost) stirred_ = true;
  if (segment.given_up || Held(id)) return;
  segment.revoking = false;
  stirred_ = true;
  const Tenant& tenant = tenants_.at(segment.tenant);
  const bool tenant_lives = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second.live && entry.second.tenant == segment.tenant;
  });
  if (!segment.lost && !segment.shared_out && segment.kind != Kind::kMempool &&
      !tenant.quota.scrub && !draining_ && tenant_lives &&
      !OverALimit(segment.tenant, segment.device) &&
      Retained(segment.tenant, segment.device) + segment.bytes <=
          MaxRetainedOn(tenant, segment.device)) {
    segment.kept_since = ++clock_;
  } else {
    GiveUp(segment);
  }
}

absl::Status LedgerModel::TakeDoomed(const std::vector<SegmentId>& answer) {
  for (SegmentId id : answer) {
    auto it = segments_.find(id);
    if (it == segments_.end() || !it->second.given_up) {
      return Wrong("segment ", ToInt(id), " is doomed though it should live");
    }
    for (const Mapping& mapping : mappings_) {
      if (mapping.segment == id) return Wrong("segment ", ToInt(id), " is doomed while mapped");
    }
    if (!in_destruction_.insert(id).second) return Wrong("segment ", ToInt(id), " doomed twice");
  }
  for (const auto& [id, segment] : segments_) {
    if (segment.given_up && !in_destruction_.contains(id)) {
      return Wrong("segment ", ToInt(id), " should be doomed");
    }
  }
  return absl::OkStatus();
}

void LedgerModel::Destroyed(SegmentId id) {
  in_destruction_.erase(id);
  segments_.erase(id);
  stirred_ = true;
  Sweep();
}

absl::Status LedgerModel::Trim(const std::string& tenant, const std::string& device,
                               uint64_t keep_bytes,
                               const absl::StatusOr<std::vector<SegmentId>>& answer) {
  if ((!tenant.empty() && !tenants_.contains(tenant)) ||
      (!device.empty() && DeviceIndex(device) >= devices_.size())) {
    return ExpectCode(answer.status(), absl::StatusCode::kNotFound);
  }
  if (!answer.ok()) return Wrong("expected a trim, got ", answer.status().ToString());
  const uint64_t before = Of("", kEverywhere, Which::kGivenUp).segments;
  for (const auto& [name, entry] : tenants_) {
    if (!tenant.empty() && name != tenant) continue;
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (!device.empty() && devices_[d].uuid != device) continue;
      while (Retained(name, d) > keep_bytes) GiveUpOldest(name, d);
    }
  }
  const std::set<SegmentId> distinct(answer->begin(), answer->end());
  if (distinct.size() != answer->size() ||
      answer->size() != Of("", kEverywhere, Which::kGivenUp).segments - before) {
    return Wrong("expected ", Of("", kEverywhere, Which::kGivenUp).segments - before,
                 " trimmed segments, got ", answer->size());
  }
  for (SegmentId id : distinct) {
    auto it = segments_.find(id);
    if (it == segments_.end() || !it->second.given_up || in_destruction_.contains(id)) {
      return Wrong("segment ", ToInt(id), " was trimmed though it was not retained");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
