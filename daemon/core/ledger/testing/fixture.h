// SPDX-License-Identifier: Apache-2.0
// A ledger of two small devices, and the first steps of most of its tests.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/quota/testing/change.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {

using gpumem::kMiB;
inline constexpr uint64_t kGranule = 2 * kMiB;

class LedgerFixture : public ::testing::Test {
 protected:
  // Each device has 1024 granules.
  static constexpr uint64_t kCapacity = 1024 * kGranule;

  explicit LedgerFixture(Bounds bounds = {})
      : LedgerFixture(bounds, {Device("GPU-1", {Kind::kVmm}), Device("GPU-2", {Kind::kVmm})}) {}
  LedgerFixture(Bounds bounds, std::vector<DeviceInfo> devices)
      : ledger(std::move(devices), bounds, [this] { return now; }) {}
  static DeviceInfo Device(std::string uuid, std::vector<Kind> kinds) {
    return {.uuid = std::move(uuid),
            .capacity_bytes = kCapacity,
            .granularity_bytes = kGranule,
            .kinds = std::move(kinds)};
  }

  void TearDown() override { EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken(); }
  std::string Broken() const { return ledger.CheckInvariants().ToString(); }

  Secret NewSecret() {
    Secret secret{};
    secret[0] = static_cast<uint8_t>(++secrets);
    secret[1] = static_cast<uint8_t>(secrets >> 8);
    return secret;
  }
  SessionId OpenSession(absl::string_view tenant) {
    const Secret token = NewSecret();
    SessionDetails details;  // of a new process
    details.peer.pid = ++pids;
    auto session = ledger.OpenSession(tenant, std::move(details), token);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.value_or(SessionId{});
  }

  // Returns BeginAcquire's answer for `count` segments of `bytes` each.
  absl::StatusOr<std::optional<Operation>> Ask(SessionId session, uint64_t bytes,
                                               uint32_t count = 1, std::string device = "GPU-1") {
    return Ask(session, {.device_uuid = std::move(device), .bytes = bytes, .count = count});
  }
  // The same for any request. nullopt: it would have to wait; it leaves the queue instead.
  absl::StatusOr<std::optional<Operation>> Ask(SessionId session, const AcquireSpec& spec) {
    absl::StatusOr<Admission> admission = ledger.admission().BeginAcquire(session, spec);
    if (!admission.ok()) return admission.status();
    if (admission->waiter)
      ledger.admission().EndWait(*admission->waiter, /*expired=*/false).IgnoreError();
    return std::move(admission->operation);
  }
  static bool Granted(const absl::StatusOr<std::optional<Operation>>& answer) {
    return answer.ok() && answer->has_value();
  }
  static bool Soon(const absl::StatusOr<std::optional<Operation>>& answer) {
    return answer.ok() && !answer->has_value();
  }
  // As Ask; the request must be granted. Not yet committed.
  Operation Begin(SessionId session, uint64_t bytes, uint32_t count = 1,
                  std::string device = "GPU-1") {
    auto operation = Ask(session, bytes, count, std::move(device));
    EXPECT_TRUE(operation.ok()) << operation.status();
    EXPECT_TRUE(operation.ok() && operation->has_value()) << "soon";
    return operation.ok() && *operation ? **operation : Operation{};
  }
  // As Begin, and commits.
  std::vector<Operation::Item> Acquire(SessionId session, uint64_t bytes, uint32_t count = 1,
                                       std::string device = "GPU-1") {
    const Operation operation = Begin(session, bytes, count, std::move(device));
    Finish(operation);
    return operation.items;
  }
  // Makes the memory and hands it over.
  void Finish(const Operation& operation) {
    Make(operation);
    EXPECT_TRUE(ledger.operations().Commit(operation).ok());
  }
  void Make(const Operation& operation) {
    for (const Operation::Item& item : operation.items) {
      if (item.fresh) ledger.operations().Created(item.segment);
    }
  }
  Operation::Item AcquireOne(SessionId session, uint64_t bytes, std::string device = "GPU-1") {
    return Acquire(session, bytes, 1, std::move(device)).at(0);
  }
  void Release(SessionId session, const std::vector<Operation::Item>& items) {
    std::vector<LeaseId> leases;
    for (const Operation::Item& item : items) leases.push_back(item.lease);
    const absl::Status released = ledger.leases().Release(session, leases);
    EXPECT_TRUE(released.ok()) << released;
  }
  Secret Share(SessionId session, LeaseId lease, TicketScope scope = TicketScope::kTenant) {
    auto ticket = ledger.leases().Share(session, lease, scope, NewSecret());
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return ticket.value_or(Secret{});
  }
  // Opens a ticket's segment; committed.
  Operation::Item OpenTicket(SessionId session, const Secret& ticket) {
    auto operation = ledger.operations().BeginOpen(session, {ticket}, /*revocable=*/false);
    EXPECT_TRUE(operation.ok()) << operation.status();
    EXPECT_TRUE(ledger.operations().Commit(*operation).ok());
    return operation->items.at(0);
  }
  // Gives all doomed segments back to the driver, and returns them.
  std::vector<SegmentId> DestroyDoomed() {
    std::vector<SegmentId> doomed = Drain(ledger.effects().doomed);
    for (SegmentId segment : doomed) ledger.Destroyed(segment);
    return doomed;
  }
  DeviceUsageView Usage(absl::string_view tenant, size_t device = 0) {
    auto view = ledger.look().GetTenant(tenant);
    EXPECT_TRUE(view.ok()) << view.status();
    return view.ok() ? view->devices.at(device) : DeviceUsageView{};
  }
  SegmentView Segment(SegmentId id) {
    const auto views = ledger.look().ListSegments("", "");
    for (const SegmentView& view : *views) {
      if (view.id == id) return view;
    }
    ADD_FAILURE() << "no segment " << ToInt(id);
    return {};
  }
  SegmentState StateOf(const Operation::Item& item) { return Segment(item.segment).state; }
  void SetQuota(absl::string_view tenant, const Quota& quota) {
    const absl::Status right = ledger.tenants().CheckQuota(tenant, quota);
    EXPECT_TRUE(right.ok()) << right;
    ledger.tenants().OverrideQuota(tenant, {quota, Difference(quota)});
  }

  // Checks that a request was denied with exactly these numbers.
  void ExpectDenial(const absl::Status& status, Denial::Cause cause, absl::string_view tenant,
                    absl::string_view device, uint64_t asked, uint64_t used, uint64_t limit) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    const auto denial = DenialOf(status);
    ASSERT_TRUE(denial.has_value()) << status;
    EXPECT_EQ(denial->cause, cause) << status;
    EXPECT_EQ(denial->tenant, tenant);
    EXPECT_EQ(denial->device_uuid, device);
    EXPECT_EQ(denial->asked, asked);
    EXPECT_EQ(denial->used, used);
    EXPECT_EQ(denial->limit, limit);
  }
  static std::string HelpOf(const absl::Status& status) {
    const auto denial = DenialOf(status);
    return denial ? denial->help : "";
  }

  absl::Time now = absl::FromUnixSeconds(1000);
  uint64_t secrets = 0;
  pid_t pids = 0;
  Ledger ledger;
};

}  // namespace gpumemd
