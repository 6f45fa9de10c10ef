// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/reconcile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gpumem::kubernetes {
namespace reconcile_test {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = Step::Kind;

TenantQuota Both(const BytesByUuid& bytes) { return {bytes, bytes}; }

auto Is(Kind kind, const std::string& tenant) {
  return ::testing::AllOf(Field(&Step::kind, kind), Field(&Step::tenant, tenant));
}

TEST(ReconcileTest, OwnersAreMarks) {
  EXPECT_EQ(OwnerOf("gpu.nvidia.com", "node-1"), "gpu.nvidia.com/node-1");
  EXPECT_EQ(OwnerOf("gpumem.dev", "node-1"), "gpumem.dev/node-1");
  const std::string a = OwnerOf("gpumem.dev", "ip-10-0-0-1.eu-central-1.compute.internal");
  const std::string b = OwnerOf("gpumem.dev", "ip-10-0-0-1.eu-central-2.compute.internal");
  EXPECT_EQ(a.size(), 32u);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, OwnerOf("gpumem.dev", "ip-10-0-0-1.eu-central-1.compute.internal"));
}

TEST(ReconcileTest, OnlyTenantsWithOurMarkAreSeen) {
  v1::ListTenantsResponse tenants;
  const auto add = [&](const std::string& name) {
    v1::TenantInfo* const tenant = tenants.add_tenants();
    tenant->mutable_usage()->set_tenant(name);
    return tenant;
  };
  add("configured")->set_configured(true);
  add("slurms")->mutable_made()->set_owner("slurm");
  add("other-nodes")->mutable_made()->set_owner("kubernetes/b");
  v1::TenantInfo* const child = add("sessions");
  child->mutable_made()->set_owner("kubernetes/a");
  child->mutable_made()->set_session_id(7);
  v1::TenantInfo* const ours = add("ours");
  ours->mutable_made()->set_owner("kubernetes/a");
  ours->mutable_made()->set_ending(true);
  *ours->mutable_quota() = ToQuota(Both({{"GPU-a", 5}}));
  ours->add_overridden("priority");
  const auto present = PresentTenants(tenants, "kubernetes/a");
  ASSERT_THAT(present, SizeIs(1));
  EXPECT_EQ(present[0].name, "ours");
  EXPECT_TRUE(present[0].ending);
  EXPECT_FALSE(present[0].overridden);
  EXPECT_EQ(present[0].quota, Both({{"GPU-a", 5}}));
  ours->add_overridden("guarantees");
  EXPECT_TRUE(PresentTenants(tenants, "kubernetes/a")[0].overridden);
}

TEST(ReconcileTest, StepsAreInTheOrderInWhichGuaranteesFit) {
  Desired desired;
  desired.tenants = {{"grows", Both({{"GPU-a", 60}})},
                     {"moves", Both({{"GPU-b", 10}})},
                     {"new", Both({{"GPU-a", 30}})},
                     {"same", Both({{"GPU-a", 1}})},
                     {"shrinks", Both({{"GPU-a", 2}})}};
  const std::vector<PresentTenant> present = {
      {.name = "goes", .quota = Both({{"GPU-a", 40}})},
      {.name = "grows", .quota = Both({{"GPU-a", 20}})},
      {.name = "moves", .quota = Both({{"GPU-a", 10}})},
      {.name = "same", .quota = Both({{"GPU-a", 1}, {"GPU-b", 0}})},
      {.name = "shrinks", .quota = Both({{"GPU-a", 20}})}};
  const auto steps = Plan(desired, present, /*may_end=*/true);
  ASSERT_THAT(steps, ElementsAre(Is(Kind::kEnd, "goes"), Is(Kind::kUpdate, "moves"),
                                 Is(Kind::kUpdate, "shrinks"), Is(Kind::kUpdate, "grows"),
                                 Is(Kind::kUpdate, "moves"), Is(Kind::kCreate, "new")));
  EXPECT_EQ(steps[1].quota, TenantQuota());
  EXPECT_EQ(steps[4].quota, Both({{"GPU-b", 10}}));
}

TEST(ReconcileTest, TenantsEndOnlyIfTheirPodsAreKnownToBeGone) {
  Desired desired;
  desired.kept = {"kept"};
  const std::vector<PresentTenant> present = {
      {.name = "goes"}, {.name = "held", .ending = true}, {.name = "kept"}};
  EXPECT_THAT(Plan(desired, present, /*may_end=*/false), ElementsAre(Is(Kind::kEnd, "held")));
  EXPECT_THAT(Plan(desired, present, /*may_end=*/true),
              ElementsAre(Is(Kind::kEnd, "goes"), Is(Kind::kEnd, "held")));
}

TEST(ReconcileTest, TenantsOfTheNameThatHoldMemoryAreWaitedFor) {
  Desired desired;
  desired.tenants = {{"a", Both({{"GPU-a", 1}})}};
  EXPECT_THAT(Plan(desired, {{.name = "a", .ending = true}}, true),
              ElementsAre(Is(Kind::kEnd, "a")));
  EXPECT_THAT(Plan(desired, {}, true), ElementsAre(Is(Kind::kCreate, "a")));
}

TEST(ReconcileTest, AnOperatorsQuotaStays) {
  Desired desired;
  desired.tenants = {{"a", Both({{"GPU-a", 1}})}};
  EXPECT_THAT(
      Plan(desired, {{.name = "a", .quota = Both({{"GPU-a", 9}}), .overridden = true}}, true),
      IsEmpty());
}

TEST(ReconcileTest, FailuresBackOff) {
  Backoff backoff;
  absl::Time now = absl::UnixEpoch();
  EXPECT_TRUE(backoff.IsDue("a", now));
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(backoff.Failed("a", now), absl::Seconds(seconds));
    EXPECT_FALSE(backoff.IsDue("a", now + absl::Seconds(seconds) - absl::Milliseconds(1)));
    now += absl::Seconds(seconds);
    EXPECT_TRUE(backoff.IsDue("a", now));
    EXPECT_TRUE(backoff.IsDue("b", now));
  }
  backoff.Succeeded("a");
  EXPECT_EQ(backoff.Failed("a", now), absl::Seconds(1));
  backoff.Retain({{Kind::kEnd, "b", {}}});
  EXPECT_TRUE(backoff.IsDue("a", now));
}

// --- A model of the daemon, the scheduler and the pods
// --------------------------------------------

constexpr uint64_t kCapacity = 1000;
const char* const kUuids[] = {"GPU-a", "GPU-b", "GPU-c"};

// gpumemd, with what EndTenant, UpdateTenant and CreateTenant promise.
class Daemon {
 public:
  std::vector<PresentTenant> List() const {
    std::vector<PresentTenant> list;
    for (const auto& [name, tenant] : tenants_) list.push_back(tenant);
    return list;
  }
  // Returns false if it refuses.
  bool Carry(const Step& step, bool holds_memory) {
    const auto at = tenants_.find(step.tenant);
    if (step.kind == Kind::kCreate) {
      if (at != tenants_.end() || !Fits(step)) return false;
      tenants_[step.tenant] = {.name = step.tenant, .quota = step.quota};
      return true;
    }
    if (at == tenants_.end()) return false;
    if (step.kind == Kind::kEnd) {
      at->second.ending = true;
      at->second.quota.guarantees.clear();
      if (!holds_memory) tenants_.erase(at);
      return !holds_memory;
    }
    if (at->second.ending || !Fits(step)) return false;
    at->second.quota = step.quota;
    return true;
  }

 private:
  bool Fits(const Step& step) const {
    for (const char* const uuid : kUuids) {
      uint64_t sum = 0;
      for (const auto& [name, tenant] : tenants_) {
        const auto own = tenant.quota.guarantees.find(uuid);
        if (name != step.tenant && own != tenant.quota.guarantees.end()) sum += own->second;
      }
      const auto own = step.quota.guarantees.find(uuid);
      if (own != step.quota.guarantees.end()) sum += own->second;
      if (sum > kCapacity) return false;
    }
    return true;
  }
  std::map<std::string, PresentTenant> tenants_;
};

// A cluster of one node whose scheduler never gives more of a GPU than it has.
class Cluster {
 public:
  explicit Cluster(uint64_t seed) : random_(seed) {}

  bool Chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  size_t Below(size_t n) { return random_() % n; }

  void Add() {
    Claim claim{.name_space = "team", .name = absl::StrCat("claim-", ++made_), .uid = "u"};
    for (size_t n = 1 + Below(2); n > 0; --n) {
      const size_t gpu = Below(3);
      const uint64_t room = kCapacity - Allocated(gpu) - ShareOf(claim, gpu);
      if (room == 0) continue;
      claim.shares[{"node", kUuids[gpu]}] += 1 + Below(std::min<uint64_t>(room, 400));
    }
    if (claim.shares.empty()) return;
    for (size_t n = 1 + (Chance(20) ? Below(3) : 0); n > 0; --n) AddPod(&claim);
    claims_.push_back(claim);
  }
  void Change() {
    if (claims_.empty()) return;
    const size_t at = Below(claims_.size());
    Claim& claim = claims_[at];
    if (Chance(20)) {
      AddPod(&claim);
    } else {
      claim.consumers.erase(claim.consumers.begin() +
                            static_cast<std::ptrdiff_t>(Below(claim.consumers.size())));
    }
    // The scheduler gives its devices to others at once, before the plug-in has seen the end.
    if (claim.consumers.empty()) claims_.erase(claims_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  const std::vector<Claim>& claims() const { return claims_; }
  int pods() const { return pods_; }

 private:
  void AddPod(Claim* claim) {
    const std::string uid = absl::StrFormat("%08x-0000-4000-8000-000000000000", ++pods_);
    claim->consumers.push_back({uid, absl::StrCat("pod", pods_)});
  }
  static uint64_t ShareOf(const Claim& claim, size_t gpu) {
    const auto share = claim.shares.find({"node", kUuids[gpu]});
    return share == claim.shares.end() ? 0 : share->second;
  }
  uint64_t Allocated(size_t gpu) const {
    uint64_t sum = 0;
    for (const Claim& claim : claims_) sum += ShareOf(claim, gpu);
    return sum;
  }
  std::mt19937_64 random_;
  std::vector<Claim> claims_;
  int made_ = 0;
  int pods_ = 0;
};

// A part of no byte is as good as none.
TenantQuota NonZero(TenantQuota quota) {
  for (BytesByUuid* const bytes : {&quota.limits, &quota.guarantees}) {
    std::erase_if(*bytes, [](const auto& on) { return on.second == 0; });
  }
  return quota;
}

void ExpectGuaranteesFit(const Daemon& daemon) {
  for (const char* const uuid : kUuids) {
    uint64_t sum = 0;
    for (const PresentTenant& tenant : daemon.List()) {
      const auto own = tenant.quota.guarantees.find(uuid);
      if (own != tenant.quota.guarantees.end()) sum += own->second;
    }
    ASSERT_LE(sum, kCapacity) << uuid;
  }
}

// 500 pods and more come and go. The plug-in is stopped in the middle of its steps and begins anew,
// and misses rounds. After a round that it completes, each pod has what its claim says.
TEST(ReconcileTest, PodsHaveWhatTheirClaimsSay) {
  std::map<DeviceName, Gpu> gpus;
  for (const char* const uuid : kUuids) gpus[{"node", uuid}] = {uuid, kCapacity};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Cluster cluster(seed);
    Daemon daemon;
    std::set<std::string> holding;  // ended tenants whose memory has not come back
    int rounds = 0;
    while (cluster.pods() < 500) {
      ++rounds;
      for (size_t n = cluster.Below(6); n > 0; --n) {
        cluster.Chance(50) ? cluster.Add() : cluster.Change();
      }
      const Desired desired = DesiredTenants(cluster.claims(), gpus);
      const auto steps = Plan(desired, daemon.List(), /*may_end=*/true);
      const size_t stop =
          cluster.Chance(30) ? cluster.Below(steps.size() + 1) : steps.size();  // it is killed
      for (size_t i = 0; i < stop; ++i) {
        const Step& step = steps[i];
        const bool holds = step.kind == Kind::kEnd && cluster.Chance(30);
        const bool done = daemon.Carry(step, holds);
        ExpectGuaranteesFit(daemon);
        ASSERT_EQ(done, !holds) << step.tenant;  // no guarantee is refused, and no name is taken
      }
      if (stop < steps.size()) continue;
      std::map<std::string, TenantQuota> live, wanted;
      for (const PresentTenant& tenant : daemon.List()) {
        if (!tenant.ending) live[tenant.name] = NonZero(tenant.quota);
      }
      for (const auto& [name, quota] : desired.tenants) wanted[name] = NonZero(quota);
      ASSERT_EQ(live, wanted) << "seed " << seed << ", round " << rounds;
    }
    EXPECT_GT(rounds, 50);
  }
}

}  // namespace reconcile_test
}  // namespace gpumem::kubernetes
