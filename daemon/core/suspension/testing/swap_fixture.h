// SPDX-License-Identifier: Apache-2.0
// A ledger of two small GPUs and a large tier, and sessions that are asked to suspend.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {

// GPU-1 has ten granules, GPU-2 a hundred.
class SwapFixture : public LedgerFixture {
 protected:
  static constexpr absl::Duration kGrace = absl::Seconds(30);
  static constexpr absl::Duration kBackOff = absl::Seconds(60);

  explicit SwapFixture(uint64_t granules = 10, uint64_t tier_granules = 1000)
      : LedgerFixture({}, {{.uuid = "GPU-1",
                            .capacity_bytes = granules * kGranule,
                            .granularity_bytes = kGranule,
                            .kinds = {Kind::kVmm}},
                           {.uuid = "GPU-2",
                            .capacity_bytes = 100 * kGranule,
                            .granularity_bytes = kGranule,
                            .kinds = {Kind::kVmm}},
                           {.uuid = "TIER-0",
                            .capacity_bytes = tier_granules * kGranule,
                            .granularity_bytes = kGranule,
                            .kinds = {Kind::kTier}}}) {
    ledger.swaps().SetTimes({.grace = kGrace, .back_off = kBackOff});
  }

  // Opens a session with a watch that accepts requests.
  SessionId OpenServing(absl::string_view tenant, std::optional<bool> swappable = std::nullopt) {
    const SessionId session = OpenSession(tenant);
    ledger.suspension_requests().AddWatch(session, swappable);
    ledger.swaps().Active(session);
    return session;
  }
  // The same with memory on GPU-1.
  SessionId OpenHolding(absl::string_view tenant, uint64_t granules,
                        std::optional<bool> swappable = std::nullopt) {
    const SessionId session = OpenServing(tenant, swappable);
    AcquireOne(session, granules * kGranule);
    return session;
  }
  Quota Swappable(int32_t priority = 0, absl::Duration min_residence = absl::ZeroDuration()) {
    return {.priority = priority, .swappable = true, .min_residence = min_residence};
  }
  // Asks for memory and waits. Returns the waiter; nothing if the request was granted at once.
  std::optional<WaiterId> Wait(SessionId session, AcquireSpec spec) {
    spec.waits = true;
    auto admission = ledger.admission().BeginAcquire(session, spec);
    EXPECT_TRUE(admission.ok()) << admission.status();
    if (!admission.ok()) return std::nullopt;
    if (!admission->waiter) Finish(*admission->operation);
    return admission->waiter;
  }
  std::optional<WaiterId> Wait(SessionId session, uint64_t granules) {
    return Wait(session, {.device_uuid = "GPU-1", .bytes = granules * kGranule});
  }
  // Returns the sessions that were asked since the last call.
  std::vector<SessionId> Asked() { return Drain(ledger.effects().asked); }
  // Suspends all that the session maps. Returns its leases.
  std::vector<LeaseId> Suspend(SessionId session) {
    const auto& all = ledger.state().sessions.at(session)->leases;
    std::vector<LeaseId> leases(all.begin(), all.end());
    auto begun = ledger.suspensions().Begin(session, leases, /*reservation=*/0);
    EXPECT_TRUE(begun.ok()) << begun.status();
    for (const Suspensions::Move& move : begun->moves) {
      ledger.suspensions().Made(move, {{.offset = 0, .bytes = move.bytes}});
      ledger.suspensions().Finish(move, /*copied=*/true);
    }
    ledger.swaps().Suspended(session);
    Settle();
    return leases;
  }
  // Gives freed memory back and serves waiters, as the broker does. Adds those that were granted.
  void Settle() {
    for (bool more = true; more;) {
      DestroyDoomed();
      more = false;
      for (auto& admitted : ledger.admission().AdmitWaiting()) {
        if (!admitted.operation.ok()) continue;
        Finish(*admitted.operation);
        granted.push_back(admitted.waiter);
        more = true;
      }
      more |= !ledger.effects().doomed.empty();
    }
    ledger.swaps().Refresh();
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  }
  // Lets time pass, and the clock's thread act.
  void Pass(absl::Duration time) {
    now += time;
    ledger.admission().RunSwaps();
    Settle();
  }
  const SwapCounts& counts() { return ledger.swaps().counts(); }

  std::vector<WaiterId> granted;
};

}  // namespace gpumemd
