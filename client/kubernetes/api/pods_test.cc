// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/pods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/kubernetes/api/claims.h"
#include "client/kubernetes/api/testing/damaged_text.h"

namespace gpumem::kubernetes {
namespace pods_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// As kubectl get pods -o json writes it, with what does not matter left out.
constexpr char kPod[] = R"({
  "metadata": {"name": "infer-5d4f8", "namespace": "team-a",
               "uid": "099b88fb-2a99-45ad-af94-d91eb81a87e9",
               "labels": {"app.kubernetes.io/name": "infer", "tier": "prod", "empty": ""}},
  "spec": {"nodeName": "node-1", "serviceAccountName": "runner",
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"},
                       {"name": "own", "resourceClaimTemplateName": "ten-gib"}]},
  "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
    "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "infer-5d4f8-own-x7k2p"},
                              {"name": "none"}],
    "extendedResourceClaimStatus": {"resourceClaimName": "infer-5d4f8-extended-resources-abc"}}})";

std::string List(absl::string_view items, absl::string_view next = "abc") {
  return absl::StrCat(
      R"({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7", "continue": ")",
      next, R"("}, "items": [)", items, "]}");
}
std::string With(absl::string_view from, absl::string_view to) {
  return absl::StrReplaceAll(kPod, {{from, to}});
}

TEST(PodsTest, FactsAreRead) {
  const auto list = ParsePods(List(kPod));
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->next, "abc");
  EXPECT_THAT(list->problems, IsEmpty());
  ASSERT_THAT(list->pods, SizeIs(1));
  const Pod& pod = list->pods[0];
  EXPECT_EQ(pod.uid, "099b88fb-2a99-45ad-af94-d91eb81a87e9");
  EXPECT_EQ(pod.name_space, "team-a");
  EXPECT_EQ(pod.name, "infer-5d4f8");
  EXPECT_EQ(pod.service_account, "runner");
  EXPECT_EQ(pod.phase, "Running");
  EXPECT_TRUE(pod.acknowledged);
  EXPECT_THAT(pod.labels, ElementsAre(Pair("app.kubernetes.io/name", "infer"), Pair("empty", ""),
                                      Pair("tier", "prod")));
  EXPECT_THAT(pod.claims,
              ElementsAre("infer-5d4f8-extended-resources-abc", "infer-5d4f8-own-x7k2p", "shared"));
}

TEST(PodsTest, APodWithoutOptionalFactsIsRead) {
  const auto list = ParsePods(List(
      R"({"metadata": {"name": "a", "namespace": "b",
          "uid": "099b88fb-2a99-45ad-af94-d91eb81a87e9", "labels": null}, "spec": {}})"));
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_THAT(list->pods, SizeIs(1));
  EXPECT_THAT(list->pods[0].labels, IsEmpty());
  EXPECT_EQ(list->pods[0].service_account, "");
  EXPECT_THAT(ParsePods(List(""))->pods, IsEmpty());
}

TEST(PodsTest, PodsThatMakeNoSenseDoNotHideOthers) {
  const std::string other = With("099b88fb", "199b88fb");
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"099b88fb", "099B88FB"},
           {"\"uid\": \"099b88fb-2a99-45ad-af94-d91eb81a87e9\"", "\"uid\": 7"},
           {"\"team-a\"", "\"../x\""},
           {"\"team-a\"", "\"Team\""},
           {"\"team-a\"", "\"\""},
           {"\"infer-5d4f8\"", "\"-infer\""},
           {"\"runner\"", "\"runner/x\""},
           {"\"tier\": \"prod\"", "\"tier\": 7"},
           {"\"tier\": \"prod\"", "\"tier\": \"-prod\""},
           {"\"tier\": \"prod\"", "\"tier\": \"pr od\""},
           {"\"tier\": \"prod\"", "\"a/b/c\": \"prod\""},
           {"\"tier\": \"prod\"", "\"/c\": \"prod\""},
           {"\"tier\": \"prod\"", "\"\": \"prod\""},
           {"\"prod\"", absl::StrCat("\"", std::string(64, 'a'), "\"")},
           {"\"shared\"", "\"sha red\""}}) {
    const auto list = ParsePods(List(absl::StrCat(With(from, to), ",", other, ",7,null,{}")));
    ASSERT_TRUE(list.ok()) << to << ": " << list.status();
    std::vector<std::string> described;
    for (const Pod& pod : list->pods) {
      if (pod.described) described.push_back(pod.uid);
    }
    EXPECT_THAT(described, ElementsAre(HasSubstr("199b88fb"))) << to;
    EXPECT_THAT(list->problems, SizeIs(4)) << to;
  }
}

// Users choose labels: a flood of them hides the facts of the pod that has them, and nothing else.
TEST(PodsTest, LabelsAndClaimsAreBounded) {
  std::string labels, claims;
  for (size_t i = 0; i <= kMostLabels; ++i) absl::StrAppend(&labels, "\"l", i, "\": \"\",");
  for (size_t i = 0; i <= kMostClaimsOfPod; ++i) {
    absl::StrAppend(&claims, "{\"resourceClaimName\": \"c", i, "\"},");
  }
  for (const std::string& text :
       {With("\"labels\": {", absl::StrCat("\"labels\": {", labels)),
        With("\"resourceClaims\": [", absl::StrCat("\"resourceClaims\": [", claims))}) {
    const auto list = ParsePods(List(absl::StrCat(text, ",", With("099b88fb", "199b88fb"))));
    ASSERT_TRUE(list.ok()) << list.status();
    ASSERT_THAT(list->pods, SizeIs(2));
    EXPECT_FALSE(list->pods[0].described);
    EXPECT_THAT(list->pods[0].labels, IsEmpty());
    EXPECT_THAT(list->pods[0].claims, IsEmpty());
    EXPECT_EQ(list->pods[0].name, "infer-5d4f8");
    EXPECT_TRUE(list->pods[1].described);
    ASSERT_THAT(list->problems, SizeIs(1));
    EXPECT_THAT(list->problems[0], HasSubstr("too many"));
  }
}

TEST(PodsTest, OtherTextIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{}"),
        std::string(R"({"apiVersion": "v2", "kind": "PodList", "items": []})"),
        std::string(R"({"apiVersion": "v1", "kind": "Pod", "items": []})"), std::string(kPod),
        List(kPod).substr(0, 400), List("\xff"), absl::StrReplaceAll(List(""), {{"[]", "{}"}}),
        List("", "\\u0001"), List(absl::StrCat(kPod, ",", kPod))}) {
    const auto list = ParsePods(text);
    EXPECT_TRUE(absl::IsInvalidArgument(list.status())) << text << ": " << list.status();
  }
}

TEST(PodsTest, SizeDepthAndCountsAreBounded) {
  const auto exhausted = [](const std::string& text) {
    return absl::IsResourceExhausted(ParsePods(text).status());
  };
  EXPECT_TRUE(exhausted(List(std::string(kMostText, ' '))));
  const std::string deep = absl::StrCat(std::string(70, '['), std::string(70, ']'));
  EXPECT_FALSE(exhausted(List(deep)));
  EXPECT_THAT(ParsePods(List(absl::StrCat(deep, ",", kPod)))->pods, SizeIs(1));
  EXPECT_TRUE(exhausted(List(std::string(100'000, '['))));
  std::string many = "0";
  for (size_t i = 1; i < kMostPods; ++i) absl::StrAppend(&many, ",0");
  EXPECT_FALSE(exhausted(List(many)));
  EXPECT_TRUE(exhausted(List(absl::StrCat(many, ",0"))));
}

// Whatever a peer changes in the text, it is refused, or the pods in it make sense.
TEST(PodsTest, DamagedTextDoesNoHarm) {
  std::mt19937_64 random(17);
  const std::string whole = List(kPod);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = DamagedText(whole, &random);
    const auto list = ParsePods(text);
    if (!list.ok()) continue;
    for (const Pod& pod : list->pods) EXPECT_EQ(ProblemOf(pod), "");
  }
}

}  // namespace pods_test
}  // namespace gpumem::kubernetes
