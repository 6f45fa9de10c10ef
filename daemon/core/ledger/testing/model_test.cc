// Runs random operations with faults on the ledger. Compares each answer and each state with the
// naive model's (model.h). Nothing is sampled: after every call the test compares all of both, and
// checks the ledger's invariants. It also checks that no session waits for memory that is
// available. Two promises are probed now and then whatever the model says: guaranteed memory is
// available, and a large request is granted in the end.
//
//   GPUMEM_MODEL_OPS   calls of the ledger in total; 1,000,000 if unset
//   GPUMEM_MODEL_SEED  of the first episode; each further one takes the next number. A failure
//                      names its episode's seed, with which that episode comes first.
#include "daemon/core/ledger/testing/model.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model_restart_steps.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

constexpr uint64_t kEpisode = 10000;  // calls; then all sessions leave and a new ledger begins

class Episode : public ModelRestarts {
 public:
  using ModelRestarts::ModelRestarts;

  // Returns the first error.
  absl::Status Run(uint64_t calls) {
    sound_ = chance_.In100(75);
    const Ledger::RevocationTimes times = {.grace = absl::Milliseconds(1 + chance_.Below(30)),
                                           .kill_after = absl::Milliseconds(chance_.Below(15))};
    ledger_.SetRevocationTimes(times);
    model_.SetRevocationTimes(times);
    if (absl::Status status = Configure(); !status.ok()) return status;
    while (calls_ < calls) {
      if (absl::Status status = Step(); !status.ok()) return status;
    }
    return EverybodyLeaves();
  }

 private:
  // --- Promises ------------------------------------------------------------------------

  // Commits all operations, and destroys doomed segments.
  absl::Status Settle() {
    while (!model_.operations().empty()) {
      const Operation operation = model_.operations().begin()->second;
      if (absl::Status done = Finish(operation, kWell); !done.ok()) return done;
    }
    return DestroyAll();
  }

  // A tenant's unused guarantee is available even if no session gives anything up, except processes
  // that are ended for it.
  absl::Status GuaranteeProbe() {
    if (ledger_.state().draining) return absl::OkStatus();
    std::vector<LedgerModel::Request> unused;
    for (const std::string& tenant : model_.TenantNames()) {
      for (size_t d : {0, 1}) {
        const uint64_t granule = devices_[d].granularity_bytes;
        LedgerModel::Request request = {.tenant = tenant, .device = d};
        request.bytes = model_.UnusedGuarantee(tenant, d) / granule * granule;
        if (request.bytes > 0 && !model_.TookTooMuch(tenant) && !model_.QuotaOf(tenant).revocable &&
            model_.Allowed(request, /*emptied=*/false)) {
          unused.push_back(request);
        }
      }
    }
    if (unused.empty()) return absl::OkStatus();
    const LedgerModel::Request request = chance_.Of(unused);
    if (chance_.In100(80)) {
      if (absl::Status crowded = Crowd(request.device); !crowded.ok()) return crowded;
      if (!model_.Allowed(request, /*emptied=*/false)) return absl::OkStatus();
    }
    std::optional<SessionId> session;
    if (absl::Status s = NewProcess(request.tenant, &session); !s.ok() || !session) return s;
    absl::Status asked = Acquire(*session, {.device_uuid = devices_[request.device].uuid,
                                            .bytes = request.bytes,
                                            .kind = Kind::kVmm,
                                            .waits = true});
    if (!asked.ok()) return asked;
    if (admission_.operation) Met("a guarantee is had at once");
    if (!admission_.waiter) return absl::OkStatus();  // perhaps too many wait
    const WaiterId waiter = *admission_.waiter;
    for (int round = 0; round < 20 && model_.waiters().contains(waiter); ++round) {
      if (absl::Status s = Settle(); !s.ok()) return s;
      if (absl::Status s = LetTimePass(absl::Milliseconds(20)); !s.ok()) return s;
      if (absl::Status s = TakeOverdue(); !s.ok()) return s;
      for (SessionId killed : std::exchange(killed_, {})) {
        if (absl::Status s = ProcessGone(killed); !s.ok()) return s;
      }
    }
    if (granted_waiters_.contains(waiter)) {
      Met("a guarantee is had after a wait");
      return absl::OkStatus();
    }
    // No tenant is guaranteed a number of segments. Others of the tenant may have been first, or
    // hold or wait for the amount that its limits allow.
    const auto why = ledger_.BlockedBy(waiter);
    const bool of_number = why && why->asked == 1;
    const bool own_limit =
        why && why->limited_tenant.empty() && why->limit != devices_[request.device].capacity_bytes;
    if (of_number || own_limit ||
        model_.UnusedGuarantee(request.tenant, request.device) < request.bytes ||
        !model_.Allowed(request, /*emptied=*/false)) {
      return EndWait(waiter, /*expired=*/true);
    }
    return absl::InternalError(
        absl::StrCat("what is guaranteed to ", request.tenant, " is not to be had"));
  }

  // A large request is granted once the others have gone, even if other requests keep coming.
  absl::Status StarvationProbe() {
    if (ledger_.state().draining || model_.TenantNames().empty()) return absl::OkStatus();
    std::vector<std::string> tenants = model_.TenantNames();
    LedgerModel::Request large = {.tenant = chance_.Of(tenants), .device = chance_.Below(3)};
    const DeviceInfo& device = devices_[large.device];
    large.kind = device.kinds[0];
    large.revocable = chance_.In100(20) || model_.QuotaOf(large.tenant).revocable;
    large.bytes = device.capacity_bytes / device.granularity_bytes * device.granularity_bytes;
    while (large.bytes > 0 && !model_.Allowed(large, /*emptied=*/true)) {
      large.bytes -= device.granularity_bytes;
    }
    std::optional<SessionId> session;
    if (large.bytes == 0 || model_.TookTooMuch(large.tenant)) return absl::OkStatus();
    if (absl::Status s = NewProcess(large.tenant, &session); !s.ok() || !session) return s;
    absl::Status asked = Acquire(*session, {.device_uuid = device.uuid,
                                            .bytes = large.bytes,
                                            .kind = large.kind,
                                            .revocable = large.revocable,
                                            .waits = true});
    if (!asked.ok() || !admission_.waiter) return asked;
    const WaiterId waiter = *admission_.waiter;
    for (int round = 0; round < 12 && model_.waiters().contains(waiter); ++round) {
      const std::set<SessionId> old = Sessions();
      for (int i = 0; i < 3; ++i) {
        if (absl::Status s = AskForLittle(large); !s.ok()) return s;
      }
      for (SessionId each : old) {
        if (each == *session) continue;
        if (absl::Status s = ProcessGone(each); !s.ok()) return s;
        while (CallsOf(each) > 0) {
          if (absl::Status s = EndCall(each); !s.ok()) return s;
        }
      }
      if (absl::Status s = UnpublishAll(); !s.ok()) return s;
      if (absl::Status s = Settle(); !s.ok()) return s;
    }
    if (granted_waiters_.contains(waiter)) {
      Met("a large request is had after a wait");
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("waiter ", ToInt(waiter), " starves"));
  }

  // Asks for little, in a session that does not go before the large request.
  absl::Status AskForLittle(const LedgerModel::Request& large) {
    LedgerModel::Request request = {.tenant = chance_.Tenant(), .device = large.device};
    if (!model_.Knows(request.tenant) ||
        model_.QuotaOf(request.tenant).priority > model_.QuotaOf(large.tenant).priority) {
      request.tenant = large.tenant;
    }
    const DeviceInfo& device = devices_[large.device];
    request.bytes = device.granularity_bytes * (1 + chance_.Below(3));
    const bool before = model_.Deficit(request) > model_.Deficit(large);
    std::optional<SessionId> session;
    if (absl::Status s = NewProcess(request.tenant, &session); !s.ok() || !session) return s;
    return Acquire(*session, {.device_uuid = device.uuid,
                              .bytes = request.bytes,
                              .kind = large.kind,
                              .revocable = before || chance_.In100(30),
                              .waits = chance_.In100(60)});
  }

  absl::Status Step() {
    if (model_.operations().size() > 6) return FinishOperation();
    if (ledger_.state().draining && chance_.In100(10)) return SetDraining(false);
    if (chance_.long_queues()) {
      if (chance_.In100(25)) return StirQueue();
      if (chance_.Below(2000) == 0) return Restart();  // no request waits after it
    } else if (chance_.Below(350) == 0 || WorthAKill()) {
      return Restart();
    }
    if (ledger_.HasEnding() && chance_.In100(25)) return ContinueEnding();
    if (AnyAttachToRegrant() && chance_.In100(10)) return RegrantAttach();
    if (!model_.regrants().empty() && chance_.In100(5)) {
      const uint64_t die = chance_.Below(100);
      if (die < 5) return RegrantAttach();
      return die < 55 ? Regrant() : die < 75 ? Reconcile() : die < 90 ? Resume() : DropRegrants();
    }
    uint64_t die = chance_.Below(1000);
    const auto falls_on = [&die](uint64_t share) {
      const bool yes = die < share;
      die = yes ? UINT64_MAX : die - share;
      return yes;
    };
    if (falls_on(50)) return OpenSession(chance_.Tenant(), chance_.Process());
    if (falls_on(8)) return Reconnect();
    if (falls_on(9)) return SocketClosed(SessionToEnd());
    if (falls_on(5)) return ProcessGone(SessionToEnd());
    if (falls_on(12)) return ProcessGone(SessionOver());
    if (falls_on(6)) {  // both, in either order
      const SessionId session = SessionToEnd();
      const bool socket_first = chance_.In100(50);
      absl::Status first = socket_first ? SocketClosed(session) : ProcessGone(session);
      if (!first.ok()) return first;
      return socket_first ? ProcessGone(session) : SocketClosed(session);
    }
    if (falls_on(8)) return BeginCall();
    if (falls_on(27)) return EndCall();
    if (falls_on(185)) return Acquire();
    if (falls_on(17)) return EndWait();
    if (falls_on(25)) return TakeOverdue();
    if (falls_on(15)) return LetTimePass(absl::Milliseconds(chance_.Below(15)));
    if (falls_on(10)) return SetUnbrokered(chance_.In100(35));
    if (falls_on(6)) return Crowd(chance_.Below(3));
    if (falls_on(10)) return WithoutEnding([this] { return GuaranteeProbe(); });
    if (chance_.Below(400) == 0) return WithoutEnding([this] { return StarvationProbe(); });
    if (falls_on(85)) return BeginOpen();
    if (falls_on(32)) return Publish();
    if (falls_on(38)) return Attach();
    if (falls_on(5)) return EndAttachWait();
    if (falls_on(5)) return Unpublish();
    if (falls_on(6)) return ExpirePublications();
    if (falls_on(185)) return FinishOperation();
    if (falls_on(60)) return Release();
    if (falls_on(30)) return Share();
    if (falls_on(10)) return SetQuota();
    if (falls_on(3)) return Configure();
    if (falls_on(1)) return SetDraining(true);
    if (falls_on(8)) return Trim();
    if (falls_on(30)) return TakeDoomed();
    if (falls_on(10)) return DriverHasNone();
    if (falls_on(4)) return MarkLost();
    if (falls_on(26)) return RegisterEvent();
    if (falls_on(24)) return GetEvents();
    if (falls_on(8)) return UnregisterEvent();
    if (falls_on(15)) return LookAtSome();
    if (falls_on(7)) return MakeSome();
    if (falls_on(1)) return Reconcile();  // of a session that was never away
    return Destroyed();
  }

  // For any order: in the end nothing is left.
  absl::Status EverybodyLeaves() {
    absl::Status status;
    const auto next = [&](absl::Status step) {
      status = std::move(step);
      return status.ok();
    };
    while (!model_.operations().empty() || !model_.sessions().empty()) {
      const uint64_t die = chance_.Below(5);
      if (die == 4 && ledger_.HasEnding() && !next(ContinueEnding())) return status;
      if (die == 0 && !next(FinishOperation())) return status;
      if (die == 1 && !next(EndCall())) return status;
      if (die == 2 && !next(SocketClosed(SessionToEnd()))) return status;
      if (die == 3 && !next(ProcessGone(SessionToEnd()))) return status;
    }
    if (!model_.waiters().empty()) return absl::InternalError("a waiter outlived its session");
    if (!model_.attach_waiters().empty()) return absl::InternalError("a wait to attach lasts");
    if (!next(UnpublishAll())) return status;
    if (!next(TakeDoomed())) return status;
    while (!model_.in_destruction().empty()) {
      if (!next(Destroyed())) return status;
    }
    if (ledger_.state().segments.size() != 0 || ledger_.state().sessions.size() != 0 ||
        ledger_.state().charged(0) != 0 || ledger_.state().charged(1) != 0 ||
        ledger_.state().charged(2) != 0 || !model_.events().empty()) {
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
  if (calls < 500000) return;  // too few to have met every case
  for (const char* what : {"granted",
                           "reused",
                           "reused and fresh",
                           "reused of a pool",
                           "granted vmm",
                           "granted mempool",
                           "granted ipc",
                           "granted pinned",
                           "granted where most is free",
                           "granted as revocable",
                           "granted of the tenant's kind",
                           "opened across tenants",
                           "opened as revocable",
                           "shared again",
                           "lost",
                           "committed too late",
                           "trimmed",
                           "made in an open pool, and not handed over",
                           "waits",
                           "waits a moment",
                           "revokes",
                           "one of many gives up",
                           "a session ends while many wait",
                           "judged in slices",
                           "waited, then granted",
                           "waited, then ABORTED",
                           "waited, then queue",
                           "waited, then FAILED_PRECONDITION",
                           "waited, then UNAVAILABLE",
                           "asked to end for others",
                           "killed for others",
                           "a revocation lapses, or waits on",
                           "crowded",
                           "a guarantee is had at once",
                           "a guarantee is had after a wait",
                           "a large request is had after a wait",
                           "a quota is set",
                           "a session replaces another",
                           "a session outlives its socket",
                           "a session outlives its process",
                           "a session ends in parts",
                           "a session ends over other calls",
                           "waits while a session ends",
                           "killed while a session ended",
                           "a commit in parts",
                           "events beside a lease",
                           "event by name",
                           "an event that was handed out ends",
                           "killed",
                           "killed during operations",
                           "killed while somebody waited",
                           "killed while memory went back",
                           "killed during a revocation",
                           "killed while draining",
                           "killed before all had come back",
                           "killed during a second handing over",
                           "a session goes on",
                           "an ended session goes on",
                           "lost by a restart",
                           "granted once more",
                           "not granted once more",
                           "a publication goes on",
                           "a publication is lost by a restart",
                           "attached once more",
                           "resumed",
                           "reconciled",
                           "reconciled, but for some",
                           "reconciled, and gave up what it had",
                           "published",
                           "published again",
                           "published, and told so again",
                           "attached",
                           "attached across tenants",
                           "waits for a version",
                           "waited to attach, and is called",
                           "unpublished",
                           "unpublished, and told so again",
                           "an event, and told so again",
                           "expired",
                           "max-publications",
                           "device-limit",
                           "total-limit",
                           "capacity",
                           "driver",
                           "guarantees",
                           "queue",
                           "max-segments",
                           "max-sessions",
                           "max-in-flight",
                           "max-waiting",
                           "daemon-limit",
                           "unbrokered",
                           "waited, then unbrokered",
                           "UNAVAILABLE",
                           "ABORTED",
                           "NOT_FOUND",
                           "ALREADY_EXISTS",
                           "INVALID_ARGUMENT",
                           "UNIMPLEMENTED",
                           "PERMISSION_DENIED",
                           "FAILED_PRECONDITION"}) {
    EXPECT_GE(coverage[what], 50) << "hardly ever met: " << what;
  }
}

}  // namespace
}  // namespace gpumemd
