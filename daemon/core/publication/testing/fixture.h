// SPDX-License-Identifier: Apache-2.0
// A ledger, and the steps of publishers and attachers.
#pragma once

#include <string>
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"
#include "gtest/gtest.h"

namespace gpumemd {

class LedgerPublicationsFixture : public LedgerFixture {
 protected:
  explicit LedgerPublicationsFixture(Bounds bounds = {}) : LedgerFixture(bounds) {}

  static std::vector<LeaseId> LeasesOf(const std::vector<Operation::Item>& items) {
    std::vector<LeaseId> leases;
    for (const Operation::Item& item : items) leases.push_back(item.lease);
    return leases;
  }
  static std::vector<SegmentId> SegmentsOf(const std::vector<Operation::Item>& items) {
    std::vector<SegmentId> segments;
    for (const Operation::Item& item : items) segments.push_back(item.segment);
    return segments;
  }
  // Returns the version.
  uint64_t Publish(SessionId session, PublishSpec spec) {
    auto published = ledger.publications().Publish(session, spec);
    EXPECT_TRUE(published.ok()) << published.status();
    return published.ok() ? published->version : 0;
  }
  uint64_t Publish(SessionId session, const std::string& name,
                   const std::vector<Operation::Item>& items) {
    return Publish(session, {.name = name, .leases = LeasesOf(items)});
  }
  // Attaches and commits. Returns the leases.
  std::vector<Operation::Item> Attach(SessionId session, const std::string& name) {
    auto admission = ledger.operations().BeginAttach(session, {.name = name});
    EXPECT_TRUE(admission.ok()) << admission.status();
    if (!admission.ok() || !admission->operation) return {};
    EXPECT_TRUE(ledger.operations().Commit(*admission->operation).ok());
    return admission->operation->items;
  }
  WaiterId Wait(SessionId session, const std::string& name, uint64_t version) {
    EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
    auto admission = ledger.operations().BeginAttach(session, {.name = name, .version = version});
    EXPECT_TRUE(admission.ok() && admission->waiter) << admission.status();
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  }
  void ProcessEnds(SessionId session) {
    ledger.endings().SocketClosed(session);
    ledger.endings().ProcessGone(session);
  }
};

}  // namespace gpumemd
