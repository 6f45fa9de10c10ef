// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/restart.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/records.h"
#include "daemon/core/ledger/testing/model/regrants.h"
#include "daemon/core/ledger/testing/model/restart.h"
#include "daemon/core/ledger/testing/model/revocation.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/tenants.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {
namespace {

bool IsOfAttach(const Course& course, const std::vector<LeaseId>& leases) {
  auto first = course.model.leases.find(leases.front());
  return first != course.model.leases.end() && first->second.publication;
}

// Checks that the journal's records of the survivors have not changed.
absl::Status CheckInherited(const Course& course, const JournalImage& before) {
  const auto same = [](const auto& now, const auto& then) {
    return std::all_of(now.begin(), now.end(), [&](const auto& entry) {
      auto it = then.find(entry.first);
      return it != then.end() && it->second == entry.second;
    });
  };
  auto segments = before.segments;
  for (auto& [id, segment] : segments) {
    auto it = course.image.segments.find(id);
    if (it == course.image.segments.end()) continue;
    segment.lost |= it->second.lost;
    if (it->second.home_uuid.empty()) segment.home_uuid = "";  // it is retained now
  }
  auto sessions = before.sessions;  // without a lease type if its mappings are gone
  for (auto& [id, session] : sessions) {
    auto it = course.image.sessions.find(id);
    if (it != course.image.sessions.end()) session.revocable &= it->second.revocable;
  }
  auto events = before.ipc_events;
  for (auto& [id, event] : events) {
    if (!course.image.leases.contains(event.lease)) event.lease = {};
  }
  // A process that had several sessions may have its pools open as one session.
  const auto smaller = [&](const auto& entry) {
    auto it = before.pool_imports.find(entry.first);
    return it != before.pool_imports.end() && entry.second.count < it->second.count;
  };
  const bool imports =
      std::none_of(course.image.pool_imports.begin(), course.image.pool_imports.end(), smaller);
  auto publications = before.publications;
  for (auto& [id, publication] : publications) {
    auto it = course.image.publications.find(id);
    if (it == course.image.publications.end()) continue;
    // It may have no attached session any more, or its publisher may be gone.
    if (publication.idle_since_ns == 0) publication.idle_since_ns = it->second.idle_since_ns;
    if (it->second.publisher == SessionId{}) publication.publisher = {};
  }
  if (!same(course.image.publications, publications) ||
      !same(course.image.publication_contents, before.publication_contents) ||
      !same(course.image.claims, before.claims) ||
      !same(course.image.publication_items, before.publication_items)) {
    return absl::InternalError("what is published is not what it was");
  }
  if (imports && same(course.image.sessions, sessions) && same(course.image.segments, segments) &&
      same(course.image.leases, before.leases) && same(course.image.exposures, before.exposures) &&
      same(course.image.ipc_events, events)) {
    return absl::OkStatus();
  }
  return absl::InternalError("what goes on is not what it was");
}

// Returns the number of segments that the session's process may map.
uint64_t ExposedIn(const Course& course, SessionId session) {
  uint64_t exposed = 0;
  for (const auto& [key, exposure] : course.ledger.Image().exposures) {
    exposed += key.first == session ? 1 : 0;
  }
  return exposed;
}

// Counts the state at the moment of the kill.
void CoverMoment(Course& course) {
  course.Cover("killed");
  if (!course.model.operations.empty()) course.Cover("killed during operations");
  if (!course.model.waiters.empty()) course.Cover("killed while somebody waited");
  if (model::AnyReleasing(course.model)) course.Cover("killed while memory went back");
  if (model::NextOverdue(course.model) != absl::InfiniteFuture()) {
    course.Cover("killed during a revocation");
  }
  if (course.ledger.state().draining) course.Cover("killed while draining");
  if (course.ledger.endings().HasAny()) course.Cover("killed while a session ended");
  if (!course.model.claims.empty()) course.Cover("killed while contents were claimed");
  if (!course.model.regrants.empty()) course.Cover("killed before all had come back");
  for (const auto& [id, operation] : course.model.operations) {
    if (operation.regrant) course.Cover("killed during a second handing over");
  }
}

// Most processes and most memory survive; memory of contexts is gone with the daemon.
Survivors ChooseSurvivors(Course& course) {
  Survivors survivors;
  const uint64_t die = course.chance.In100(30) ? 0 : course.chance.In100(90) ? 30 : 100;
  std::map<std::pair<pid_t, uint64_t>, bool> lives;
  for (const auto& [id, record] : course.image.sessions) {
    const auto process = lives.emplace(std::pair(record.pid, record.start_time), false);
    if (process.second) process.first->second = !course.chance.In100(die);
    if (course.model.sessions.at(id).process_gone || !process.first->second) continue;
    survivors.sessions[id] = {
        .peer = {.pid = record.pid, .start_time = record.start_time},
        .client_name = std::string(record.client_name.view()),
        .command = std::string(record.command.view()),
    };
    course.Cover(record.ended ? "an ended session goes on" : "a session goes on");
  }
  const bool loses = course.chance.In100(15);
  for (SegmentId id : model::Lasting(course.model)) {
    const uint64_t gone = course.model.in_destruction.contains(id) ? 50 : loses ? 20 : 0;
    if (!course.chance.In100(gone)) survivors.memory.insert(id);
  }
  for (const auto& [id, publication] : course.image.publications) {
    if (!loses || !course.chance.In100(20)) survivors.metadata.insert(id);
  }
  return survivors;
}

}  // namespace

absl::Status Restart(Course& course) {
  if (absl::Status same = course.CheckImage(); !same.ok()) return same;
  CoverMoment(course);
  const Survivors survivors = ChooseSurvivors(course);
  const std::map<std::string, OverriddenQuota> overridden = model::Overridden(course.model);
  const Revocations::Times times = course.ledger.revocations().times();

  std::destroy_at(&course.ledger);
  std::construct_at(&course.ledger, course.devices, course.bounds,
                    [&course] { return course.now; });
  course.ledger.SetAudit(&course.audit);
  course.ledger.revocations().SetTimes(times);
  course.ledger.tenants().Configure(course.configured, course.defaults, overridden);
  const Restored restored = course.ledger.Restore(course.image, survivors);
  const JournalImage before = std::exchange(course.image, course.ledger.Image());
  course.ledger.KeepChanges();

  course.granted_waiters.clear();  // numbers of waiters begin anew
  if (!restored.lost.empty()) course.Cover("lost by a restart");
  if (restored.publications > 0) course.Cover("a publication goes on");
  if (!restored.lost_publications.empty()) course.Cover("a publication is lost by a restart");
  absl::Status result = model::Restart(course.model, survivors, restored);
  if (result.ok()) result = CheckInherited(course, before);
  return course.After(result, "killed; ", survivors.sessions.size(), " sessions, of which ",
                      restored.sessions, " go on, and ", restored.leases, " leases");
}

absl::Status Regrant(Course& course) {
  SessionId session = course.AnySession();
  uint64_t request = course.chance.Below(12);
  auto count = static_cast<uint32_t>(course.chance.Below(3));
  if (!course.model.regrants.empty() && course.chance.In100(95)) {
    const auto& [key, leases] = course.chance.Of(course.model.regrants);
    if (course.chance.In100(95)) session = key.first;
    request = key.second;
    if (course.chance.In100(85)) count = static_cast<uint32_t>(leases.size());
  }
  if (!course.model.leases.empty() &&
      course.chance.In100(20)) {  // also a lease made since the restart
    const model::Lease& chosen = course.chance.Of(course.model.leases).second;
    session = chosen.session;
    request = chosen.request_id;
    count = 0;
    for (const auto& [id, lease] : course.model.leases) {
      count += lease.session == session && lease.request_id == request ? 1 : 0;
    }
  }
  const std::optional<Operation> answer =
      course.ledger.reconciliation().Regrant(session, request, count);
  course.Cover(answer ? "granted once more" : "not granted once more");
  return course.After(model::Regrant(course.model, session, request, count, answer), "Regrant ",
                      ToInt(session), " ", request, " x ", count, " -> ",
                      answer ? absl::StrCat(ToInt(answer->id)) : "no");
}

absl::Status RegrantAttach(Course& course) {
  SessionId session = course.AnySession();
  uint64_t request = course.chance.Below(12);
  for (const auto& [key, leases] : course.model.regrants) {
    if (IsOfAttach(course, leases) && course.chance.In100(90)) std::tie(session, request) = key;
  }
  const std::optional<Operation> answer =
      course.ledger.reconciliation().RegrantAttach(session, request);
  if (answer) course.Cover("attached once more");
  return course.After(model::RegrantAttach(course.model, session, request, answer),
                      "RegrantAttach ", ToInt(session), " ", request, " -> ",
                      answer ? absl::StrCat(ToInt(answer->id)) : "no");
}

absl::Status DropRegrants(Course& course) {
  if (course.model.sessions.empty()) return absl::OkStatus();
  SessionId session = course.chance.Of(course.model.sessions).first;
  std::vector<uint64_t> requests = {course.chance.Below(12)};
  if (!course.model.regrants.empty() && course.chance.In100(90)) {
    const auto& [key, leases] = course.chance.Of(course.model.regrants);
    if (course.model.sessions.contains(key.first)) session = key.first;
    requests.push_back(key.second);
  }
  course.ledger.reconciliation().DropRegrants(session, requests);
  model::DropRegrants(course.model, session, requests);
  return course.After(absl::OkStatus(), "DropRegrants ", ToInt(session));
}

absl::Status Resume(Course& course) {
  const SessionId session = course.AnySession();
  const auto it = course.model.sessions.find(session);
  PeerIdentity peer = it == course.model.sessions.end() ? PeerIdentity() : it->second.peer;
  if (course.chance.In100(10)) ++peer.start_time;
  if (course.chance.In100(5)) peer.start_time = 0;
  if (course.chance.In100(5)) ++peer.pid;
  const absl::Status answer =
      course.ledger.sessions().Resume(session, peer, /*certain=*/course.chance.In100(90));
  if (answer.ok()) course.Cover("resumed");
  return course.After(model::Resume(course.model, session, peer, answer), "Resume ", ToInt(session),
                      " -> ", course.Describe(answer));
}

absl::Status Reconcile(Course& course) {
  SessionId session = course.AnyHolder();
  if (!course.model.regrants.empty() && course.chance.In100(70)) {
    session = course.chance.Of(course.model.regrants).first.first;
  }
  std::vector<LeaseId> leases;
  std::set<uint64_t> requests;
  const uint64_t most = course.chance.In100(30) ? 100 : 80;
  for (const auto& [id, lease] : course.model.leases) {
    if (lease.session == session && course.chance.In100(most)) leases.push_back(id);
  }
  for (const auto& [key, granted] : course.model.regrants) {
    if (key.first == session && course.chance.In100(50)) requests.insert(key.second);
  }
  for (const auto& [contents, holder] : course.model.claims) {
    if (holder.first == session && course.chance.In100(most)) requests.insert(holder.second);
  }
  if (course.chance.In100(20)) leases.push_back(course.AnyLeaseOf(session));
  if (course.chance.In100(15)) requests.insert(course.chance.Below(4));  // 0: no request
  const uint64_t before = ExposedIn(course, session);
  const auto answer = course.ledger.reconciliation().Reconcile(
      session, leases, std::vector<uint64_t>(requests.begin(), requests.end()));
  if (answer.ok()) course.Cover(answer->empty() ? "reconciled" : "reconciled, but for some");
  if (answer.ok() && ExposedIn(course, session) < before) {
    course.Cover("reconciled, and gave up what it had");
  }
  return course.After(model::Reconcile(course.model, session, leases, requests, answer),
                      "Reconcile ", ToInt(session), " with ", leases.size(), " leases -> ",
                      course.Describe(answer.status()));
}

bool IsRareMoment(Course& course) {
  if (course.ledger.state().draining) return course.chance.Below(60) == 0;
  if (course.ledger.endings().HasAny()) return course.chance.Below(60) == 0;
  if (model::NextOverdue(course.model) != absl::InfiniteFuture()) {
    return course.chance.Below(80) == 0;
  }
  const bool again = std::any_of(course.model.operations.begin(), course.model.operations.end(),
                                 [](const auto& operation) { return operation.second.regrant; });
  return again && course.chance.Below(40) == 0;
}

bool AnyAttachToRegrant(const Course& course) {
  return std::any_of(course.model.regrants.begin(), course.model.regrants.end(),
                     [&course](const auto& entry) { return IsOfAttach(course, entry.second); });
}

}  // namespace gpumemd::steps
