// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/device_plugin/holders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"

namespace gpumem::kubernetes {
namespace holders_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr uint32_t kCount = 12;  // units of each GPU

std::string UidOf(int number) {
  return absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", number);
}
std::string Tenant(int number) { return TenantOf(UidOf(number)); }

const UnitList& TwoGpus() {
  static const auto& list = *new UnitList{
      .step = kGiB,
      .gpus = {
          {"GPU-a", {kCount, true}}, {"GPU-b", {kCount, true}}, {"GPU-lost", {kCount, false}}}};
  return list;
}
std::string Id(const std::string& gpu, uint32_t number) { return IdOf({gpu, kGiB, number}); }

// A pod of the API server.
NamedPod Known(int number, bool alive = true) { return {UidOf(number), true, alive}; }
NamedPod New(int number) { return {UidOf(number), false, true}; }

class HoldersTest : public ::testing::Test {
 protected:
  Holders Find() {
    return HoldersOf({.listed = listed_,
                      .before = &before_,
                      .after = &after_,
                      .units = &TwoGpus(),
                      .tenants = tenants_,
                      .known = known_});
  }
  const PodName web_{"team", "web-0"};
  std::vector<DevicePod> listed_ = {
      {"team", "web-0", {Id("GPU-a", 0), Id("GPU-a", 1), Id("GPU-b", 5)}}};
  PodNames before_, after_;
  std::set<std::string> tenants_;
  std::map<std::string, PodName> known_;
};

TEST_F(HoldersTest, APodThatWasThereBeforeAndAfterHasItsUnits) {
  before_[web_] = after_[web_] = Known(1);
  const Holders holders = Find();
  ASSERT_THAT(holders.pods, SizeIs(1));
  EXPECT_TRUE(holders.pods[0].status.ok()) << holders.pods[0].status;
  EXPECT_EQ(holders.pods[0].tenant, Tenant(1));
  const BytesByUuid bytes = {{"GPU-a", 2 * kGiB}, {"GPU-b", kGiB}};
  EXPECT_THAT(holders.desired.tenants, ElementsAre(Pair(Tenant(1), TenantQuota{bytes, bytes})));
  EXPECT_THAT(holders.desired.problems, IsEmpty());
  EXPECT_FALSE(holders.read_again);
  EXPECT_EQ(HolderOf(holders.pods, {"x", Id("GPU-b", 5)}), &holders.pods[0]);
  EXPECT_EQ(HolderOf(holders.pods, {Id("GPU-b", 6)}), nullptr);
}

// web-0 of a StatefulSet was replaced by another pod of the name.
TEST_F(HoldersTest, APodGetsNothingOfAnEarlierOneOfItsName) {
  tenants_ = {Tenant(1)};
  known_[Tenant(1)] = web_;
  before_[web_] = Known(1);
  for (const NamedPod& next : {Known(2), New(2)}) {
    after_[web_] = next;
    const Holders holders = Find();
    EXPECT_TRUE(absl::IsUnavailable(holders.pods[0].status)) << holders.pods[0].status;
    EXPECT_THAT(holders.desired.tenants, IsEmpty());
    EXPECT_THAT(holders.desired.kept, ElementsAre(Tenant(1))) << "the kubelet may run it";
    EXPECT_EQ(holders.read_again, next.acknowledged);
  }
  // The kubelet has the next one, but had not acknowledged it before it was asked.
  before_[web_] = New(2);
  after_[web_] = Known(2);
  EXPECT_THAT(Find().desired.tenants, IsEmpty());
  before_[web_] = Known(2);
  const Holders holders = Find();
  EXPECT_THAT(holders.desired.tenants, ElementsAre(Pair(Tenant(2), testing::_)));
  EXPECT_THAT(holders.desired.kept, IsEmpty()) << "the earlier one ends";
}

TEST_F(HoldersTest, TenantsOfLivePodsStay) {
  listed_.clear();
  tenants_ = {Tenant(1), Tenant(2), Tenant(3)};
  after_[web_] = Known(1);
  after_[{"team", "done"}] = Known(2, /*alive=*/false);
  EXPECT_THAT(Find().desired.kept, ElementsAre(Tenant(1))) << "a kubelet that was just started";
}

TEST_F(HoldersTest, APodThatWasDeletedByForceStaysWhileTheKubeletHasIt) {
  tenants_ = {Tenant(1), Tenant(2)};
  known_[Tenant(1)] = web_;
  known_[Tenant(2)] = {"other", "web-0"};
  Holders holders = Find();
  EXPECT_THAT(holders.desired.kept, ElementsAre(Tenant(1)));
  EXPECT_FALSE(holders.read_again);
  EXPECT_THAT(holders.desired.origins, SizeIs(1)) << "also in the next round";
  known_.clear();
  EXPECT_THAT(Find().desired.kept, IsEmpty()) << "it is not known whose it is";
}

TEST_F(HoldersTest, UnitsThatMakeNoSenseChangeNothing) {
  before_[web_] = after_[web_] = Known(1);
  for (const auto& [id, words] :
       std::vector<std::pair<std::string, std::string>>{{"GPU-0", "is no unit"},
                                                        {Id("GPU-lost", 0), "has no GPU GPU-lost"},
                                                        {Id("GPU-x", 0), "has no GPU GPU-x"}}) {
    listed_[0].ids.insert(id);
    const Holders holders = Find();
    EXPECT_THAT(std::string(holders.pods[0].status.message()), HasSubstr(words));
    EXPECT_THAT(holders.desired.tenants, IsEmpty());
    EXPECT_THAT(holders.desired.kept, ElementsAre(Tenant(1)));
    EXPECT_THAT(holders.desired.problems, ElementsAre(HasSubstr("team/web-0")));
    listed_[0].ids.erase(id);
  }
  const PodName other{"team", "web-1"};
  before_[other] = after_[other] = Known(2);
  listed_.push_back({"team", "web-1", {Id("GPU-a", 0)}});
  EXPECT_THAT(Find().desired.kept, ElementsAre(Tenant(1), Tenant(2))) << "a unit of two pods";
  listed_[1] = {"team", "web-0", {Id("GPU-a", 3)}};
  EXPECT_THAT(Find().desired.tenants, IsEmpty()) << "two pods of a name";
}

// A pod's containers can start again if it has a tenant. Not those of a pod whose tenant has ended:
// it still holds memory, and stays so long.
TEST_F(HoldersTest, WithoutTheApiServerPodsNeedATenant) {
  listed_.push_back({"team", "late", {Id("GPU-a", 7)}});
  known_[Tenant(1)] = web_;
  const absl::Status away = absl::UnavailableError("away");
  const auto find = [&](const std::vector<PresentTenant>& present) {
    std::vector<bool> ok;
    for (const Holder& holder : WithoutNames(listed_, present, known_, away)) {
      EXPECT_TRUE(holder.status.ok() || holder.status == away);
      ok.push_back(holder.status.ok());
    }
    return ok;
  };
  const PresentTenant live = {.name = Tenant(1)}, ended = {.name = Tenant(1), .ending = true};
  const PresentTenant other = {.name = Tenant(2)}, leftover = {.name = Tenant(2), .ending = true};
  EXPECT_THAT(find({}), ElementsAre(false, false));
  EXPECT_THAT(find({live}), ElementsAre(true, false));
  EXPECT_THAT(find({ended}), ElementsAre(false, false));
  EXPECT_THAT(find({live, leftover}), ElementsAre(true, false)) << "it is no pod's any more";
  EXPECT_THAT(find({live, other}), ElementsAre(true, true)) << "it is not known whose it is";
}

// A mirror pod's uid is not the one by which the kubelet knows the static pod.
TEST_F(HoldersTest, StaticPodsHaveNoTenant) {
  const Pod plain = {.uid = UidOf(1), .name_space = "team", .name = "web-0", .acknowledged = true};
  Pod mirror = plain;
  mirror.mirror = true;
  before_ = after_ = NamesOf({plain});
  EXPECT_THAT(Find().desired.tenants, SizeIs(1));
  before_ = after_ = NamesOf({mirror});
  const Holders holders = Find();
  EXPECT_TRUE(absl::IsUnavailable(holders.pods[0].status)) << holders.pods[0].status;
  EXPECT_THAT(holders.desired.tenants, IsEmpty());
  EXPECT_FALSE(holders.read_again);

  const auto list = ParsePods(
      R"({"kind": "PodList", "apiVersion": "v1", "items": [
        {"metadata": {"namespace": "team", "name": "static-node",
                      "uid": "00000001-2a99-45ad-af94-d91eb81a87e9",
                      "annotations": {"kubernetes.io/config.mirror": "5f1c"}}},
        {"metadata": {"namespace": "team", "name": "plain",
                      "uid": "00000002-2a99-45ad-af94-d91eb81a87e9",
                      "annotations": {"kubernetes.io/config.source": "api"}}}]})");
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_THAT(list->pods, SizeIs(2));
  EXPECT_TRUE(list->pods[0].mirror);
  EXPECT_FALSE(list->pods[1].mirror);
}

// Only static pods have a uid without dashes. A tenant's name would be no pod's.
TEST_F(HoldersTest, APodWithAUidOfNoTenantIsRefused) {
  before_[web_] = after_[web_] = {std::string(32, 'a'), true, true};
  tenants_ = {Tenant(1)};
  known_[Tenant(1)] = web_;
  const Holders holders = Find();
  EXPECT_TRUE(absl::IsInvalidArgument(holders.pods[0].status)) << holders.pods[0].status;
  EXPECT_EQ(holders.pods[0].tenant, "");
  EXPECT_THAT(holders.desired.tenants, IsEmpty());
  EXPECT_THAT(holders.desired.kept, ElementsAre(Tenant(1)));
  EXPECT_THAT(holders.desired.problems, SizeIs(1));
}

TEST_F(HoldersTest, ProblemsAreBounded) {
  listed_.clear();
  for (int i = 0; i < 1000; ++i) listed_.push_back({"team", absl::StrCat("p", i), {"x"}});
  EXPECT_THAT(Find().desired.problems, SizeIs(64));
}

// An API server, and a kubelet that learns of its changes late and in their order.
class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) {}
  size_t Below(size_t n) { return random_() % n; }

  void Step() {
    const size_t what = Below(8);
    const PodName name{"team", absl::StrCat("web-", Below(4))};
    if (what < 2 && !api_.contains(name)) {
      api_[name] = New(++made_);
      events_.push_back({name, UidOf(made_), true});
    } else if (what == 2 && api_.contains(name)) {  // by force: the kubelet may still have it
      events_.push_back({name, api_[name].uid, false});
      api_.erase(name);
    } else if (what == 3 && api_.contains(name) && api_[name].acknowledged) {
      Finish(name);
    } else if (what < 6) {
      Learn();
    } else if (!acknowledgements_.empty()) {
      Acknowledge();
    }
  }
  void Settle() {
    while (!events_.empty()) Learn();
    while (!acknowledgements_.empty()) Acknowledge();
  }

  const PodNames& api() const { return api_; }
  // By uid, and as the kubelet lists them: without.
  const std::map<std::string, DevicePod>& kubelet() const { return kubelet_; }
  std::vector<DevicePod> Listed() const {
    std::vector<DevicePod> listed;
    for (const auto& [uid, pod] : kubelet_) {
      if (!pod.ids.empty()) listed.push_back(pod);
    }
    return listed;
  }

 private:
  struct Event {
    PodName name;
    std::string uid;
    bool added;
  };

  // All containers have ended: the kubelet frees the units, and says so.
  void Finish(const PodName& name) {
    const auto pod = kubelet_.find(api_[name].uid);
    if (pod == kubelet_.end()) return;
    used_.erase_if(pod->second.ids);
    pod->second.ids.clear();
    api_[name].alive = false;
  }
  void Learn() {
    if (events_.empty()) return;
    const Event event = events_.front();
    events_.pop_front();
    if (!event.added) {
      used_.erase_if(kubelet_[event.uid].ids);
      kubelet_.erase(event.uid);
      return;
    }
    DevicePod& pod = kubelet_[event.uid];
    pod = {event.name.first, event.name.second, {}};
    for (size_t more = Below(4); more > 0; --more) {
      const std::string id =
          Id(Below(2) == 0 ? "GPU-a" : "GPU-b", static_cast<uint32_t>(Below(kCount)));
      if (used_.ids.insert(id).second) pod.ids.insert(id);
    }
    acknowledgements_.push_back(event.uid);
  }
  void Acknowledge() {
    for (auto& [name, pod] : api_) {
      if (pod.uid == acknowledgements_.front()) pod.acknowledged = true;
    }
    acknowledgements_.pop_front();
  }

  struct Used {
    std::set<std::string> ids;
    void erase_if(const std::set<std::string>& freed) {
      for (const std::string& id : freed) ids.erase(id);
    }
  };

  std::mt19937_64 random_;
  int made_ = 0;
  PodNames api_;
  std::map<std::string, DevicePod> kubelet_;
  std::deque<Event> events_;
  std::deque<std::string> acknowledgements_;
  Used used_;
};

BytesByUuid BytesOfIds(const std::set<std::string>& ids) {
  BytesByUuid bytes;
  for (const std::string& id : ids) bytes[ParseId(id)->uuid] += kGiB;
  return bytes;
}

// At every moment: what a tenant should have are the units that the kubelet gave to its very pod.
// A tenant stays while kubelet and API server have its pod. In the end all is as it is.
TEST(HoldersModelTest, NoPodEverHasAnothersUnits) {
  size_t resolved = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Model model(seed);
    PodNames before;
    std::set<std::string> tenants;
    std::map<std::string, PodName> known;
    const auto look = [&](bool settled) {
      const auto step = [&] {
        for (size_t steps = settled ? 0 : model.Below(4); steps > 0; --steps) model.Step();
      };
      step();
      const std::map<std::string, DevicePod> kubelet = model.kubelet();
      const std::vector<DevicePod> listed = model.Listed();
      step();
      const PodNames after = model.api();
      const Holders holders = HoldersOf({.listed = listed,
                                         .before = &before,
                                         .after = &after,
                                         .units = &TwoGpus(),
                                         .tenants = tenants,
                                         .known = known});
      std::map<std::string, BytesByUuid> right;
      for (const auto& [uid, pod] : kubelet) {
        if (!pod.ids.empty()) right[TenantOf(uid)] = BytesOfIds(pod.ids);
      }
      for (const auto& [tenant, quota] : holders.desired.tenants) {
        ASSERT_TRUE(right.contains(tenant)) << seed;
        ASSERT_EQ(quota.limits, right[tenant]) << seed;
        ASSERT_EQ(quota.guarantees, right[tenant]) << seed;
        ++resolved;
      }
      for (const auto& [name, pod] : after) {
        const std::string tenant = TenantOf(pod.uid);
        if (!tenants.contains(tenant) || !right.contains(tenant) || !pod.alive) continue;
        ASSERT_TRUE(holders.desired.tenants.contains(tenant) ||
                    holders.desired.kept.contains(tenant))
            << seed;
      }
      // What the steps would come to.
      std::set<std::string> next;
      std::map<std::string, PodName> origins;
      for (const std::string& tenant : tenants) {
        if (holders.desired.kept.contains(tenant)) next.insert(tenant);
      }
      for (const auto& [tenant, quota] : holders.desired.tenants) next.insert(tenant);
      for (const std::string& tenant : next) {
        const Origin& origin = holders.desired.origins.at(tenant);
        origins[tenant] = {origin.name_space, origin.pod};
      }
      tenants = next;
      known = origins;
      before = after;
      if (!settled) return;
      for (const auto& [tenant, bytes] : right) {
        ASSERT_TRUE(tenants.contains(tenant)) << seed;
      }
    };
    for (int round = 0; round < 60 && !::testing::Test::HasFatalFailure(); ++round) {
      look(false);
      if (model.Below(20) == 0) known.clear();  // the plug-in is restarted
      if (model.Below(20) == 0) before.clear();
    }
    model.Settle();
    before = model.api();
    look(true);
    if (::testing::Test::HasFatalFailure()) return;
    std::set<std::string> live;
    for (const auto& [name, pod] : model.api()) live.insert(TenantOf(pod.uid));
    for (const std::string& tenant : tenants) EXPECT_TRUE(live.contains(tenant)) << "a leftover";
  }
  EXPECT_GT(resolved, 10'000u);
}

}  // namespace holders_test
}  // namespace gpumem::kubernetes
