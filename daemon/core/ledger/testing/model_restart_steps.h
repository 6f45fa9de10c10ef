// The daemon's end in the model test: at any moment it is killed, some processes with it, and
// another goes on. Includes the steps of sessions that come back.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model_publishers.h"

namespace gpumemd {

class ModelRestarts : public ModelPublishers {
 protected:
  using ModelPublishers::ModelPublishers;

  absl::Status Restart() {
    if (absl::Status same = CheckImage(); !same.ok()) return same;
    MeetMoment();
    const Ledger::Survivors survivors = ChooseSurvivors();
    const std::map<std::string, Quota> overridden = model_.Overridden();
    const Ledger::RevocationTimes times = ledger_.revocation_times();

    std::destroy_at(&ledger_);
    std::construct_at(&ledger_, devices_, bounds_, [this] { return now_; });
    ledger_.SetRevocationTimes(times);
    ledger_.Configure(configured_, defaults_, overridden);
    const Ledger::Restored restored = ledger_.Restore(image_, survivors);
    const JournalImage before = std::exchange(image_, ledger_.Image());
    ledger_.KeepChanges();

    granted_waiters_.clear();  // numbers of waiters begin anew
    if (!restored.lost.empty()) Met("lost by a restart");
    if (restored.publications > 0) Met("a publication goes on");
    if (!restored.lost_publications.empty()) Met("a publication is lost by a restart");
    absl::Status verdict = model_.Restart(survivors, restored);
    if (verdict.ok()) verdict = CheckInherited(before);
    return After(verdict, "killed; ", survivors.sessions.size(), " sessions, of which ",
                 restored.sessions, " go on, and ", restored.leases, " leases");
  }

  // A request from before the restart, sent once more by its session.
  absl::Status Regrant() {
    SessionId session = AnySession();
    uint64_t request = chance_.Below(12);
    auto count = static_cast<uint32_t>(chance_.Below(3));
    if (!model_.regrants().empty() && chance_.In100(95)) {
      const auto& [key, leases] = chance_.Of(model_.regrants());
      if (chance_.In100(95)) session = key.first;
      request = key.second;
      if (chance_.In100(85)) count = static_cast<uint32_t>(leases.size());
    }
    if (!model_.leases().empty() && chance_.In100(20)) {  // also a lease made since the restart
      const LedgerModel::Lease& chosen = chance_.Of(model_.leases()).second;
      session = chosen.session;
      request = chosen.request_id;
      count = 0;
      for (const auto& [id, lease] : model_.leases()) {
        count += lease.session == session && lease.request_id == request ? 1 : 0;
      }
    }
    const std::optional<Operation> answer = ledger_.Regrant(session, request, count);
    Met(answer ? "granted once more" : "not granted once more");
    return After(model_.Regrant(session, request, count, answer), "Regrant ", ToInt(session), " ",
                 request, " x ", count, " -> ", answer ? absl::StrCat(ToInt(answer->id)) : "no");
  }

  absl::Status RegrantAttach() {
    SessionId session = AnySession();
    uint64_t request = chance_.Below(12);
    for (const auto& [key, leases] : model_.regrants()) {
      if (IsOfAttach(leases) && chance_.In100(90)) std::tie(session, request) = key;
    }
    const std::optional<Operation> answer = ledger_.RegrantAttach(session, request);
    if (answer) Met("attached once more");
    return After(model_.RegrantAttach(session, request, answer), "RegrantAttach ", ToInt(session),
                 " ", request, " -> ", answer ? absl::StrCat(ToInt(answer->id)) : "no");
  }

  absl::Status DropRegrants() {
    if (model_.sessions().empty()) return absl::OkStatus();
    SessionId session = chance_.Of(model_.sessions()).first;
    std::vector<uint64_t> requests = {chance_.Below(12)};
    if (!model_.regrants().empty() && chance_.In100(90)) {
      const auto& [key, leases] = chance_.Of(model_.regrants());
      if (model_.sessions().contains(key.first)) session = key.first;
      requests.push_back(key.second);
    }
    ledger_.DropRegrants(session, requests);
    model_.DropRegrants(session, requests);
    return After(absl::OkStatus(), "DropRegrants ", ToInt(session));
  }

  absl::Status Resume() {
    const SessionId session = AnySession();
    const auto it = model_.sessions().find(session);
    PeerIdentity peer = it == model_.sessions().end() ? PeerIdentity() : it->second.peer;
    if (chance_.In100(10)) ++peer.start_time;
    if (chance_.In100(5)) ++peer.pid;
    const absl::Status answer = ledger_.Resume(session, peer);
    if (answer.ok()) Met("resumed");
    return After(model_.Resume(session, peer, answer), "Resume ", ToInt(session), " -> ",
                 Tell(answer));
  }

  // A session comes back with most of its leases and some of its requests.
  absl::Status Reconcile() {
    SessionId session = AnyHolder();
    if (!model_.regrants().empty() && chance_.In100(70)) {
      session = chance_.Of(model_.regrants()).first.first;
    }
    std::vector<LeaseId> leases;
    std::set<uint64_t> requests;
    const uint64_t most = chance_.In100(30) ? 100 : 80;
    for (const auto& [id, lease] : model_.leases()) {
      if (lease.session == session && chance_.In100(most)) leases.push_back(id);
    }
    for (const auto& [key, granted] : model_.regrants()) {
      if (key.first == session && chance_.In100(50)) requests.insert(key.second);
    }
    if (chance_.In100(20)) leases.push_back(AnyLeaseOf(session));
    if (chance_.In100(15)) requests.insert(chance_.Below(4));  // 0: no request
    const uint64_t before = ExposedIn(session);
    const auto answer =
        ledger_.Reconcile(session, leases, std::vector<uint64_t>(requests.begin(), requests.end()));
    if (answer.ok()) Met(answer->empty() ? "reconciled" : "reconciled, but for some");
    if (answer.ok() && ExposedIn(session) < before) Met("reconciled, and gave up what it had");
    return After(model_.Reconcile(session, leases, requests, answer), "Reconcile ", ToInt(session),
                 " with ", leases.size(), " leases -> ", Tell(answer.status()));
  }

  // True at rare moments.
  bool WorthAKill() {
    if (ledger_.state().draining) return chance_.Below(60) == 0;
    if (ledger_.HasEnding()) return chance_.Below(60) == 0;
    if (model_.NextOverdue() != absl::InfiniteFuture()) return chance_.Below(80) == 0;
    const bool again = std::any_of(model_.operations().begin(), model_.operations().end(),
                                   [](const auto& operation) { return operation.second.regrant; });
    return again && chance_.Below(40) == 0;
  }

  bool AnyAttachToRegrant() {
    return std::any_of(model_.regrants().begin(), model_.regrants().end(),
                       [this](const auto& entry) { return IsOfAttach(entry.second); });
  }

 private:
  bool IsOfAttach(const std::vector<LeaseId>& leases) {
    auto first = model_.leases().find(leases.front());
    return first != model_.leases().end() && first->second.publication;
  }

  // Checks that the journal's records of the survivors have not changed.
  absl::Status CheckInherited(const JournalImage& before) const {
    const auto same = [](const auto& now, const auto& then) {
      return std::all_of(now.begin(), now.end(), [&](const auto& entry) {
        auto it = then.find(entry.first);
        return it != then.end() && it->second == entry.second;
      });
    };
    auto segments = before.segments;
    for (auto& [id, segment] : segments) {
      auto it = image_.segments.find(id);
      if (it != image_.segments.end()) segment.lost |= it->second.lost;
    }
    auto sessions = before.sessions;  // without a sort if its mappings are gone
    for (auto& [id, session] : sessions) {
      auto it = image_.sessions.find(id);
      if (it != image_.sessions.end()) session.revocable &= it->second.revocable;
    }
    auto events = before.ipc_events;
    for (auto& [id, event] : events) {
      if (!image_.leases.contains(event.lease)) event.lease = {};
    }
    // A process that had several sessions may have its pools open as one session.
    const auto smaller = [&](const auto& entry) {
      auto it = before.pool_imports.find(entry.first);
      return it != before.pool_imports.end() && entry.second.count < it->second.count;
    };
    const bool imports =
        std::none_of(image_.pool_imports.begin(), image_.pool_imports.end(), smaller);
    auto publications = before.publications;
    for (auto& [id, publication] : publications) {
      auto it = image_.publications.find(id);
      if (it == image_.publications.end()) continue;
      // It may have no attached session any more, or its publisher may be gone.
      if (publication.idle_since_ns == 0) publication.idle_since_ns = it->second.idle_since_ns;
      if (it->second.publisher == SessionId{}) publication.publisher = {};
    }
    if (!same(image_.publications, publications) ||
        !same(image_.publication_items, before.publication_items)) {
      return absl::InternalError("what is published is not what it was");
    }
    if (imports && same(image_.sessions, sessions) && same(image_.segments, segments) &&
        same(image_.leases, before.leases) && same(image_.exposures, before.exposures) &&
        same(image_.ipc_events, events)) {
      return absl::OkStatus();
    }
    return absl::InternalError("what goes on is not what it was");
  }

  // Returns the number of segments that the session's process may map.
  uint64_t ExposedIn(SessionId session) {
    uint64_t exposed = 0;
    for (const auto& [key, exposure] : ledger_.Image().exposures) {
      exposed += key.first == session ? 1 : 0;
    }
    return exposed;
  }

  // Counts the state at the moment of the kill.
  void MeetMoment() {
    Met("killed");
    if (!model_.operations().empty()) Met("killed during operations");
    if (!model_.waiters().empty()) Met("killed while somebody waited");
    if (model_.AnyReleasing()) Met("killed while memory went back");
    if (model_.NextOverdue() != absl::InfiniteFuture()) Met("killed during a revocation");
    if (ledger_.state().draining) Met("killed while draining");
    if (ledger_.HasEnding()) Met("killed while a session ended");
    if (!model_.regrants().empty()) Met("killed before all had come back");
    for (const auto& [id, operation] : model_.operations()) {
      if (operation.regrant) Met("killed during a second handing over");
    }
  }

  // Most processes and most memory survive; memory of contexts is gone with the daemon.
  Ledger::Survivors ChooseSurvivors() {
    Ledger::Survivors survivors;
    const uint64_t die = chance_.In100(30) ? 0 : chance_.In100(90) ? 30 : 100;
    std::map<std::pair<pid_t, uint64_t>, bool> lives;
    for (const auto& [id, record] : image_.sessions) {
      const auto process = lives.emplace(std::pair(record.pid, record.start_time), false);
      if (process.second) process.first->second = !chance_.In100(die);
      if (model_.sessions().at(id).process_gone || !process.first->second) continue;
      survivors.sessions[id] = {
          .peer = {.pid = record.pid, .start_time = record.start_time},
          .client_name = std::string(record.client_name.view()),
          .command = std::string(record.command.view()),
      };
      Met(record.ended ? "an ended session goes on" : "a session goes on");
    }
    const bool loses = chance_.In100(15);
    for (SegmentId id : model_.Lasting()) {
      const uint64_t gone = model_.in_destruction().contains(id) ? 50 : loses ? 20 : 0;
      if (!chance_.In100(gone)) survivors.memory.insert(id);
    }
    for (const auto& [id, publication] : image_.publications) {
      if (!loses || !chance_.In100(20)) survivors.metadata.insert(id);
    }
    return survivors;
  }
};

}  // namespace gpumemd
