// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/restart.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/leases.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {
namespace {

// For a restart.
void ForgetSession(LedgerModel& model, SessionId id) {
  model.sessions.erase(id);
  const auto its = [id](const auto& entry) { return entry.session == id; };
  std::erase_if(model.mappings, its);
  std::erase_if(model.imports, its);
  std::erase_if(model.events, its);
  std::erase_if(model.leases, [&](const auto& entry) { return its(entry.second); });
  std::erase_if(model.claims, [&](const auto& entry) { return entry.second.first == id; });
}

void ForgetSegment(LedgerModel& model, SegmentId id) {
  model.segments.erase(id);
  const auto of_it = [id](const auto& entry) { return entry.segment == id; };
  std::erase_if(model.mappings, of_it);
  std::erase_if(model.leases, [&](const auto& entry) { return of_it(entry.second); });
}

// Drops publications that would have ended with a publisher that is gone, and those of which a part
// is.
absl::Status RestorePublications(LedgerModel& model, const Survivors& survivors,
                                 const Restored& answer) {
  auto told = answer.lost_publications.begin();
  for (const Publication& each : std::vector<Publication>(model.publications)) {
    std::vector<SegmentId> missing;
    for (SegmentId id : each.segments) {
      if (!model.segments.contains(id) || model.segments.at(id).lost) missing.push_back(id);
    }
    const bool complete =
        missing.empty() && (each.metadata_bytes == 0 || survivors.metadata.contains(each.id));
    const bool publisher_lives = Live(model, each.publisher);
    if (complete && (!each.ephemeral || publisher_lives)) {
      continue;
    }
    std::erase_if(model.publications,
                  [&](const Publication& other) { return other.id == each.id; });
    model.ended_version = std::max(model.ended_version, each.version);
    model.forgotten_version = model.ended_version;
    if (each.ephemeral && !publisher_lives) continue;
    if (told == answer.lost_publications.end() || told->tenant != each.tenant ||
        told->name != each.name || told->version != each.version || told->segments != missing) {
      return Wrong("the loss of publication ", ToInt(each.id), " is told wrongly");
    }
    ++told;
  }
  if (told != answer.lost_publications.end()) return Wrong("a publication is not lost");
  if (answer.publications == model.publications.size()) return absl::OkStatus();
  return Wrong("expected ", model.publications.size(), " publications, got ", answer.publications);
}

}  // namespace

absl::Status Restart(LedgerModel& model, const Survivors& survivors, const Restored& answer) {
  // State that only the daemon knew.
  model.operations.clear();
  model.waiters.clear();
  model.refused.clear();
  model.in_destruction.clear();
  model.forgotten.clear();
  model.orphaned.clear();
  model.revoked.clear();
  model.unbrokered.clear();
  model.regrants.clear();
  model.attach_waiters.clear();
  model.attachable.clear();
  model.claims_given_up.clear();
  model.ended_publications.clear();
  model.last_versions.clear();
  model.gone_versions.clear();
  model.forgotten_version = model.ended_version;
  model.draining = false;
  model.last_operation = model.last_waiter = 0;
  // The journal has the use of tenants that were made at run time alone.
  std::map<std::string, std::vector<uint64_t>> peaks;
  for (auto& [name, tenant] : model.tenants) {
    if (tenant.made) {
      peaks[name] = tenant.peaks;
    } else {
      tenant.metered.clear();
    }
    tenant.denials = 0;
    tenant.peaks.assign(model.devices.size(), 0);
    tenant.parent.clear();
  }
  for (const std::string& name : TenantNames(model)) Link(model, name);
  absl::Status given_up = GiveUpGuarantees(model, answer.without_guarantees);
  if (!given_up.ok()) return given_up;
  // The ledger gave them up before it had memory.
  for (auto& [name, tenant] : model.tenants) {
    tenant.peaks =
        peaks.contains(name) ? peaks.at(name) : std::vector<uint64_t>(model.devices.size());
  }
  for (Publication& publication : model.publications) {
    if (!model.sessions.contains(publication.publisher)) publication.publisher = {};
  }
  std::vector<SessionId> dead;
  for (auto& [id, session] : model.sessions) {
    session.calls = 0;
    session.presence = Presence::kAway;
    if (!survivors.sessions.contains(id)) dead.push_back(id);
  }
  for (SessionId id : dead) ForgetSession(model, id);
  // The new states of segments, and the segments that are gone.
  std::vector<SegmentId> gone;
  std::map<SegmentId, std::set<SessionId>> lost;
  for (auto& [id, segment] : model.segments) {
    segment.given_up = segment.revoking = segment.stuck = false;
    segment.asked_to_end = segment.ended = false;
    segment.kept_since = 0;
    const bool newly_lost = !segment.lost && !survivors.memory.contains(id);
    segment.lost |= newly_lost;
    for (const Mapping& mapping : model.mappings) {
      if (segment.made && newly_lost && mapping.segment == id) lost[id].insert(mapping.session);
    }
    const bool held = MayMap(model, id) || !Importers(model, id).empty();
    if (!segment.made || (segment.lost && !held)) gone.push_back(id);
  }
  for (SegmentId id : gone) ForgetSegment(model, id);
  absl::Status published = RestorePublications(model, survivors, answer);
  if (!published.ok()) return published;
  for (Event& event : model.events) {
    if (event.place.lease && !model.leases.contains(*event.place.lease)) event.listed = false;
  }
  for (const auto& [id, lease] : model.leases) {
    if (model.segments.at(lease.segment).lost && Live(model, lease.session)) {
      model.orphaned.insert(lease.session);
    }
    if (lease.request_id > 0) model.regrants[{lease.session, lease.request_id}].push_back(id);
  }
  NotePeaks(model);
  for (const auto& [id, segment] : model.segments) SettleUnheld(model, id);
  // Sessions that were ending have ended.
  for (auto& [id, session] : model.sessions) {
    session.goes_on = false;
    if (!std::exchange(session.ending, false)) continue;
    std::erase_if(model.events, [id = id](const Event& event) { return event.session == id; });
    for (const auto& [lease_id, lease] : std::map<LeaseId, Lease>(model.leases)) {
      if (lease.session == id) EndLease(model, lease_id, /*unmapped=*/false);
    }
  }
  const auto live =
      static_cast<uint64_t>(std::count_if(model.sessions.begin(), model.sessions.end(),
                                          [](const auto& entry) { return entry.second.live; }));
  EndOrphans(model);
  const size_t segments = model.segments.size();
  Sweep(model);

  if (answer.sessions != live || answer.segments != segments ||
      answer.leases != model.leases.size()) {
    return Wrong("expected ", live, " sessions, ", segments, " segments and ", model.leases.size(),
                 " leases, got ", answer.sessions, ", ", answer.segments, " and ", answer.leases);
  }
  if (answer.lost.size() != lost.size()) {
    return Wrong("expected ", lost.size(), " losses, got ", answer.lost.size());
  }
  for (const Restored::Lost& each : answer.lost) {
    const Segment& segment = model.segments.at(each.segment);
    if (each.tenant != segment.tenant || each.device_uuid != model.devices[segment.device].uuid ||
        each.kind != segment.kind || each.bytes != segment.bytes ||
        std::set<SessionId>(each.sessions.begin(), each.sessions.end()) != lost[each.segment]) {
      return Wrong("the loss of segment ", ToInt(each.segment), " is told wrongly");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd::model
