// Each call of the ledger that the model test makes, with random arguments, and the same call on
// the model beside it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model_operators.h"

namespace gpumemd {

class ModelSteps : public ModelOperators {
 protected:
  using ModelOperators::ModelOperators;

  static constexpr size_t kMany = 10;  // waiters

  absl::Status OpenSession(const std::string& tenant, const PeerIdentity& peer) {
    const std::string client = absl::StrCat("c", calls_);
    const Secret token = chance_.NewSecret();
    const size_t before = model_.sessions().size();
    const auto answer = ledger_.OpenSession(tenant, {.peer = peer, .client_name = client}, token);
    const absl::Status verdict = model_.OpenSession(tenant, client, peer, now_, token, answer);
    if (answer.ok() && model_.sessions().size() == before) Met("a session replaces another");
    return After(verdict, "OpenSession ", tenant, " -> ",
                 answer.ok() ? absl::StrCat(ToInt(*answer)) : Tell(answer.status()));
  }

  // A process gives back all its leases, closes its session, and opens another.
  absl::Status Reconnect() {
    const SessionId id = AnyHolder();
    const auto session = model_.sessions().find(id);
    if (session == model_.sessions().end()) return absl::OkStatus();
    const std::string tenant = session->second.tenant;
    const PeerIdentity peer = session->second.peer;
    std::vector<LeaseId> leases;
    for (const auto& [lease_id, lease] : model_.leases()) {
      if (lease.session == id) leases.push_back(lease_id);
    }
    if (absl::Status released = Release(id, leases); !released.ok()) return released;
    if (absl::Status closed = SocketClosed(id); !closed.ok()) return closed;
    return OpenSession(tenant, peer);
  }

  absl::Status SocketClosed(SessionId session) {
    ledger_.SocketClosed(session, 1 + chance_.Below(4));
    model_.SocketClosed(session);
    const absl::Status verdict = Ending();
    if (model_.sessions().contains(session)) Met("a session outlives its socket");
    return After(verdict, "SocketClosed ", ToInt(session), HasEnding());
  }

  absl::Status ProcessGone(SessionId session) {
    ledger_.ProcessGone(session, 1 + chance_.Below(4));
    model_.ProcessGone(session);
    const absl::Status verdict = Ending();
    if (model_.sessions().contains(session)) Met("a session outlives its process");
    return After(verdict, "ProcessGone ", ToInt(session), HasEnding());
  }
  const char* HasEnding() const { return ledger_.HasEnding() ? ", which goes on" : ""; }
  // The end of a session has begun. It completes at once, or over other calls.
  absl::Status Ending() {
    absl::Status verdict = model_.ContinueEnding(ledger_);
    const bool at_once = ends_at_once_ || chance_.In100(60);
    while (verdict.ok() && at_once && ledger_.HasEnding()) {
      Met("a session ends in parts");
      if (absl::Status sound = ledger_.CheckInvariants(); !sound.ok()) return sound;
      ledger_.ContinueEnding(1 + chance_.Below(3));
      verdict = model_.ContinueEnding(ledger_);
    }
    return verdict;
  }
  absl::Status ContinueEnding() {
    Met("a session ends over other calls");
    ledger_.ContinueEnding(1 + chance_.Below(3));
    return After(model_.ContinueEnding(ledger_), "ContinueEnding", HasEnding());
  }
  // Runs the probe without sessions that are ending.
  template <typename Probe>
  absl::Status WithoutEnding(Probe probe) {
    while (ledger_.HasEnding()) {
      if (absl::Status ended = ContinueEnding(); !ended.ok()) return ended;
    }
    ends_at_once_ = true;
    const absl::Status verdict = probe();
    ends_at_once_ = false;
    return verdict;
  }

  absl::Status BeginCall() { return BeginCall(AnySession()); }
  absl::Status BeginCall(SessionId session) {
    const absl::Status answer = ledger_.BeginCall(session);
    return After(model_.BeginCall(session, answer), "BeginCall ", ToInt(session), " -> ",
                 Tell(answer));
  }

  // Of a session that is over, if there is one.
  absl::Status EndCall() {
    for (const auto& [id, session] : model_.sessions()) {
      if (session.calls > 0 && !session.live) return EndCall(id);
    }
    for (const auto& [id, session] : model_.sessions()) {
      if (session.calls == 0 || chance_.In100(30)) continue;
      return EndCall(id);
    }
    return absl::OkStatus();
  }
  absl::Status EndCall(SessionId session) {
    ledger_.EndCall(session);
    model_.EndCall(session);
    return After(absl::OkStatus(), "EndCall ", ToInt(session));
  }
  uint32_t CallsOf(SessionId session) const {
    auto it = model_.sessions().find(session);
    return it == model_.sessions().end() ? 0 : it->second.calls;
  }

  // Opens a session of a new process.
  absl::Status NewProcess(const std::string& tenant, std::optional<SessionId>* session) {
    const std::set<SessionId> before = Sessions();
    const PeerIdentity peer = {.pid = static_cast<pid_t>(2 * (1000 + calls_)), .start_time = 1};
    absl::Status opened = OpenSession(tenant, peer);
    for (const auto& [id, entry] : model_.sessions()) {
      if (!before.contains(id)) *session = id;
    }
    return opened;
  }
  std::set<SessionId> Sessions() const {
    std::set<SessionId> ids;
    for (const auto& [id, session] : model_.sessions()) ids.insert(id);
    return ids;
  }

  // A request as some session might make it: the leases of most processes are all revocable, or
  // none is.
  absl::Status Acquire() {
    const SessionId session = AnySession();
    AcquireSpec spec = chance_.Spec(devices_);
    spec.request_id = NewRequest();
    if (chance_.In100(80)) spec.revocable = OfRevocableSort(session);
    if (spec.revocable && spec.kind == Kind::kMempool && chance_.In100(90)) spec.kind.reset();
    // Of one size, so that it finds segments that are idle in a pool.
    if (spec.kind == Kind::kMempool && chance_.In100(50)) spec.bytes = 1;
    if (absl::Status asked = Acquire(session, spec); !asked.ok()) return asked;
    return admission_.waiter && chance_.In100(60) ? DestroyAll() : absl::OkStatus();
  }
  // Some process takes the free memory of a device, with revocable leases.
  absl::Status Crowd(size_t device) {
    std::optional<SessionId> session;
    if (chance_.In100(50)) {
      if (absl::Status s = NewProcess(chance_.Tenant(), &session); !s.ok()) return s;
    }
    for (const auto& [id, entry] : model_.sessions()) {
      if (entry.live && OfRevocableSort(id) && (!session || chance_.In100(20))) session = id;
    }
    const DeviceInfo& info = devices_[device];
    for (uint64_t size = info.granularity_bytes * 4; session && size > 0;
         size -= info.granularity_bytes) {
      absl::Status asked =
          Acquire(*session, {.device_uuid = info.uuid,
                             .bytes = size,
                             .kind = info.kinds[0],
                             .count = static_cast<uint32_t>(info.capacity_bytes / 3 / size),
                             .revocable = true});
      if (!asked.ok()) return asked;
      if (!admission_.operation) continue;
      Met("crowded");
      if (chance_.In100(20)) continue;  // its client has not received it yet
      if (absl::Status done = Finish(*admission_.operation, kWell); !done.ok()) return done;
    }
    return absl::OkStatus();
  }
  bool OfRevocableSort(SessionId session) const {
    auto it = model_.sessions().find(session);
    return it != model_.sessions().end() && it->second.peer.pid % 2 == 0;
  }

  // Within a call, as every request.
  absl::Status Acquire(SessionId session, const AcquireSpec& spec) {
    admission_ = {};
    const auto it = model_.sessions().find(session);
    if (it != model_.sessions().end() && it->second.live && it->second.calls == 0) {
      if (absl::Status called = BeginCall(session); !called.ok()) return called;
      if (CallsOf(session) == 0) return absl::OkStatus();  // it has too many
    }
    if (absl::Status asked = BeginAcquire(session, spec); !asked.ok()) return asked;
    if (CallsOf(session) == 0 || chance_.In100(10)) return absl::OkStatus();
    return EndCall(session);
  }

  absl::Status BeginAcquire(SessionId session, const AcquireSpec& spec) {
    auto answer = ledger_.BeginAcquire(session, spec);
    std::string told = !answer.ok()        ? Tell(answer.status())
                       : answer->operation ? "granted"
                       : spec.waits        ? "waits"
                                           : "waits a moment";
    Met(told);
    absl::Status verdict = model_.BeginAcquire(session, spec, now_, answer);
    if (answer.ok()) {
      admission_ = *answer;
      if (answer->waiter) {
        absl::StrAppend(&told, " as ", ToInt(*answer->waiter));
        if (ledger_.HasEnding() && !spec.waits) Met("waits while a session ends");
        if (ledger_.state().waiters.at(*answer->waiter).revokes) Met("revokes");
      } else {
        MeetGrant(spec, *answer->operation);
        if (verdict.ok()) verdict = WithinLimits(session, answer->operation->device);
      }
    }
    return After(verdict, "BeginAcquire ", ToInt(session), " ", spec.count, " x ", spec.bytes,
                 " on \"", spec.device_uuid, "\"", spec.waits ? ", waits" : "",
                 spec.revocable ? ", revocable" : "", " -> ", told);
  }

  void MeetGrant(const AcquireSpec& spec, const Operation& operation) {
    Met(absl::StrCat("granted ", KindName(operation.kind)));
    if (spec.most_free) Met("granted where most is free");
    if (operation.revocable) Met("granted as revocable");
    if (!spec.kind && operation.kind != devices_[operation.device].kinds[0]) {
      Met("granted of the tenant's kind");
    }
    if (!operation.items.front().reused) return;
    if (operation.kind == Kind::kMempool) Met("reused of a pool");
    Met(operation.items.back().fresh ? "reused and fresh" : "reused");
  }

  absl::Status EndWait() {
    if (model_.waiters().empty()) return absl::OkStatus();
    if (model_.waiters().size() >= kMany) Met("one of many gives up");
    return EndWait(chance_.Of(model_.waiters()).first, chance_.In100(50));
  }
  absl::Status EndWait(WaiterId waiter, bool expired) {
    const absl::Status answer = ledger_.EndWait(waiter, expired);
    return After(model_.EndWait(waiter, expired, answer), "EndWait ", ToInt(waiter), " -> ",
                 Tell(answer));
  }

  // Steps of a long queue: requests come and go, alone or with their sessions.
  absl::Status StirQueue() {
    const uint64_t die = chance_.Below(100);
    if (model_.waiters().size() < kMany || die < 50) return Acquire();
    if (die < 80) return EndWait();
    const SessionId session = chance_.Of(model_.waiters()).second.session;
    Met("a session ends while many wait");
    return die < 90 ? SocketClosed(session) : ProcessGone(session);
  }

  absl::Status LetTimePass(absl::Duration time) {
    now_ += time;
    return After(absl::OkStatus(), "time passes");
  }

  // A process that is to be ended by force mostly ends at once; one that is asked to end sometimes
  // does.
  absl::Status TakeOverdue() {
    const bool any = ledger_.NextOverdue() <= now_;
    const std::vector<Ledger::Overdue> overdue = ledger_.TakeOverdue();
    if (any && overdue.empty()) Met("a revocation lapses, or waits on");
    absl::Status verdict = After(model_.TakeOverdue(now_, overdue), "TakeOverdue -> ",
                                 absl::StrJoin(overdue, " ", [](std::string* out, const auto& o) {
                                   absl::StrAppend(out, ToInt(o.session), o.kill ? "!" : "?");
                                 }));
    for (const Ledger::Overdue& each : overdue) {
      Met(each.kill ? "killed for others" : "asked to end for others");
      if (each.kill) killed_.insert(each.session);
      if (!verdict.ok() || !chance_.In100(each.kill ? 80 : 30)) continue;
      verdict = ProcessGone(each.session);
    }
    return verdict;
  }

  // Checks by the ledger's numbers that a grant exceeds no limit.
  absl::Status WithinLimits(SessionId session, size_t device) {
    for (const std::string& name : model_.PathOf(model_.sessions().at(session).tenant)) {
      const auto tenant = ledger_.look().GetTenant(name);
      if (!tenant.ok()) return tenant.status();
      const bool within =
          tenant->devices[device].charged <= tenant->devices[device].limit &&
          (device == 2 ||
           tenant->charged <= tenant->quota.total_limit_bytes.value_or(UINT64_MAX)) &&
          tenant->segments <= tenant->quota.max_segments.value_or(UINT32_MAX);
      if (!within) return absl::InternalError("granted beyond a limit");
    }
    return ledger_.state().charged(device) <= devices_[device].capacity_bytes &&
                   ledger_.state().segments.size() <= bounds_.max_segments
               ? absl::OkStatus()
               : absl::InternalError("granted beyond what there is");
  }

  absl::Status BeginOpen() {
    const SessionId session = AnySession();
    std::vector<Secret> tickets;
    bool foreign = false;
    const uint64_t count = chance_.In100(3) ? 0 : 1 + chance_.Below(3);
    for (const auto& [id, lease] : model_.leases()) {
      for (const auto& ticket : lease.tickets) {
        if (!ticket || tickets.size() == count || chance_.In100(50)) continue;
        tickets.push_back(*ticket);
        if (chance_.In100(10)) tickets.push_back(*ticket);
        auto it = model_.sessions().find(session);
        foreign = foreign || (it != model_.sessions().end() &&
                              it->second.tenant != model_.OwnerOf(lease.segment));
      }
    }
    if (chance_.In100(3)) tickets.push_back(chance_.NewSecret());
    if (!old_tickets_.empty() && chance_.In100(3)) tickets.push_back(chance_.Of(old_tickets_));
    if (tickets.empty() && chance_.In100(95)) return Share();
    if (chance_.In100(1)) tickets.resize(kMaxSegmentsPerCall + chance_.Below(2));
    const bool revocable = chance_.In100(85) ? OfRevocableSort(session) : chance_.In100(50);
    const uint64_t request = NewRequest();
    const auto answer = ledger_.BeginOpen(session, tickets, revocable, request);
    if (answer.ok() && foreign) Met("opened across tenants");
    if (answer.ok() && model_.IsRevocable(answer->items[0].segment)) Met("opened as revocable");
    return After(model_.BeginOpen(session, tickets, revocable, request, answer), "BeginOpen ",
                 ToInt(session), " ", tickets.size(), " tickets -> ", Tell(answer.status()));
  }

  absl::Status FinishOperation() {
    if (model_.operations().empty()) return absl::OkStatus();
    const Operation& operation = chance_.Of(model_.operations()).second;
    // Abort before a hand-over is the rarest case for pools: make it likelier.
    return Finish(operation, chance_.Below(100) + (operation.kind == Kind::kMempool ? 15 : 0));
  }
  // Mostly commits.
  absl::Status Finish(const Operation operation, uint64_t fate) {
    for (const Operation::Item& item : operation.items) {
      const LeaseView view = ledger_.look().Describe(item);
      if (view.lease != item.lease || view.segment != item.segment ||
          view.tenant != model_.OwnerOf(item.segment) || view.reused != item.reused) {
        return absl::InternalError("an item is described wrongly");
      }
    }
    if (fate < 78) {
      Make(operation);
      const absl::Status answer = CommitInParts(operation);
      if (absl::IsInternal(answer)) return answer;
      if (absl::IsAborted(answer)) Met("committed too late");
      return After(model_.Commit(operation.id, answer), "Commit ", ToInt(operation.id), " of ",
                   ToInt(operation.session), " -> ", Tell(answer));
    }
    const bool handed_over = fate < 83;
    for (const Operation::Item& item : operation.items) {
      if (!item.fresh || chance_.In100(10)) continue;
      ledger_.Created(item.segment);
      model_.Created(item.segment);
    }
    size_t next = 0;
    while (!ledger_.Abort(operation, handed_over, next, 1 + chance_.Below(6))) {
      if (absl::Status sound = ledger_.CheckInvariants(); !sound.ok()) return sound;
    }
    model_.Abort(operation.id, handed_over);
    for (const Operation::Item& item : operation.items) {
      if (item.fresh && !handed_over && model_.StateOf(item.segment) == SegmentState::kLingering) {
        Met("made in an open pool, and not handed over");
      }
    }
    return After(absl::OkStatus(), "Abort ", ToInt(operation.id), " of ", ToInt(operation.session),
                 handed_over ? " after handing over" : "");
  }

  absl::Status CommitInParts(const Operation& operation) {
    size_t next = 0;
    while (true) {
      const absl::StatusOr<bool> done = ledger_.Commit(operation, next, 1 + chance_.Below(6));
      if (!done.ok() || *done) return done.status();
      Met("a commit in parts");
      if (absl::Status sound = ledger_.CheckInvariants(); !sound.ok()) return sound;
    }
  }

  // Makes the memory of fresh segments.
  void Make(const Operation& operation) {
    for (const Operation::Item& item : operation.items) {
      if (!item.fresh) continue;
      ledger_.Created(item.segment);
      model_.Created(item.segment);
    }
  }
  absl::Status MakeSome() {
    if (model_.operations().empty()) return absl::OkStatus();
    const Operation& operation = chance_.Of(model_.operations()).second;
    Make(operation);
    return After(absl::OkStatus(), "Created ", ToInt(operation.id));
  }

  absl::Status Release() {
    const SessionId session = AnyHolder();
    std::vector<LeaseId> leases;
    for (uint64_t i = 1 + chance_.Below(3); i > 0; --i) leases.push_back(AnyLeaseOf(session));
    if (chance_.In100(10)) leases.push_back(leases.front());
    return Release(session, leases);
  }

  absl::Status Release(SessionId session, const std::vector<LeaseId>& leases) {
    for (LeaseId id : leases) {
      auto it = model_.leases().find(id);
      if (it == model_.leases().end()) continue;
      for (const auto& ticket : it->second.tickets) {
        if (ticket && old_tickets_.size() < 100) old_tickets_.push_back(*ticket);
      }
    }
    const absl::Status answer = ledger_.Release(session, leases);
    return After(
        model_.Release(session, leases, answer), "Release ", ToInt(session), " [",
        absl::StrJoin(leases, " ",
                      [](std::string* out, LeaseId id) { absl::StrAppend(out, ToInt(id)); }),
        "] -> ", Tell(answer));
  }

  absl::Status Share() {
    const SessionId session = AnyHolder();
    const LeaseId lease = AnyLeaseOf(session);
    const auto scope = chance_.In100(50) ? TicketScope::kTenant : TicketScope::kAny;
    const Secret candidate = chance_.NewSecret();
    const auto answer = ledger_.Share(session, lease, scope, candidate);
    if (answer.ok() && *answer != candidate) Met("shared again");
    return After(model_.Share(session, lease, scope, candidate, answer), "Share ", ToInt(session),
                 " lease ", ToInt(lease), " -> ", Tell(answer.status()));
  }

  // A context is gone, with all its segments; now and then only a part.
  absl::Status MarkLost() {
    std::vector<SegmentId> lost = model_.ContextBound(chance_.Below(2));
    if (chance_.In100(20)) std::erase_if(lost, [&](SegmentId) { return chance_.In100(50); });
    if (chance_.In100(5)) lost.push_back(SegmentId{chance_.Below(1000000)});
    std::erase_if(lost, [&](SegmentId id) {  // numbers that meet others' segments by chance
      return ledger_.state().segments.contains(id) &&
             !IsContextBound(ledger_.look().Describe({.segment = id}).kind);
    });
    ledger_.MarkLost(lost);
    model_.MarkLost(lost);
    if (!lost.empty()) Met("lost");
    return After(absl::OkStatus(), "MarkLost ", lost.size());
  }

  Ledger::EventPlace AnyPlace(SessionId session) {
    if (chance_.In100(50)) return {.name = chance_.EventName()};
    return {.lease = AnyLeaseOf(session)};
  }

  absl::Status RegisterEvent() {
    SessionId session = AnyHolder();
    const Ledger::EventPlace place = AnyPlace(session);
    const std::string device = chance_.In100(2) ? "elsewhere" : chance_.Device();
    ExportData handle{};
    handle[0] = static_cast<uint8_t>(chance_.Below(256));
    uint64_t request = chance_.In100(60) ? 1 + chance_.Below(1000) : 0;
    if (chance_.In100(10) && last_register_) {  // as if the answer were lost
      std::tie(session, request) = *last_register_;
    }
    const bool again = last_register_ == std::pair(session, request);
    const auto answer = ledger_.RegisterEvent(session, place, device, handle, request);
    if (answer.ok() && again) Met("an event, and told so again");
    if (answer.ok() && request != 0) last_register_ = std::pair(session, request);
    return After(model_.RegisterEvent(session, place, device, handle, request, answer),
                 "RegisterEvent ", ToInt(session), " \"", place.name, "\" -> ",
                 Tell(answer.status()));
  }

  absl::Status GetEvents() {
    SessionId session = AnyHolder();
    Ledger::EventPlace place = AnyPlace(session);
    if (!model_.events().empty() && chance_.In100(70)) {  // aim at an existing one
      const LedgerModel::Event& event = chance_.Of(model_.events());
      if (!event.place.lease) place = event.place;
      for (const auto& [id, lease] : model_.leases()) {
        if (!event.place.lease || lease.session == event.session ||
            lease.segment != event.segment) {
          continue;
        }
        session = lease.session;
        place = {.lease = id};
      }
    }
    const auto answer = ledger_.GetEvents(session, place);
    if (answer.ok()) Met(place.lease ? "events beside a lease" : "event by name");
    return After(model_.GetEvents(session, place, answer), "GetEvents ", ToInt(session), " \"",
                 place.name, "\" -> ", Tell(answer.status()));
  }

  absl::Status UnregisterEvent() {
    SessionId session = AnySession();
    IpcEventId event{chance_.Below(1000)};
    if (!model_.events().empty() && chance_.In100(95)) {
      const LedgerModel::Event& chosen = chance_.Of(model_.events());
      event = chosen.id;
      if (chance_.In100(90)) session = chosen.session;
    }
    const auto answer = ledger_.UnregisterEvent(session, event);
    if (answer.ok() && *answer) Met("an event that was handed out ends");
    return After(model_.UnregisterEvent(session, event, answer), "UnregisterEvent ", ToInt(session),
                 " ", ToInt(event), " -> ", Tell(answer.status()));
  }

  absl::Status TakeDoomed() {
    const std::vector<SegmentId> doomed = ledger_.TakeDoomed();
    return After(model_.TakeDoomed(doomed), "TakeDoomed -> ", doomed.size());
  }

  absl::Status Destroyed() {
    if (model_.in_destruction().empty()) return absl::OkStatus();
    const SegmentId segment = chance_.Of(model_.in_destruction());
    ledger_.Destroyed(segment);
    model_.Destroyed(segment);
    if (ledger_.state().segments.contains(segment))
      return absl::InternalError("destroyed, and still there");
    return After(absl::OkStatus(), "Destroyed ", ToInt(segment));
  }

  absl::Status DestroyAll() {
    if (absl::Status taken = TakeDoomed(); !taken.ok()) return taken;
    while (!model_.in_destruction().empty()) {
      if (absl::Status destroyed = Destroyed(); !destroyed.ok()) return destroyed;
    }
    return absl::OkStatus();
  }

  absl::Status DriverHasNone() {
    if (model_.sessions().empty()) return absl::OkStatus();
    const SessionId session = chance_.Of(model_.sessions()).first;
    const size_t device = chance_.Below(devices_.size());
    const uint64_t bytes = 1 + chance_.Below(20);
    if (chance_.In100(50)) {
      const bool answer = ledger_.MakeRoomOnDevice(session, device, bytes);
      return After(model_.MakeRoomOnDevice(session, device, bytes, answer), "MakeRoomOnDevice ",
                   ToInt(session), " ", bytes, " on ", devices_[device].uuid, " -> ", answer);
    }
    const absl::Status answer = ledger_.DriverDenial(session, device, bytes, "OUT_OF_MEMORY");
    return After(model_.DriverDenial(session, device, bytes, answer), "DriverDenial ",
                 ToInt(session), " -> ", Tell(answer));
  }

  absl::Status LookAtSome() {
    const std::string tenant = chance_.In100(30) ? "" : chance_.Tenant();
    const std::string device = chance_.In100(10) ? "elsewhere" : chance_.Device();
    return After(model_.CompareFiltered(ledger_, tenant, device, now_), "List \"", tenant, "\" \"",
                 device, "\"");
  }

  // Mostly a new request number; now and then none, or one that was used before.
  uint64_t NewRequest() { return chance_.In100(85) ? 10 + calls_ : chance_.Below(3); }

  // The fate of an operation that succeeds.
  static constexpr uint64_t kWell = 0;

  std::set<SessionId> killed_;  // ended by force; the process may be gone later
  bool ends_at_once_ = false;   // sessions, before the next call
  Admission admission_;         // the last
  std::optional<std::pair<SessionId, uint64_t>> last_register_;
};

}  // namespace gpumemd
