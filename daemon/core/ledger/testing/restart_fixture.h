// SPDX-License-Identifier: Apache-2.0
// A ledger that journals its changes, and a successor that goes on from them in its place.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {

class LedgerRestartFixture : public LedgerFixture {
 protected:
  LedgerRestartFixture()
      : LedgerFixture({}, {Device("GPU-1", {Kind::kVmm, Kind::kMempool, Kind::kIpc}),
                           Device("GPU-2", {Kind::kVmm}), Device("PINNED-0", {Kind::kPinned})}) {
    ledger.KeepChanges();
  }

  // An operator makes a tenant.
  absl::StatusCode Create(const MadeTenantSpec& spec) {
    return ledger.made_tenants().Create(spec).status().code();
  }

  // Applies the ledger's changes to the journal image.
  void Record() {
    for (const journal::Change& change : ledger.TakeChanges()) image.Apply(change);
  }

  // Processes, memory and devices that are gone when the next daemon looks.
  struct Fate {
    std::set<SessionId> dead;      // their processes
    std::set<SegmentId> missing;   // memory; memory of a context is gone anyway
    std::set<PublicationId> bare;  // publications without their metadata
    std::set<std::string> gone;    // devices
  };
  // The daemon is killed, and another goes on with the same configuration.
  Restored Restart(const Fate& fate = {}) {
    Record();
    EXPECT_TRUE(image == ledger.Image()) << "what was recorded is not what there is";
    const absl::Status consistent = image.CheckReferences();
    EXPECT_TRUE(consistent.ok()) << consistent;
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    Survivors survivors;
    for (const auto& [id, session] : image.sessions) {
      if (fate.dead.contains(id)) continue;
      survivors.sessions[id] = {
          .peer = {.pid = session.pid, .start_time = session.start_time, .uid = session.uid},
          .client_name = std::string(session.client_name.view()),
          .certain = session.certain};
    }
    for (const auto& [id, segment] : image.segments) {
      if (!IsContextBound(segment.kind) && !fate.missing.contains(id)) survivors.memory.insert(id);
    }
    for (const auto& [id, publication] : image.publications) {
      if (!fate.bare.contains(id)) survivors.metadata.insert(id);
    }
    std::vector<DeviceInfo> devices = ledger.state().devices;
    std::erase_if(devices, [&](const DeviceInfo& info) { return fate.gone.contains(info.uuid); });
    std::destroy_at(&ledger);
    std::construct_at(&ledger, devices, Bounds{}, [this] { return now; });
    ledger.tenants().Configure(tenants, Quota{}, overridden);
    Restored restored = ledger.Restore(image, survivors);
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    image = ledger.Image();
    ledger.KeepChanges();
    return restored;
  }

  void Configure(const std::map<std::string, Quota>& configured) {
    tenants = configured;
    ledger.tenants().Configure(tenants, Quota{});
  }
  SessionId OpenSessionOf(absl::string_view tenant, pid_t pid) {
    const Secret token = NewSecret();
    auto session = ledger.OpenSession(tenant, {.peer = {.pid = pid, .start_time = 7}}, token);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.value_or(SessionId{});
  }
  // Granted and committed, on GPU-1.
  Operation AcquireAs(SessionId session, const AcquireSpec& spec) {
    auto operation = Ask(session, spec);
    EXPECT_TRUE(operation.ok() && *operation) << operation.status();
    if (!operation.ok() || !*operation) return {};
    Finish(**operation);
    return **operation;
  }
  Operation::Item AcquireKind(SessionId session, Kind kind) {
    return AcquireAs(session, {.bytes = kGranule, .kind = kind}).items.at(0);
  }
  std::optional<SegmentState> StateOf(SegmentId segment) {
    const std::vector<SegmentView> views = ledger.look().ListSegments("", "").value();
    for (const SegmentView& view : views) {
      if (view.id == segment) return view.state;
    }
    return std::nullopt;
  }
  bool Opens(SessionId session, const Secret& ticket) {
    auto operation = ledger.operations().BeginOpen(session, {ticket});
    if (operation.ok()) ledger.operations().Abort(*operation, /*handed_over=*/false);
    return operation.ok();
  }

  std::map<std::string, Quota> tenants;
  std::map<std::string, OverriddenQuota> overridden;  // for the next daemon
  JournalImage image;                                 // the journal's state
};

}  // namespace gpumemd
