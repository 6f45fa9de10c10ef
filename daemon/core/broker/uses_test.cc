// SPDX-License-Identifier: Apache-2.0
// Who may ask what a tenant has used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace uses_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using gpumem::kMiB;

constexpr uid_t kAlice = 1000, kBob = 1001;

class UsesTest : public testing::Test {
 protected:
  UsesTest() {
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 64 * kMiB}));
    options.random = CountedSecrets();
    options.usage_clock = [this] { return absl::Seconds(seconds_.load()); };
    broker_ = std::make_unique<Broker>(std::move(options));
    broker_->operators().Configure({{"team", {}}}, {});
  }

  void Create(const std::string& tenant, std::optional<uid_t> user) {
    const auto made = broker_->tenants().Create({.tenant = tenant, .owner = "slurm", .user = user});
    ASSERT_TRUE(made.ok()) << made.status();
  }
  void End(const std::string& tenant) {
    const auto held = broker_->tenants().End(tenant, "slurm", {}, absl::Now() + absl::Minutes(1),
                                             [] { return false; });
    ASSERT_TRUE(held.ok()) << held.status();
    ASSERT_TRUE(held->gone);
  }
  // A session's call.
  Broker::Call Begin(absl::string_view tenant, uid_t uid) {
    const auto session =
        broker_->OpenSession(tenant, {.peer = {.pid = ++pid_, .start_time = 1, .uid = uid}});
    EXPECT_TRUE(session.ok()) << session.status();
    return CallIn(*broker_, *session);
  }
  // True if the session may know the tenant. The answer is the same whether or not there is one.
  bool Knows(const Broker::Call& call, absl::string_view tenant) {
    const auto uses = broker_->tenants().UsesFor(call, tenant);
    if (uses.ok()) return true;
    EXPECT_TRUE(absl::IsNotFound(uses.status())) << uses.status();
    EXPECT_THAT(std::string(uses.status().message()), HasSubstr("knows no tenant"));
    return false;
  }

  std::atomic<int> seconds_ = 100;
  pid_t pid_ = 10;
  std::unique_ptr<Broker> broker_;
};

TEST_F(UsesTest, OperatorsMayAskForAllAndUsersForTheirs) {
  Create("job-1", kAlice);
  Create("job-2", kBob);
  Create("job-3", std::nullopt);
  const Broker::Call alice = Begin("team", kAlice);
  EXPECT_TRUE(Knows(alice, "team")) << "the session's tenant";
  EXPECT_TRUE(Knows(alice, "job-1"));
  EXPECT_FALSE(Knows(alice, "job-2"));
  EXPECT_FALSE(Knows(alice, "job-3"));
  EXPECT_FALSE(Knows(alice, "job-4"));
  const Broker::Call member = Begin("job-3", kBob);
  EXPECT_TRUE(Knows(member, "job-3"));
  EXPECT_FALSE(Knows(member, "team"));
  for (const char* tenant : {"team", "job-1", "job-2", "job-3"}) {
    EXPECT_TRUE(broker_->tenants().UsesOf(tenant).ok());
  }
  EXPECT_TRUE(absl::IsNotFound(broker_->tenants().UsesOf("job-4").status()));
}

TEST_F(UsesTest, OfAnEndedOneTheSameHolds) {
  Create("job-1", kAlice);
  {
    const Broker::Call job = Begin("job-1", kAlice);
    const auto leases = broker_->Acquire(job, {.bytes = 2 * kMiB, .count = 1}, absl::Now(),
                                         [](const Handover&) { return absl::OkStatus(); });
    ASSERT_TRUE(leases.ok()) << leases.status();
    seconds_ += 10;
    EXPECT_EQ(broker_->tenants().UsesOf("job-1")->present->devices[0].byte_seconds, 20 * kMiB);
    broker_->ProcessGone(job.session());
  }
  End("job-1");
  const auto ended = broker_->tenants().UsesOf("job-1");
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_FALSE(ended->present.has_value());
  EXPECT_THAT(ended->ended, SizeIs(1));
  EXPECT_TRUE(Knows(Begin("team", kAlice), "job-1"));
  EXPECT_FALSE(Knows(Begin("team", kBob), "job-1"));
  // Another user's job has the name now.
  Create("job-1", kBob);
  const auto uses = broker_->tenants().UsesOf("job-1");
  ASSERT_TRUE(uses.ok()) << uses.status();
  EXPECT_TRUE(uses->present.has_value());
  ASSERT_THAT(uses->ended, SizeIs(1));
  EXPECT_EQ(uses->ended[0].devices[0].peak, 2 * kMiB);
  EXPECT_EQ(uses->ended[0].devices[0].byte_seconds, 20 * kMiB);
  const auto alices = broker_->tenants().UsesFor(Begin("team", kAlice), "job-1");
  ASSERT_TRUE(alices.ok()) << alices.status();
  EXPECT_FALSE(alices->present.has_value());
  EXPECT_THAT(alices->ended, SizeIs(1));
  const auto bobs = broker_->tenants().UsesFor(Begin("team", kBob), "job-1");
  ASSERT_TRUE(bobs.ok()) << bobs.status();
  EXPECT_TRUE(bobs->present.has_value());
  EXPECT_THAT(bobs->ended, IsEmpty());
}

}  // namespace uses_test
}  // namespace gpumemd
