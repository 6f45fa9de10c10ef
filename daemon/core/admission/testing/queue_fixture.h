// SPDX-License-Identifier: Apache-2.0
// A ledger whose requests wait: sessions that are in a call, and memory that keeps others out.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ledger/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {

class LedgerQueueFixture : public LedgerFixture {
 protected:
  static AcquireSpec Of(uint64_t granules, bool waits = true) {
    return {.device_uuid = "GPU-1", .bytes = granules * kGranule, .waits = waits};
  }
  SessionId Open(absl::string_view tenant) {
    const SessionId session = OpenSession(tenant);
    EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
    return session;
  }
  // Returns the waiter for a request of so many granules.
  WaiterId Wait(SessionId session, uint64_t granules) {
    const absl::StatusOr<Admission> admission =
        ledger.admission().BeginAcquire(session, Of(granules));
    EXPECT_TRUE(admission.ok()) << admission.status();
    EXPECT_TRUE(admission.ok() && admission->waiter) << "granted";
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  }
  // Returns the waiters that are granted or refused now, and commits the grants. Gives doomed
  // segments back to the driver.
  std::vector<WaiterId> Admit() {
    std::vector<WaiterId> granted;
    while (true) {
      const std::vector<AdmissionControl::Admitted> admitted = ledger.admission().AdmitWaiting();
      for (const AdmissionControl::Admitted& each : admitted) {
        EXPECT_TRUE(each.operation.ok()) << each.operation.status();
        if (!each.operation.ok()) continue;
        granted.push_back(each.waiter);
        EXPECT_TRUE(ledger.operations().Commit(*each.operation).ok());
        last = *each.operation;
      }
      EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
      if (DestroyDoomed().empty() && admitted.empty()) return granted;
    }
  }
  void Fill(SessionId session, uint64_t granules) {
    held.emplace_back(session, AcquireOne(session, granules * kGranule));
  }
  void Empty() {
    for (const auto& [session, item] : held) Release(session, {item});
    held.clear();
  }

  std::vector<std::pair<SessionId, Operation::Item>> held;
  Operation last;
};

}  // namespace gpumemd
