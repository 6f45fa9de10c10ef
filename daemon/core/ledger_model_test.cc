// Random operations with faults on the ledger, each answer and each state that follows
// compared with the naive model's (ledger_model.h). Nothing is sampled: after every single
// call the whole of both is compared and the ledger's own invariants are checked.
//
//   GPUMEM_MODEL_OPS   calls of the ledger in all; 1,000,000 where unset
//   GPUMEM_MODEL_SEED  of the first episode; each further one takes the next number. A
//                      failure names its episode's seed, with which it comes first.
#include "daemon/core/ledger_model.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/denial.h"
#include "daemon/core/ledger.h"
#include "daemon/core/ledger_model_chance.h"
#include "daemon/core/ledger_model_course.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

constexpr uint64_t kEpisode = 10000;  // calls; then everybody leaves and a new ledger begins

class Episode : public ModelCourse {
 public:
  using ModelCourse::ModelCourse;

  // The first thing that is wrong.
  absl::Status Run(uint64_t calls) {
    if (absl::Status status = Configure(); !status.ok()) return status;
    while (calls_ < calls) {
      if (absl::Status status = Step(); !status.ok()) return status;
    }
    return EverybodyLeaves();
  }

 private:
  absl::Status Configure() {
    std::map<std::string, Quota> tenants;
    for (const char* tenant : {"alpha", "beta", "gamma"}) {
      if (chance_.In100(70)) tenants[tenant] = chance_.TenantQuota();
    }
    const Quota defaults = chance_.TenantQuota();
    ledger_.Configure(tenants, defaults);
    model_.Configure(tenants, defaults);
    return After(absl::OkStatus(), "Configure ", tenants.size(), " tenants");
  }

  absl::Status SetQuota() {
    const std::string tenant = chance_.Tenant();
    Quota quota = chance_.TenantQuota();
    if (chance_.In100(5)) quota.device_limits["elsewhere"] = 1;
    const absl::Status answer = ledger_.SetQuota(tenant, quota);
    return After(model_.SetQuota(tenant, quota, answer), "SetQuota ", tenant, " -> ", Tell(answer));
  }

  absl::Status SetDraining(bool draining) {
    ledger_.SetDraining(draining);
    model_.SetDraining(draining);
    return After(absl::OkStatus(), "SetDraining ", draining);
  }

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

  // A process gives back all that it has, closes its session, and opens another.
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
    ledger_.SocketClosed(session);
    model_.SocketClosed(session);
    if (model_.sessions().contains(session)) Met("a session outlives its socket");
    return After(absl::OkStatus(), "SocketClosed ", ToInt(session));
  }

  absl::Status ProcessGone(SessionId session) {
    ledger_.ProcessGone(session);
    model_.ProcessGone(session);
    if (model_.sessions().contains(session)) Met("a session outlives its process");
    return After(absl::OkStatus(), "ProcessGone ", ToInt(session));
  }

  absl::Status BeginCall() {
    const SessionId session = AnySession();
    const absl::Status answer = ledger_.BeginCall(session);
    return After(model_.BeginCall(session, answer), "BeginCall ", ToInt(session), " -> ",
                 Tell(answer));
  }

  absl::Status EndCall() {
    for (const auto& [id, session] : model_.sessions()) {
      if (session.calls == 0 || chance_.In100(30)) continue;
      const SessionId chosen = id;
      ledger_.EndCall(chosen);
      model_.EndCall(chosen);
      return After(absl::OkStatus(), "EndCall ", ToInt(chosen));
    }
    return absl::OkStatus();
  }

  absl::Status BeginAcquire(SessionId session, const AcquireSpec& spec, bool patient,
                            bool soon_is_over = false) {
    const auto answer = ledger_.BeginAcquire(session, spec, patient);
    const bool soon = answer.ok() && !answer->has_value();
    const bool granted = answer.ok() && !soon;
    std::string told = soon ? "soon" : granted ? "granted" : Tell(answer.status());
    Met(told);
    if (soon_is_over) Met(absl::StrCat("soon, then ", told));
    if (granted) Met(absl::StrCat("granted ", KindName((*answer)->kind)));
    if (granted && spec.most_free) Met("granted where most is free");
    if (granted && (*answer)->items.front().reused) {
      if ((*answer)->kind == Kind::kMempool) Met("reused of a pool");
      Met((*answer)->items.back().fresh ? "reused and fresh" : "reused");
    }
    absl::Status verdict = model_.BeginAcquire(session, spec, patient, now_, answer);
    if (verdict.ok() && granted) verdict = WithinLimits(session, (*answer)->device);
    verdict = After(verdict, "BeginAcquire ", ToInt(session), " ", spec.count, " x ", spec.bytes,
                    " on \"", spec.device_uuid, "\"", patient ? "" : " impatiently", " -> ", told);
    if (!verdict.ok() || !soon) return verdict;
    if (soon_is_over) return absl::InternalError("soon, and again soon");
    if (chance_.In100(60)) return verdict;
    // It was promised: once all that is doomed is destroyed, it is yes or no.
    if (absl::Status doomed = TakeDoomed(); !doomed.ok()) return doomed;
    while (!model_.in_destruction().empty()) {
      if (absl::Status destroyed = Destroyed(); !destroyed.ok()) return destroyed;
    }
    return BeginAcquire(session, spec, chance_.In100(70), /*soon_is_over=*/true);
  }

  // By the ledger's own account: no limit is exceeded where something was granted.
  absl::Status WithinLimits(SessionId session, size_t device) {
    const auto tenant = ledger_.GetTenant(model_.sessions().at(session).tenant);
    if (!tenant.ok()) return tenant.status();
    const bool pinned = device == 2;
    const bool within =
        tenant->devices[device].charged <= tenant->devices[device].limit &&
        (pinned || tenant->charged <= tenant->quota.total_limit_bytes.value_or(UINT64_MAX)) &&
        tenant->segments <= tenant->quota.max_segments.value_or(UINT32_MAX) &&
        ledger_.charged(device) <= devices_[device].capacity_bytes &&
        ledger_.segment_count() <= bounds_.max_segments;
    return within ? absl::OkStatus() : absl::InternalError("granted beyond a limit");
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
    const auto answer = ledger_.BeginOpen(session, tickets);
    if (answer.ok() && foreign) Met("opened across tenants");
    return After(model_.BeginOpen(session, tickets, answer), "BeginOpen ", ToInt(session), " ",
                 tickets.size(), " tickets -> ", Tell(answer.status()));
  }

  absl::Status FinishOperation() {
    if (model_.operations().empty()) return absl::OkStatus();
    const Operation operation = chance_.Of(model_.operations()).second;
    for (const Operation::Item& item : operation.items) {
      const LeaseView view = ledger_.Describe(item);
      if (view.lease != item.lease || view.segment != item.segment ||
          view.tenant != model_.OwnerOf(item.segment) || view.reused != item.reused) {
        return absl::InternalError("an item is described wrongly");
      }
    }
    const uint64_t fate = chance_.Below(100);
    if (fate < 82) {
      const absl::Status answer = ledger_.Commit(operation);
      if (absl::IsAborted(answer)) Met("committed too late");
      return After(model_.Commit(operation.id, answer), "Commit ", ToInt(operation.id), " of ",
                   ToInt(operation.session), " -> ", Tell(answer));
    }
    const bool handed_over = fate < 88;
    for (const Operation::Item& item : operation.items) {
      if (!item.fresh || chance_.In100(20)) continue;
      ledger_.Created(item.segment);
      model_.Created(item.segment);
    }
    ledger_.Abort(operation, handed_over);
    model_.Abort(operation.id, handed_over);
    for (const Operation::Item& item : operation.items) {
      if (item.fresh && !handed_over && model_.StateOf(item.segment) == SegmentState::kLingering) {
        Met("made in an open pool, and not handed over");
      }
    }
    return After(absl::OkStatus(), "Abort ", ToInt(operation.id), " of ", ToInt(operation.session),
                 handed_over ? " after handing over" : "");
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

  // As where a context is gone: all that lived in it, now and then only a part.
  absl::Status MarkLost() {
    std::vector<SegmentId> lost = model_.ContextBound(chance_.Below(2));
    if (chance_.In100(20)) std::erase_if(lost, [&](SegmentId) { return chance_.In100(50); });
    if (chance_.In100(5)) lost.push_back(SegmentId{chance_.Below(1000000)});
    std::erase_if(lost, [&](SegmentId id) {  // numbers that meet others' segments by chance
      return ledger_.HasSegment(id) && !IsContextBound(ledger_.Describe({.segment = id}).kind);
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
    const SessionId session = AnyHolder();
    const Ledger::EventPlace place = AnyPlace(session);
    const std::string device = chance_.In100(2) ? "elsewhere" : chance_.Device();
    ExportData handle{};
    handle[0] = static_cast<uint8_t>(chance_.Below(256));
    const auto answer = ledger_.RegisterEvent(session, place, device, handle);
    return After(model_.RegisterEvent(session, place, device, handle, answer), "RegisterEvent ",
                 ToInt(session), " \"", place.name, "\" -> ", Tell(answer.status()));
  }

  absl::Status GetEvents() {
    SessionId session = AnyHolder();
    Ledger::EventPlace place = AnyPlace(session);
    if (!model_.events().empty() && chance_.In100(70)) {  // aim at one that there is
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
    if (ledger_.HasSegment(segment)) return absl::InternalError("destroyed, and still there");
    return After(absl::OkStatus(), "Destroyed ", ToInt(segment));
  }

  absl::Status Trim() {
    const std::string tenant = chance_.In100(50) ? "" : chance_.Tenant();
    const std::string device = chance_.In100(50)  ? ""
                               : chance_.In100(5) ? "elsewhere"
                                                  : chance_.Device();
    const uint64_t keep = chance_.In100(50) ? 0 : chance_.Below(20);
    const auto answer = ledger_.Trim(tenant, device, keep);
    if (answer.ok() && !answer->empty()) Met("trimmed");
    return After(model_.Trim(tenant, device, keep, answer), "Trim \"", tenant, "\" \"", device,
                 "\" to ", keep, " -> ", Tell(answer.status()));
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

  absl::Status Step() {
    if (model_.operations().size() > 6) return FinishOperation();
    if (ledger_.draining() && chance_.In100(10)) return SetDraining(false);
    uint64_t die = chance_.Below(1000);
    const auto falls_on = [&die](uint64_t share) {
      const bool yes = die < share;
      die = yes ? UINT64_MAX : die - share;
      return yes;
    };
    if (falls_on(60)) return OpenSession(chance_.Tenant(), chance_.Process());
    if (falls_on(8)) return Reconnect();
    if (falls_on(12)) return SocketClosed(SessionToEnd());
    if (falls_on(5)) return ProcessGone(SessionToEnd());
    if (falls_on(15)) return ProcessGone(SessionOver());
    if (falls_on(6)) {  // both, in either order
      const SessionId session = SessionToEnd();
      const bool socket_first = chance_.In100(50);
      absl::Status first = socket_first ? SocketClosed(session) : ProcessGone(session);
      if (!first.ok()) return first;
      return socket_first ? ProcessGone(session) : SocketClosed(session);
    }
    if (falls_on(50)) return BeginCall();
    if (falls_on(55)) return EndCall();
    if (falls_on(230)) return BeginAcquire(AnySession(), chance_.Spec(devices_), chance_.In100(75));
    if (falls_on(90)) return BeginOpen();
    if (falls_on(180)) return FinishOperation();
    if (falls_on(60)) return Release();
    if (falls_on(50)) return Share();
    if (falls_on(15)) return SetQuota();
    if (falls_on(3)) return Configure();
    if (falls_on(2)) return SetDraining(true);
    if (falls_on(8)) return Trim();
    if (falls_on(30)) return TakeDoomed();
    if (falls_on(14)) return DriverHasNone();
    if (falls_on(4)) return MarkLost();
    if (falls_on(20)) return RegisterEvent();
    if (falls_on(20)) return GetEvents();
    if (falls_on(8)) return UnregisterEvent();
    if (falls_on(20)) return LookAtSome();
    return Destroyed();
  }

  // Whatever the order: in the end nothing is left.
  absl::Status EverybodyLeaves() {
    absl::Status status;
    const auto next = [&](absl::Status step) {
      status = std::move(step);
      return status.ok();
    };
    while (!model_.operations().empty() || !model_.sessions().empty()) {
      const uint64_t die = chance_.Below(4);
      if (die == 0 && !next(FinishOperation())) return status;
      if (die == 1 && !next(EndCall())) return status;
      if (die == 2 && !next(SocketClosed(SessionToEnd()))) return status;
      if (die == 3 && !next(ProcessGone(SessionToEnd()))) return status;
    }
    if (!next(TakeDoomed())) return status;
    while (!model_.in_destruction().empty()) {
      if (!next(Destroyed())) return status;
    }
    if (ledger_.segment_count() != 0 || ledger_.session_count() != 0 || ledger_.charged(0) != 0 ||
        ledger_.charged(1) != 0 || ledger_.charged(2) != 0 || !model_.events().empty()) {
      return absl::InternalError("everybody is gone, and something is left");
    }
    return absl::OkStatus();
  }
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(LedgerModelTest, RandomOperationsWithFaults) {
  const uint64_t wanted = FromEnvironment("GPUMEM_MODEL_OPS", 1000000);
  uint64_t seed = FromEnvironment("GPUMEM_MODEL_SEED", 1);
  Coverage coverage;
  uint64_t calls = 0;
  for (; calls < wanted; ++seed) {
    Episode episode(seed, &coverage);
    const absl::Status status = episode.Run(std::min(kEpisode, wanted - calls));
    ASSERT_TRUE(status.ok()) << "seed " << seed << ", call " << episode.calls() << ": "
                             << status.message() << "\nthe last calls:\n  " << episode.LastCalls();
    calls += episode.calls();
  }
  for (const auto& [what, times] : coverage) std::cout << "  " << times << " x " << what << "\n";
  if (calls < 500000) return;  // too few to have met everything
  for (const char* what : {"granted",
                           "soon",
                           "soon, then granted",
                           "lost",
                           "granted vmm",
                           "granted mempool",
                           "granted ipc",
                           "granted pinned",
                           "granted where most is free",
                           "events beside a lease",
                           "event by name",
                           "an event that was handed out ends",
                           "FAILED_PRECONDITION",
                           "ALREADY_EXISTS",
                           "reused",
                           "reused and fresh",
                           "reused of a pool",
                           "a session replaces another",
                           "made in an open pool, and not handed over",
                           "opened across tenants",
                           "shared again",
                           "committed too late",
                           "trimmed",
                           "a session outlives its socket",
                           "a session outlives its process",
                           "CAUSE_DEVICE_LIMIT",
                           "CAUSE_TOTAL_LIMIT",
                           "CAUSE_CAPACITY",
                           "CAUSE_DRIVER",
                           "CAUSE_MAX_SEGMENTS",
                           "CAUSE_MAX_SESSIONS",
                           "CAUSE_MAX_IN_FLIGHT",
                           "CAUSE_DAEMON_LIMIT",
                           "UNAVAILABLE",
                           "ABORTED",
                           "NOT_FOUND",
                           "INVALID_ARGUMENT",
                           "UNIMPLEMENTED",
                           "PERMISSION_DENIED"}) {
    EXPECT_GE(coverage[what], 100) << "hardly ever met: " << what;
  }
}

}  // namespace
}  // namespace gpumemd
