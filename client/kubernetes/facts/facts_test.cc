// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/facts/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gpumem::kubernetes {
namespace facts_test {

using ::testing::IsEmpty;
using ::testing::SizeIs;

Pod PodOf(int number) {
  return {.uid = absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", number),
          .name_space = "team",
          .name = absl::StrCat("pod-", number),
          .service_account = "default",
          .phase = "Running",
          .labels = {{"app", "infer"}},
          .claims = {"claim"}};
}

TEST(FactsTest, PodsAreToldByUid) {
  const Facts facts = FactsOf({PodOf(2), PodOf(1)}, "owner");
  EXPECT_THAT(facts.problems, IsEmpty());
  EXPECT_EQ(facts.request.owner(), "owner");
  ASSERT_EQ(facts.request.pods_size(), 2);
  const v1::PodFacts& pod = facts.request.pods(0);
  EXPECT_EQ(pod.uid(), PodOf(1).uid);
  EXPECT_EQ(pod.namespace_(), "team");
  EXPECT_EQ(pod.name(), "pod-1");
  EXPECT_EQ(pod.service_account(), "default");
  ASSERT_EQ(pod.labels_size(), 1);
  EXPECT_EQ(pod.labels(0).key(), "app");
  EXPECT_EQ(pod.labels(0).value(), "infer");
  EXPECT_THAT(pod.claims(), ::testing::ElementsAre("claim"));
}

TEST(FactsTest, PodsThatHaveEndedAreLeftOut) {
  std::vector<Pod> pods = {PodOf(1), PodOf(2), PodOf(3), PodOf(4)};
  pods[0].phase = "Succeeded";
  pods[1].phase = "Failed";
  pods[2].phase = "Pending";
  const Facts facts = FactsOf(pods, "owner");
  EXPECT_EQ(facts.request.pods_size(), 2);
  EXPECT_THAT(facts.problems, IsEmpty());
}

// Rules then decide nothing for it: without its labels it might be taken for another sort of pod.
TEST(FactsTest, PodsWithFactsThatMakeNoSenseAreLeftOut) {
  std::vector<Pod> pods = {PodOf(1), PodOf(2)};
  pods[0].described = false;
  const Facts facts = FactsOf(pods, "owner");
  ASSERT_EQ(facts.request.pods_size(), 1);
  EXPECT_EQ(facts.request.pods(0).uid(), PodOf(2).uid);
}

TEST(FactsTest, TheRevisionTellsListsApart) {
  std::set<std::string> revisions;
  const auto add = [&](const std::vector<Pod>& pods) {
    const std::string revision = FactsOf(pods, "owner").request.revision();
    EXPECT_THAT(revision, SizeIs(16));
    return revisions.insert(revision).second;
  };
  EXPECT_TRUE(add({}));
  EXPECT_TRUE(add({PodOf(1), PodOf(2)}));
  EXPECT_FALSE(add({PodOf(2), PodOf(1)})) << "another order";
  Pod pending = PodOf(1);
  pending.phase = "Pending";
  EXPECT_FALSE(add({pending, PodOf(2)})) << "it is not told";
  EXPECT_TRUE(add({PodOf(1)}));
  const auto change = [&](const auto& apply) {
    Pod changed = PodOf(1);
    apply(changed);
    return add({changed});
  };
  EXPECT_TRUE(change([](Pod& pod) { pod.name = "x"; }));
  EXPECT_TRUE(change([](Pod& pod) { pod.name_space = "x"; }));
  EXPECT_TRUE(change([](Pod& pod) { pod.service_account = ""; }));
  EXPECT_TRUE(change([](Pod& pod) { pod.labels["app"] = "x"; }));
  EXPECT_TRUE(change([](Pod& pod) { pod.labels = {{"ap", "pinfer"}}; }));
  EXPECT_TRUE(change([](Pod& pod) { pod.labels.clear(); }));
  EXPECT_TRUE(change([](Pod& pod) { pod.claims = {"app", "infer"}; }));
  EXPECT_TRUE(change([](Pod& pod) { pod.claims.clear(); }));
}

// A flood of labels hides the pods that have them.
TEST(FactsTest, TheLargestPodsAreLeftOut) {
  std::vector<Pod> pods;
  for (int number = 0; number < 8; ++number) pods.push_back(PodOf(number));
  for (int i = 0; i < 20; ++i) {
    pods[2].labels[absl::StrCat("l", i)] = "";
    pods[5].labels[absl::StrCat("l", i)] = "";
  }
  const auto told = [&](const PodBounds& bounds) {
    const Facts facts = FactsOf(pods, "owner", bounds);
    EXPECT_THAT(facts.problems,
                SizeIs(pods.size() - static_cast<size_t>(facts.request.pods_size())));
    std::set<std::string> names;
    for (const v1::PodFacts& pod : facts.request.pods()) names.insert(pod.name());
    return names;
  };
  EXPECT_THAT(told({}), SizeIs(8));
  const std::set<std::string> small = told({.pod_bytes = 1000});
  EXPECT_THAT(small, SizeIs(6));
  EXPECT_FALSE(small.contains("pod-2"));
  EXPECT_FALSE(small.contains("pod-5"));
  EXPECT_EQ(told({.list_bytes = 4000}), small);
  EXPECT_EQ(told({.pods = 6}), small);
}

// However pods flood, the request is within the bounds of gpumemd.
TEST(FactsTest, RandomFloods) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const PodBounds bounds = {
        .pods = random() % 20, .list_bytes = random() % 20000, .pod_bytes = random() % 3000};
    std::vector<Pod> pods;
    for (int number = 0; number < static_cast<int>(random() % 30); ++number) {
      pods.push_back(PodOf(number));
      for (size_t i = random() % 20; i > 0; --i) {
        pods.back().labels[absl::StrCat("l", i)] = std::string(random() % 60, 'a');
      }
    }
    const Facts facts = FactsOf(pods, "owner", bounds);
    EXPECT_LE(static_cast<size_t>(facts.request.pods_size()), bounds.pods);
    size_t whole = 0;
    for (const v1::PodFacts& pod : facts.request.pods()) {
      size_t bytes = 4 * kBytesOfText + pod.uid().size() + pod.namespace_().size() +
                     pod.name().size() + pod.service_account().size();
      for (const v1::PodLabel& label : pod.labels()) {
        bytes += 2 * kBytesOfText + label.key().size() + label.value().size();
      }
      for (const std::string& claim : pod.claims()) bytes += kBytesOfText + claim.size();
      EXPECT_LE(bytes, bounds.pod_bytes);
      whole += bytes;
    }
    EXPECT_LE(whole, bounds.list_bytes);
  }
}

}  // namespace facts_test
}  // namespace gpumem::kubernetes
