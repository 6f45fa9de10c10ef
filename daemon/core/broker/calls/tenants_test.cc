// SPDX-License-Identifier: Apache-2.0
// Tenants that sessions and operators make, change and end by calls of the broker.
#include "daemon/core/broker/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "daemon/core/audit/audit_ring.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/quota/testing/change.h"
#include "daemon/device/host_device.h"
#include "daemon/device/testing/fault_injection.h"

namespace gpumemd {
namespace tenants_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using absl::StatusCode;
using gpumem::kMiB;

constexpr uid_t kAlice = 1000, kBob = 1001;

class Observer : public QuietObserver {
 public:
  void QuotaChanged(absl::string_view tenant) override { quotas.emplace_back(tenant); }
  std::vector<std::string> quotas;
};

// Parameter: whether there are an observer and an audit.
class BrokerTenantsTest : public testing::TestWithParam<bool> {
 protected:
  BrokerTenantsTest() {
    BrokerOptions options;
    options.devices.push_back(
        InjectFaults(*MakeHostDevice({.capacity_bytes = 64 * kMiB}), [this](const DeviceOp& op) {
          Gate* const gate = op.type == DeviceOp::Type::kDestroy ? destroys_.load() : nullptr;
          if (gate != nullptr) gate->Pass();
          return absl::OkStatus();
        }));
    uuid_ = options.devices[0]->info().uuid;
    options.random = CountedSecrets();
    if (GetParam()) options.observer = &observer_;
    if (GetParam()) options.audit = &audit_;
    broker_ = std::make_unique<Broker>(std::move(options));
    broker_->operators().Configure({{"team", {}}}, {});
  }
  void TearDown() override {
    EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
    if (!GetParam()) {
      EXPECT_THAT(observer_.quotas, IsEmpty());
    }
  }

  Broker::Call Begin(absl::string_view tenant, uid_t uid = kAlice) {
    const auto session =
        broker_->OpenSession(tenant, {.peer = {.pid = ++pid_, .start_time = 1, .uid = uid}});
    EXPECT_TRUE(session.ok()) << session.status();
    return CallIn(*broker_, *session);
  }
  std::vector<LeaseView> Acquire(const Broker::Call& call, uint64_t bytes) {
    const auto leases = broker_->Acquire(call, {.bytes = bytes, .count = 1}, absl::Now(),
                                         [](const Handover&) { return absl::OkStatus(); });
    EXPECT_TRUE(leases.ok()) << leases.status();
    return *leases;
  }
  std::string Child(const Broker::Call& call, absl::string_view name, bool lasting = false) {
    const auto made = broker_->tenants().CreateChild(call, name, {}, lasting);
    EXPECT_TRUE(made.ok()) << made.status();
    return made->name;
  }
  absl::StatusOr<BrokerTenants::Held> End(const std::string& tenant,
                                          absl::Duration wait = absl::ZeroDuration(),
                                          bool cancelled = false) {
    return broker_->tenants().End(tenant, std::nullopt, {}, absl::Now() + wait,
                                  [cancelled] { return cancelled; });
  }
  // Returns the names of the audit's last records and whose they are.
  std::vector<std::pair<std::string, std::string>> Audited() {
    AuditRing::Batch batch = audit_.Read(next_, 100);
    next_ = batch.next;
    std::vector<std::pair<std::string, std::string>> all;
    for (const AuditRecord& record : batch.records) {
      all.emplace_back(NameOf(record.event), record.owner);
    }
    return all;
  }

  std::atomic<Gate*> destroys_ = nullptr;  // holds up the disposal of memory
  Observer observer_;
  AuditRing audit_;
  uint64_t next_ = 1;
  pid_t pid_ = 10;
  std::string uuid_;
  std::unique_ptr<Broker> broker_;
};

INSTANTIATE_TEST_SUITE_P(Tests, BrokerTenantsTest, testing::Bool());

TEST_P(BrokerTenantsTest, SessionsMakeChangeAndEndTheirs) {
  const Broker::Call call = Begin("team");
  observer_.quotas.clear();
  Audited();
  const auto made = broker_->tenants().CreateChild(call, "eval", Limit(8 * kMiB));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->name, "team:1000.eval");
  EXPECT_EQ(made->quota.limit_bytes, 8 * kMiB);
  EXPECT_THAT(made->above, ElementsAre("team"));
  const auto changed = broker_->tenants().UpdateChild(call, made->name, Limit(4 * kMiB));
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->quota.limit_bytes, 4 * kMiB);
  const auto listed = broker_->tenants().ListChildren(call);
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_THAT(*listed, SizeIs(1));
  EXPECT_EQ(listed->front().name, made->name);
  EXPECT_TRUE(broker_->tenants().EndChild(call, made->name)->gone);
  EXPECT_THAT(*broker_->tenants().ListChildren(call), IsEmpty());
  if (!GetParam()) return;
  EXPECT_THAT(observer_.quotas, ElementsAre(made->name));
  EXPECT_THAT(Audited(),
              ElementsAre(Pair("tenant-made", made->name), Pair("tenant-changed", made->name),
                          Pair("tenant-ended", made->name)));
}

TEST_P(BrokerTenantsTest, RefusalsOfSessions) {
  BrokerTenants tenants = broker_->tenants();
  const Broker::Call call = Begin("team"), other = Begin("team", kBob);
  const auto code = [](const auto& answer) { return answer.status().code(); };
  EXPECT_EQ(code(tenants.CreateChild(call, "no name", {})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(tenants.UpdateChild(call, "team", Limit(kMiB))), StatusCode::kNotFound);
  EXPECT_EQ(code(tenants.EndChild(call, "team")), StatusCode::kNotFound);
  const std::string child = Child(call, "eval");
  EXPECT_EQ(code(tenants.EndChild(other, child)), StatusCode::kNotFound) << "another user's";
  EXPECT_EQ(code(tenants.UpdateChild(call, child, {})), StatusCode::kInvalidArgument);
  EXPECT_EQ(tenants.RuledBy(child, kAlice), "team");
  EXPECT_EQ(tenants.RuledBy(child, kBob), std::nullopt);
  EXPECT_EQ(tenants.RuledBy("team", kAlice), std::nullopt);

  broker_->SocketClosed(call.session());
  EXPECT_EQ(code(tenants.CreateChild(call, "eval", {})), StatusCode::kAborted);
  EXPECT_EQ(code(tenants.UpdateChild(call, child, Limit(kMiB))), StatusCode::kAborted);
  EXPECT_EQ(code(tenants.EndChild(call, child)), StatusCode::kAborted);
  EXPECT_EQ(code(tenants.ListChildren(call)), StatusCode::kAborted);
}

TEST_P(BrokerTenantsTest, UsesForACallInProgressAreAnswered) {
  std::optional<Broker::Call> call = Begin("team");
  BrokerTenants tenants = broker_->tenants();
  EXPECT_TRUE(tenants.UsesFor(*call, "team").ok());
  broker_->ProcessGone(call->session());
  // The session's record is kept for the call in progress.
  EXPECT_EQ(tenants.UsesFor(*call, "team").status(), absl::OkStatus());
}

TEST_P(BrokerTenantsTest, EndOfAChildSaysWhatItHolds) {
  const Broker::Call call = Begin("team");
  const std::string child = Child(call, "eval", /*lasting=*/true);
  EXPECT_EQ(broker_->tenants().BooksOf(child), "team");
  EXPECT_EQ(broker_->tenants().BooksOf("unknown"), "unknown");
  const Broker::Call member = Begin(child);
  Acquire(member, 2 * kMiB);
  const auto held = broker_->tenants().EndChild(call, child);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(held->gone);
  EXPECT_EQ(held->session_count, 1u);
  EXPECT_THAT(held->by_device, ElementsAre(Pair(uuid_, 2 * kMiB)));
  const auto again = broker_->tenants().CreateChild(call, "eval", {}, /*lasting=*/true);
  EXPECT_EQ(again.status().code(), StatusCode::kAlreadyExists) << "it has ended, and is not gone";
  const auto in_it = broker_->tenants().CreateChild(member, "sub", {});
  EXPECT_EQ(in_it.status().code(), StatusCode::kFailedPrecondition);
  broker_->ProcessGone(member.session());
  const std::string idle = Child(call, "idle", /*lasting=*/true);
  const Broker::Call without_memory = Begin(idle);
  const auto held_by_idle = broker_->tenants().EndChild(call, idle);
  ASSERT_TRUE(held_by_idle.ok()) << held_by_idle.status();
  EXPECT_EQ(held_by_idle->session_count, 1u);
  EXPECT_THAT(held_by_idle->by_device, IsEmpty());
}

TEST_P(BrokerTenantsTest, OperatorsEndTenantsWithTheirMembers) {
  BrokerTenants tenants = broker_->tenants();
  observer_.quotas.clear();
  ASSERT_TRUE(tenants.Create({.tenant = "job", .owner = "slurm", .quota = Limit(8 * kMiB)}).ok());
  EXPECT_TRUE(tenants.Create({.tenant = "job", .owner = "slurm", .quota = Limit(8 * kMiB)}).ok());
  EXPECT_EQ(tenants.Create({.tenant = "job", .owner = "other"}).status().code(),
            StatusCode::kAlreadyExists);
  ASSERT_TRUE(tenants.Update("job", "slurm", Limit(6 * kMiB)).ok());
  EXPECT_EQ(tenants.Update("job", "other", Limit(6 * kMiB)).status().code(),
            StatusCode::kPermissionDenied);
  if (GetParam()) {
    EXPECT_THAT(observer_.quotas, ElementsAre("job", "job"));
  }
  EXPECT_TRUE(tenants.IsMadeByOperator("job"));
  EXPECT_FALSE(tenants.IsMadeByOperator("team"));
  EXPECT_EQ(tenants.MadeQuota("job")->limit_bytes, 6 * kMiB);
  EXPECT_EQ(tenants.MadeQuota("team"), std::nullopt);
  EXPECT_EQ(tenants.MadeQuota("unknown"), std::nullopt);
  EXPECT_EQ(End("unknown").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(End("team").status().code(), StatusCode::kNotFound) << "it was not made";

  const Broker::Call call = Begin("job"), other = Begin("team");
  const std::string child = Child(call, "eval");
  EXPECT_FALSE(tenants.IsMadeByOperator(child));
  const Broker::Call member = Begin(child);
  Acquire(member, 2 * kMiB);
  const auto held = End("job");
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(held->gone);
  EXPECT_EQ(held->session_count, 2u);
  EXPECT_THAT(held->sessions, testing::UnorderedElementsAre(Pair(call.session(), testing::_),
                                                            Pair(member.session(), testing::_)));
  EXPECT_THAT(held->by_device, ElementsAre(Pair(uuid_, 2 * kMiB)));
  EXPECT_FALSE(End("job", absl::InfiniteDuration(), /*cancelled=*/true)->gone);
  broker_->ProcessGone(call.session());
  broker_->ProcessGone(member.session());
}

// The memory of its last session is released by the broker's disposal thread.
TEST_P(BrokerTenantsTest, EndAwaitsMemoryWithoutSessions) {
  BrokerTenants tenants = broker_->tenants();
  ASSERT_TRUE(tenants.Create({.tenant = "job", .owner = "slurm"}).ok());
  {
    const Broker::Call call = Begin("job");
    Acquire(call, 2 * kMiB);
    broker_->ProcessGone(call.session());
  }
  EXPECT_TRUE(End("job", absl::InfiniteDuration())->gone);
  EXPECT_FALSE(broker_->views().GetTenant("job").ok());
}

TEST_P(BrokerTenantsTest, EndSaysWhatTheDriverHasNotTakenBack) {
  ASSERT_TRUE(broker_->tenants().Create({.tenant = "job", .owner = "slurm"}).ok());
  Gate gate;
  destroys_ = &gate;
  {
    const Broker::Call call = Begin("job");
    Acquire(call, 2 * kMiB);
    broker_->ProcessGone(call.session());
  }
  const auto held = End("job");
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(held->gone);
  EXPECT_EQ(held->session_count, 0u);
  EXPECT_THAT(held->sessions, IsEmpty());
  EXPECT_THAT(held->by_device, ElementsAre(Pair(uuid_, 2 * kMiB)));
  gate.Open();
  while (broker_->views().GetTenant("job").ok()) std::this_thread::yield();
  destroys_ = nullptr;
}

TEST_P(BrokerTenantsTest, EndCountsAllSessionsAndNamesSomeOfMany) {
  ASSERT_TRUE(broker_->tenants().Create({.tenant = "job", .owner = "slurm"}).ok());
  for (int i = 0; i < 300; ++i) Begin("job");
  const auto held = End("job");
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(held->session_count, 300u);
  EXPECT_THAT(held->sessions, SizeIs(256));
}

// A tenant of the configuration goes on, without what was made.
TEST_P(BrokerTenantsTest, ConfiguredTenantOutlivesItsMadePart) {
  BrokerTenants tenants = broker_->tenants();
  ASSERT_TRUE(tenants.Create({.tenant = "job", .owner = "slurm"}).ok());
  broker_->operators().Configure({{"team", {}}, {"job", {.limit_bytes = kMiB}}}, {});
  EXPECT_EQ(broker_->views().GetTenant("job")->quota.limit_bytes, kMiB);
  EXPECT_TRUE(End("job")->gone);
  EXPECT_TRUE(broker_->views().GetTenant("job").ok());
  EXPECT_FALSE(broker_->views().GetTenant("job")->made.has_value());
}

}  // namespace tenants_test
}  // namespace gpumemd
