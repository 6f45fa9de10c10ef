// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/objects.h"
#include "client/kubernetes/api/testing/damaged_text.h"
#include "common/bytes.h"

namespace gpumem::kubernetes {
namespace claims_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr char kDriver[] = "gpu.nvidia.com";

// As kubectl get resourceclaims -o json writes it, with what does not matter left out.
constexpr char kClaim[] = R"({
  "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
  "metadata": {"name": "infer-gpu-x7k2p", "namespace": "team-a",
               "uid": "0f0b2c8e-1111-4222-8333-944445555666"},
  "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
    "deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"memory": "10Gi"}}}}]}},
  "status": {
    "allocation": {"devices": {"results": [
      {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0",
       "shareID": "5b1f0c4d-9a8e-4f6a-8b4c-3d2e1f0a9b8c", "consumedCapacity": {"memory": "10Gi"}}]},
      "nodeSelector": {"nodeSelectorTerms": []}},
    "reservedFor": [{"resource": "pods", "name": "infer",
                     "uid": "099b88fb-2a99-45ad-af94-d91eb81a87e9"}]}})";

std::string List(absl::string_view items, absl::string_view kind = "ResourceClaimList",
                 absl::string_view version = "v1") {
  return absl::StrCat("{\"apiVersion\": \"resource.k8s.io/", version, "\", \"kind\": \"", kind,
                      "\", \"metadata\": {\"resourceVersion\": \"7\", \"continue\": \"abc\"}, "
                      "\"items\": [",
                      items, "]}");
}

struct ClaimList {
  std::vector<Claim> claims;
  std::string next;
};

absl::StatusOr<ClaimList> ParseClaims(absl::string_view text, absl::string_view driver) {
  auto part = ParseListPart(text, kClaimKind);
  if (!part.ok()) return part.status();
  ClaimList list{.next = part->next};
  for (const Json& item : Array(part->list, "items")) {
    if (auto claim = ReadClaim(item, driver)) list.claims.push_back(*std::move(claim));
  }
  return list;
}

absl::StatusOr<SliceList> ParseSlices(absl::string_view text, absl::string_view driver) {
  auto part = ParseListPart(text, kSliceKind);
  if (!part.ok()) return part.status();
  std::vector<Slice> slices;
  for (const Json& item : Array(part->list, "items")) {
    if (auto slice = ReadSlice(item, driver)) slices.push_back(*std::move(slice));
  }
  return MergeSlices(slices);
}

Claim OneClaim(const std::string& text) {
  const auto list = ParseClaims(List(text), kDriver);
  EXPECT_TRUE(list.ok()) << list.status();
  if (!list.ok() || list->claims.size() != 1) {
    ADD_FAILURE() << "no one claim in " << text;
    return Claim();
  }
  return list->claims[0];
}

std::string With(absl::string_view from, absl::string_view to) {
  return absl::StrReplaceAll(kClaim, {{from, to}});
}

TEST(ClaimsTest, ShareAndPodAreRead) {
  for (const char* version : {"v1", "v1beta2", "v1beta1"}) {
    const auto list = ParseClaims(List(kClaim, "ResourceClaimList", version), kDriver);
    ASSERT_TRUE(list.ok()) << list.status();
    EXPECT_EQ(list->next, "abc");
    ASSERT_THAT(list->claims, SizeIs(1));
    const Claim& claim = list->claims[0];
    EXPECT_EQ(claim.name_space, "team-a");
    EXPECT_EQ(claim.name, "infer-gpu-x7k2p");
    EXPECT_EQ(claim.uid, "0f0b2c8e-1111-4222-8333-944445555666");
    EXPECT_EQ(claim.problem, "");
    EXPECT_THAT(claim.shares, ElementsAre(Pair(Pair("node-1", "gpu-0"), 10 * kGiB)));
    EXPECT_THAT(claim.whole, IsEmpty());
    EXPECT_THAT(claim.requests, ElementsAre(Pair(Pair("node-1", "gpu-0"), ElementsAre("gpu"))));
    ASSERT_THAT(claim.consumers, SizeIs(1));
    EXPECT_EQ(claim.consumers[0].uid, "099b88fb-2a99-45ad-af94-d91eb81a87e9");
    EXPECT_EQ(claim.consumers[0].name, "infer");
  }
}

TEST(ClaimsTest, QualifiedNamesAreRead) {
  EXPECT_THAT(
      OneClaim(With("{\"memory\": \"10Gi\"}}]}", "{\"gpu.nvidia.com/memory\": \"1Gi\"}}]}")).shares,
      ElementsAre(Pair(Pair("node-1", "gpu-0"), kGiB)));
}

TEST(ClaimsTest, SharesOfOneDeviceAreSummed) {
  const Claim claim =
      OneClaim(With("\"results\": [",
                    R"("results": [{"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0",
                      "request": "more", "consumedCapacity": {"memory": "2Gi"}},
                     {"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-1",
                      "consumedCapacity": {"memory": "3Gi"}},)"));
  EXPECT_THAT(claim.shares, ElementsAre(Pair(Pair("node-1", "gpu-0"), 12 * kGiB),
                                        Pair(Pair("node-1", "gpu-1"), 3 * kGiB)));
  EXPECT_THAT(claim.requests,
              ElementsAre(Pair(Pair("node-1", "gpu-0"), ElementsAre("gpu", "more"))));
}

TEST(ClaimsTest, WholeDevicesAndAdministratorsHaveNoShare) {
  const std::string consumed = ", \"consumedCapacity\": {\"memory\": \"10Gi\"}";
  EXPECT_THAT(OneClaim(With(consumed, "")).problem, HasSubstr("no memory")) << "others share it";
  const Claim whole =
      OneClaim(absl::StrReplaceAll(kClaim, {{consumed, ""}, {"\"shareID\"", "\"_\""}}));
  EXPECT_THAT(whole.shares, IsEmpty());
  EXPECT_THAT(whole.whole, ElementsAre(Pair("node-1", "gpu-0")));
  const Claim admin = OneClaim(With(consumed, ", \"adminAccess\": true"));
  EXPECT_THAT(admin.shares, IsEmpty());
  EXPECT_THAT(admin.whole, IsEmpty());
}

TEST(ClaimsTest, OtherPoolsAreLeftOut) {
  const Json object = Json::parse(kClaim);
  EXPECT_TRUE(ReadClaim(object, kDriver, "node-1").has_value());
  EXPECT_FALSE(ReadClaim(object, kDriver, "node-2").has_value());
}

TEST(ClaimsTest, OthersAreLeftOut) {
  const auto list = ParseClaims(
      List(absl::StrCat(With("\"driver\": \"gpu.nvidia.com\"", "\"driver\": \"nic.example\""),
                        ", {\"metadata\": {\"name\": \"pending\"}, \"spec\": {}}, 7, null")),
      kDriver);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->claims, IsEmpty());
  const Claim claim = OneClaim(With(
      "\"reservedFor\": [",
      R"("reservedFor": [{"apiGroup": "example.com", "resource": "jobs", "name": "a", "uid": "b"},)"));
  EXPECT_THAT(claim.consumers, SizeIs(1));
}

TEST(ClaimsTest, ClaimsThatMakeNoSenseKeepTheirPods) {
  const std::string consumed = "{\"memory\": \"10Gi\"}}]}";
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {consumed, "{\"memory\": \"10Gib\"}}]}"},
           {consumed, "{\"memory\": -5}}]}"},
           {consumed, "{\"memory\": {}}}]}"},
           {consumed, "{\"cores\": \"5\"}}]}"},
           {consumed, "[]}]}"},
           {consumed, "{\"memory\": \"7Ei\"}}]}"},
           {"\"pool\": \"node-1\", ", ""},
           {"\"device\": \"gpu-0\"", "\"device\": 7"},
           {"\"device\": \"gpu-0\"", "\"device\": \"a\\u0007\""}}) {
    const Claim claim = OneClaim(With(from, to));
    EXPECT_NE(claim.problem, "") << to;
    EXPECT_THAT(claim.consumers, SizeIs(1)) << to;
  }
  EXPECT_NE(OneClaim(With("\"uid\": \"099b88fb", "\"uidd\": \"099b88fb")).problem, "");
}

TEST(ClaimsTest, OtherTextIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{}"),
        std::string("{\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": []}"),
        std::string(kClaim), List(kClaim).substr(0, 400), List("\xff"), List("{\"a\": 1e999}"),
        absl::StrReplaceAll(List(kClaim), {{"[", "{"}}),
        absl::StrReplaceAll(List(""), {{"[]", "{}"}}),
        absl::StrReplaceAll(List(""), {{"abc", "\\u0001"}})}) {
    const auto list = ParseClaims(text, kDriver);
    EXPECT_TRUE(absl::IsInvalidArgument(list.status())) << text << ": " << list.status();
  }
}

// Any user may make a claim with parameters of any depth for a driver.
TEST(ClaimsTest, DeepObjectsHideNoOthers) {
  for (const int depth : {70, 9000}) {
    const std::string deep = absl::StrCat(std::string(depth, '['), std::string(depth, ']'));
    const std::string other = absl::StrCat(R"({"metadata": {"name": "deep"}, "spec": )", deep, "}");
    const std::string own = absl::StrReplaceAll(
        kClaim, {{"\"metadata\": {", absl::StrCat("\"parameters\": ", deep, ", \"metadata\": {")}});
    const auto list = ParseClaims(List(absl::StrCat(other, ",", own, ",", deep)), kDriver);
    ASSERT_TRUE(list.ok()) << list.status();
    ASSERT_THAT(list->claims, SizeIs(1));
    EXPECT_EQ(list->claims[0].problem, "");
  }
}

TEST(ClaimsTest, SizeDepthAndCountsAreBounded) {
  const auto exhausted = [](const std::string& text) {
    return absl::IsResourceExhausted(ParseClaims(text, kDriver).status());
  };
  EXPECT_TRUE(exhausted(List(std::string(kMostText, ' '))));
  EXPECT_TRUE(exhausted(List(std::string(1000000, '['))));
  std::string many = "0";
  for (size_t i = 0; i < kMostItems; ++i) absl::StrAppend(&many, ",0");
  EXPECT_TRUE(exhausted(List(many)));

  std::string results, pods;
  for (size_t i = 0; i <= kMostResults; ++i) {
    absl::StrAppend(&results, R"({"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-)",
                    i, R"(", "consumedCapacity": {"memory": "1"}},)");
  }
  for (size_t i = 0; i <= kMostReserved; ++i) {
    absl::StrAppend(&pods, R"({"resource": "pods", "name": "a", "uid": "b)", i, R"("},)");
  }
  const Claim devices = OneClaim(With("\"results\": [", absl::StrCat("\"results\": [", results)));
  EXPECT_THAT(devices.problem, HasSubstr("too many devices"));
  EXPECT_LE(devices.shares.size(), kMostResults);
  const Claim reserved =
      OneClaim(With("\"reservedFor\": [", absl::StrCat("\"reservedFor\": [", pods)));
  EXPECT_THAT(reserved.problem, HasSubstr("too many pods"));
  EXPECT_LE(reserved.consumers.size(), kMostReserved);
}

// Whatever a peer changes in the text, it is read or refused.
TEST(ClaimsTest, DamagedTextDoesNoHarm) {
  std::mt19937_64 random(11);
  const std::string whole = List(kClaim);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = DamagedText(whole, &random);
    (void)ParseClaims(text, kDriver);
    (void)ParseSlices(text, kDriver);
  }
}

// As NVIDIA's driver publishes it, with what does not matter left out.
constexpr char kSlice[] = R"({
  "metadata": {"name": "node-1-gpu.nvidia.com-abcde"},
  "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1",
    "pool": {"name": "node-1", "generation": 2, "resourceSliceCount": 1},
    "devices": [
      {"name": "gpu-0", "allowMultipleAllocations": true,
       "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-aaaa"}},
       "capacity": {"memory": {"value": "81559Mi"}}},
      {"name": "gpu-1",
       "attributes": {"gpu.nvidia.com/uuid": {"string": "GPU-bbbb"}},
       "capacity": {"gpu.nvidia.com/memory": {"value": "80Gi"}}}]}})";

TEST(SlicesTest, DevicesAreRead) {
  const auto list = ParseSlices(List(kSlice, "ResourceSliceList"), kDriver);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->problems, IsEmpty());
  ASSERT_THAT(list->gpus, SizeIs(2));
  EXPECT_EQ(list->gpus.at({"node-1", "gpu-0"}).uuid, "GPU-aaaa");
  EXPECT_EQ(list->gpus.at({"node-1", "gpu-0"}).bytes, 81559 * kMiB);
  EXPECT_EQ(list->gpus.at({"node-1", "gpu-1"}).uuid, "GPU-bbbb");
  EXPECT_EQ(list->gpus.at({"node-1", "gpu-1"}).bytes, 80 * kGiB);
}

TEST(SlicesTest, DevicesOfV1beta1AreRead) {
  const std::string slice =
      R"({"spec": {"driver": "gpu.nvidia.com", "pool": {"name": "n", "generation": 1}, "devices": [
          {"name": "gpu-0", "basic": {"attributes": {"uuid": {"string": "GPU-aaaa"}},
                                      "capacity": {"memory": {"value": "1Gi"}}}}]}})";
  const auto list = ParseSlices(List(slice, "ResourceSliceList", "v1beta1"), kDriver);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->gpus.at({"n", "gpu-0"}).uuid, "GPU-aaaa");
  EXPECT_EQ(list->gpus.at({"n", "gpu-0"}).bytes, kGiB);
}

TEST(SlicesTest, OldGenerationsAndOtherDriversAreLeftOut) {
  const std::string old = absl::StrReplaceAll(
      kSlice,
      {{"\"generation\": 2", "\"generation\": 1"}, {"GPU-", "GPU-old-"}, {"gpu-1", "gpu-2"}});
  const std::string other =
      absl::StrReplaceAll(kSlice, {{"gpu.nvidia.com\", \"nodeName", "a\", \""}});
  const auto list =
      ParseSlices(List(absl::StrCat(kSlice, ",", old, ",", other), "ResourceSliceList"), kDriver);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->gpus, SizeIs(2));
  EXPECT_EQ(list->gpus.at({"node-1", "gpu-0"}).uuid, "GPU-aaaa");
}

TEST(SlicesTest, DevicesThatMakeNoSenseAreReported) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"GPU-aaaa", ""},
           {"GPU-aaaa", "GPU aaaa"},
           {"{\"string\": \"GPU-aaaa\"}", "\"GPU-aaaa\""},
           {"\"name\": \"gpu-0\"", "\"name\": 0"}}) {
    const auto list =
        ParseSlices(List(absl::StrReplaceAll(kSlice, {{from, to}}), "ResourceSliceList"), kDriver);
    ASSERT_TRUE(list.ok()) << list.status();
    EXPECT_THAT(list->gpus, SizeIs(1)) << to;
    EXPECT_THAT(list->problems, SizeIs(1)) << to;
  }
}

}  // namespace claims_test
}  // namespace gpumem::kubernetes
