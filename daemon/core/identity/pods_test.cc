// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/identity/pods.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace pods_test {

using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string UidOf(int number) {
  return absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", number);
}

PodFacts PodOf(int number) {
  return {.uid = UidOf(number),
          .name_space = "team",
          .name = absl::StrCat("pod-", number),
          .service_account = "default",
          .labels = {{"app", "infer"}},
          .claims = {"claim"}};
}

TEST(PodBookTest, AListIsReplacedAsAWhole) {
  PodBook book;
  EXPECT_EQ(book.known()->Find(UidOf(1)), nullptr);
  ASSERT_TRUE(book.Set("a", "1", {PodOf(2), PodOf(1)}).ok());
  const auto before = book.known();
  EXPECT_EQ(*before->Find(UidOf(1)), PodOf(1));
  ASSERT_TRUE(book.Set("a", "2", {PodOf(3)}).ok());
  EXPECT_EQ(book.known()->Find(UidOf(1)), nullptr);
  EXPECT_NE(book.known()->Find(UidOf(3)), nullptr);
  EXPECT_EQ(*before->Find(UidOf(1)), PodOf(1)) << "as of before";
  ASSERT_TRUE(book.Set("a", "2", {PodOf(3)}).ok()) << "once more";
  ASSERT_THAT(book.lists(), SizeIs(1));
  EXPECT_EQ(book.lists()[0].revision, "2");
  ASSERT_TRUE(book.Set("a", "3", {}).ok());
  EXPECT_THAT(book.lists(), IsEmpty());
  EXPECT_EQ(book.known()->Find(UidOf(3)), nullptr);
}

TEST(PodBookTest, TheListThatWasSetLastCounts) {
  PodBook book;
  PodFacts other = PodOf(1);
  other.labels["app"] = "train";
  ASSERT_TRUE(book.Set("a", "1", {PodOf(1), PodOf(2)}).ok());
  ASSERT_TRUE(book.Set("b", "1", {other}).ok());
  EXPECT_EQ(*book.known()->Find(UidOf(1)), other);
  EXPECT_NE(book.known()->Find(UidOf(2)), nullptr);
  ASSERT_TRUE(book.Set("a", "1", {PodOf(1), PodOf(2)}).ok());
  EXPECT_EQ(*book.known()->Find(UidOf(1)), PodOf(1));
  ASSERT_TRUE(book.Set("a", "2", {}).ok());
  EXPECT_EQ(*book.known()->Find(UidOf(1)), other);
}

TEST(PodBookTest, WhatMakesNoSenseIsRefusedAsAWhole) {
  PodBook book;
  ASSERT_TRUE(book.Set("a", "1", {PodOf(1)}).ok());
  const auto refused = [&](const auto& change) {
    PodFacts pod = PodOf(2);
    change(pod);
    const absl::Status status = book.Set("a", "2", {PodOf(3), pod});
    EXPECT_EQ(book.lists()[0].revision, "1");
    EXPECT_EQ(book.known()->Find(UidOf(3)), nullptr);
    return absl::IsInvalidArgument(status);
  };
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.uid = "pod"; }));
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.uid = UidOf(3); })) << "twice";
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.name_space = ""; }));
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.name_space = "a.b"; }));
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.name = "a/b"; }));
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.service_account = "A"; }));
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.labels["a b"] = ""; }));
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.labels["a"] = "b\n"; }));
  EXPECT_TRUE(refused([](PodFacts& pod) { pod.claims.insert(""); }));
  for (const std::string& tag : {std::string(), std::string("a\n"), std::string(33, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(book.Set(tag, "1", {})));
    EXPECT_TRUE(absl::IsInvalidArgument(book.Set("a", tag, {})));
  }
  PodFacts bare = PodOf(4);
  bare.service_account = "";
  bare.uid = std::string(32, '0');
  bare.labels = {{"a", ""}};
  EXPECT_TRUE(book.Set("a", "2", {bare}).ok());
}

TEST(PodBookTest, CountsAndBytesAreBounded) {
  // A pod has 7 texts of 64 bytes, and 65 bytes in them.
  PodBook book({.owners = 2, .pods = 3, .list_bytes = 1560, .pod_bytes = 600});
  const auto exhausted = [&](const std::string& owner, std::vector<PodFacts> pods) {
    const absl::Status status = book.Set(owner, "1", std::move(pods));
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    return !status.ok();
  };
  EXPECT_FALSE(exhausted("a", {PodOf(1), PodOf(2), PodOf(3)}));
  EXPECT_TRUE(exhausted("a", {PodOf(1), PodOf(2), PodOf(3), PodOf(4)}));
  PodFacts large = PodOf(1);
  large.labels["b"] = "c";
  large.claims.clear();
  EXPECT_FALSE(exhausted("a", {large}));
  large.labels["d"] = "e";
  EXPECT_TRUE(exhausted("a", {large}));
  PodFacts wide = PodOf(1);
  wide.labels["app"] = std::string(60, 'a');
  EXPECT_FALSE(exhausted("a", {wide, PodOf(2)}));
  EXPECT_TRUE(exhausted("a", {wide, PodOf(2), PodOf(3)}));
  EXPECT_FALSE(exhausted("b", {PodOf(1)}));
  EXPECT_TRUE(exhausted("c", {PodOf(1)}));
  EXPECT_FALSE(exhausted("c", {}));
  EXPECT_FALSE(exhausted("b", {}));
  EXPECT_FALSE(exhausted("c", {PodOf(1)}));
}

// Compares with the last list of each owner.
TEST(PodBookTest, RandomLists) {
  std::mt19937_64 random(5);
  PodBook book;
  std::vector<std::pair<std::string, std::vector<PodFacts>>> model;
  for (int step = 0; step < 3000; ++step) {
    const std::string owner(1, static_cast<char>('a' + random() % 3));
    std::vector<PodFacts> pods;
    for (int number = 0; number < 5; ++number) {
      if (random() % 2 == 0) continue;
      pods.push_back(PodOf(number));
      pods.back().labels["app"] = absl::StrCat(random() % 3);
    }
    const bool twice = !pods.empty() && random() % 8 == 0;
    if (twice) pods.push_back(pods.front());
    ASSERT_EQ(book.Set(owner, absl::StrCat(step), pods).ok(), !twice);
    if (!twice) {
      model.erase(std::remove_if(model.begin(), model.end(),
                                 [&](const auto& list) { return list.first == owner; }),
                  model.end());
      if (!pods.empty()) model.emplace_back(owner, pods);
    }
    for (int number = 0; number < 5; ++number) {
      const PodFacts* wanted = nullptr;
      for (const auto& [name, list] : model) {
        for (const PodFacts& pod : list) wanted = pod.uid == UidOf(number) ? &pod : wanted;
      }
      const auto found = book.known()->Find(UidOf(number));
      ASSERT_EQ(found == nullptr, wanted == nullptr);
      if (wanted != nullptr) {
        ASSERT_EQ(*found, *wanted);
      }
    }
    ASSERT_THAT(book.lists(), SizeIs(model.size()));
  }
}

TEST(PodFactsTest, Values) {
  PodFacts pod = PodOf(1);
  pod.claims.insert("other");
  pod.labels["empty"] = "";
  using Values = std::vector<std::string>;
  EXPECT_EQ(ValuesOf(pod, PodFact::kNamespace, ""), Values{"team"});
  EXPECT_EQ(ValuesOf(pod, PodFact::kName, ""), Values{"pod-1"});
  EXPECT_EQ(ValuesOf(pod, PodFact::kServiceAccount, ""), Values{"default"});
  EXPECT_EQ(ValuesOf(pod, PodFact::kClaim, ""), (Values{"claim", "other"}));
  EXPECT_EQ(ValuesOf(pod, PodFact::kLabel, "app"), Values{"infer"});
  EXPECT_EQ(ValuesOf(pod, PodFact::kLabel, "empty"), Values{""});
  EXPECT_EQ(ValuesOf(pod, PodFact::kLabel, "none"), Values{});
  pod.service_account = "";
  EXPECT_EQ(ValuesOf(pod, PodFact::kServiceAccount, ""), Values{});
}

}  // namespace pods_test
}  // namespace gpumemd
