// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/kubernetes/api/objects.h"
#include "client/kubernetes/dra/prepare.h"

namespace gpumem::kubernetes {
namespace slices_test {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr char kUuidA[] = "GPU-5A1e2d3c-0000-4000-8000-00000000000a";
constexpr char kNameA[] = "gpu-5a1e2d3c-0000-4000-8000-00000000000a";
constexpr uint64_t kMib = 1 << 20;

using Devices = google::protobuf::RepeatedPtrField<v1::Device>;

Devices With(const std::string& uuid, uint64_t bytes,
             const std::string& product = "NVIDIA H100 80GB HBM3") {
  Devices devices;
  v1::Device* const device = devices.Add();
  device->set_device_uuid(uuid);
  device->set_name(product);
  device->set_capacity_bytes(bytes);
  device->add_kinds(v1::KIND_VMM);
  return devices;
}

NodeSlice SliceOf(const Devices& devices) {
  const auto named = DevicesOf(devices);
  EXPECT_TRUE(named.ok()) << named.status();
  return {.node = "node-1", .devices = named.value_or(NodeDevices())};
}

// Returns a body as the API server returns it: with more metadata, and quantities in its form.
std::string Published(const std::string& body, const std::string& version = "7") {
  json object = json::parse(body);
  object["metadata"]["resourceVersion"] = version;
  object["metadata"]["uid"] = "u";
  return object.dump();
}

TEST(SlicesTest, AGpuIsADeviceWithConsumableMemory) {
  const NodeSlice slice = SliceOf(With(kUuidA, 80 * 1024 * kMib + 5));
  const auto step = PublishStep(slice, "");
  ASSERT_TRUE(step.ok()) << step.status();
  ASSERT_TRUE(step->has_value());
  EXPECT_TRUE((*step)->create);
  EXPECT_EQ((*step)->name, "node-1-gpumem.dev");
  EXPECT_EQ(json::parse((*step)->body), json::parse(absl::StrCat(R"({
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "node-1-gpumem.dev"},
    "spec": {
      "driver": "gpumem.dev",
      "nodeName": "node-1",
      "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
      "devices": [{
        "name": ")",
                                                                 kNameA, R"(",
        "allowMultipleAllocations": true,
        "attributes": {"uuid": {"string": ")",
                                                                 kUuidA, R"("},
                       "free": {"int": 85899345920},
                       "productName": {"string": "NVIDIA H100 80GB HBM3"}},
        "capacity": {"memory": {
          "value": "85899345920",
          "requestPolicy": {"default": "85899345920",
                            "validRange": {"min": "2Mi", "step": "2Mi"}}}}
      }]}})")));
}

TEST(SlicesTest, WhatIsPublishedIsReadAsOurDevices) {
  const NodeSlice slice = SliceOf(With(kUuidA, 1024 * kMib));
  const auto step = PublishStep(slice, "");
  ASSERT_TRUE(step.ok() && step->has_value());
  const auto read = ReadSlice(json::parse((*step)->body), kDriverName);
  ASSERT_TRUE(read.has_value());
  const SliceList list = MergeSlices({*read});
  EXPECT_THAT(list.problems, IsEmpty());
  EXPECT_THAT(list.gpus, ElementsAre(Pair(DeviceName("node-1", kNameA), ::testing::_)));
  EXPECT_EQ(list.gpus, GpusOf("node-1", slice.devices));
}

TEST(SlicesTest, TheSameIsNotPublishedAgain) {
  const NodeSlice slice = SliceOf(With(kUuidA, 80 * 1024 * kMib));
  const auto first = PublishStep(slice, "");
  ASSERT_TRUE(first.ok() && first->has_value());
  json published = json::parse(Published((*first)->body));
  json& device = published["spec"]["devices"][0];
  device["capacity"]["memory"]["value"] = "80Gi";
  device["capacity"]["memory"]["requestPolicy"]["default"] = "80Gi";
  device["added"] = "by a later Kubernetes";
  const auto again = PublishStep(slice, published.dump());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->has_value());
}

TEST(SlicesTest, AChangeIsANewGeneration) {
  const NodeSlice slice = SliceOf(With(kUuidA, 80 * 1024 * kMib));
  const auto first = PublishStep(slice, "");
  ASSERT_TRUE(first.ok() && first->has_value());
  const std::string published = Published((*first)->body, "4711");

  Devices more = With(kUuidA, 80 * 1024 * kMib);
  more.MergeFrom(With("GPU-b", 1024 * kMib));
  for (const auto& devices : {With(kUuidA, 79 * 1024 * kMib), With("GPU-b", 80 * 1024 * kMib),
                              With(kUuidA, 80 * 1024 * kMib, "other"), more, Devices()}) {
    const auto step = PublishStep(SliceOf(devices), published);
    ASSERT_TRUE(step.ok()) << step.status();
    ASSERT_TRUE(step->has_value());
    EXPECT_FALSE((*step)->create);
    const json body = json::parse((*step)->body);
    EXPECT_EQ(body["metadata"]["resourceVersion"], "4711");
    EXPECT_EQ(body["spec"]["pool"]["generation"], 2);
    EXPECT_EQ(body["spec"]["devices"].size(), static_cast<size_t>(devices.size()));
  }

  // A cluster that has dropped what it did not know yet, before an upgrade.
  json dropped = json::parse(published);
  dropped["spec"]["devices"][0].erase("allowMultipleAllocations");
  const auto step = PublishStep(slice, dropped.dump());
  ASSERT_TRUE(step.ok());
  EXPECT_TRUE(step->has_value());
}

TEST(SlicesTest, TheSliceGoesWithItsNode) {
  NodeSlice slice = SliceOf(With(kUuidA, 80 * 1024 * kMib));
  slice.node_uid = "u-1";
  const auto step = PublishStep(slice, "");
  ASSERT_TRUE(step.ok() && step->has_value());
  const json owners = json::parse((*step)->body)["metadata"]["ownerReferences"];
  ASSERT_EQ(owners.size(), 1u);
  EXPECT_EQ(owners[0]["kind"], "Node");
  EXPECT_EQ(owners[0]["name"], "node-1");
  EXPECT_EQ(owners[0]["uid"], "u-1");
}

TEST(SlicesTest, OthersSlicesAreNotReplaced) {
  const NodeSlice slice = SliceOf(With(kUuidA, 80 * 1024 * kMib));
  const auto first = PublishStep(slice, "");
  ASSERT_TRUE(first.ok() && first->has_value());
  for (const char* field : {"driver", "nodeName"}) {
    json published = json::parse((*first)->body);
    published["spec"][field] = "other";
    EXPECT_TRUE(absl::IsInvalidArgument(PublishStep(slice, published.dump()).status())) << field;
  }
  for (const char* text : {"[]", "{", "{\"kind\": \"Pod\"}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(PublishStep(slice, text).status())) << text;
  }
}

TEST(SlicesTest, DevicesHaveNamesOfKubernetes) {
  for (const std::string wrong :
       {"", "GPU_a", "-GPU", "GPU-", "GPU/../a", "GPU a", "GPU-\xc3\xa9"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(DevicesOf(With(wrong, 1024 * kMib)).status())) << wrong;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(DevicesOf(With(std::string(64, 'a'), 1024 * kMib)).status()));
  Devices twice = With("GPU-a", 1024 * kMib);
  twice.MergeFrom(With("gpu-A", 1024 * kMib));
  EXPECT_TRUE(absl::IsInvalidArgument(DevicesOf(twice).status()));
}

TEST(SlicesTest, MemoryOfTheHostIsNoGpu) {
  for (const v1::Kind kind : {v1::KIND_PINNED, v1::KIND_HOST, v1::KIND_TIER}) {
    Devices devices = With(kUuidA, 1024 * kMib);
    devices.Mutable(0)->set_kinds(0, kind);
    const auto named = DevicesOf(devices);
    ASSERT_TRUE(named.ok()) << named.status();
    EXPECT_THAT(*named, IsEmpty());
  }
}

TEST(SlicesTest, DevicesAreBounded) {
  Devices devices;
  for (int i = 0; i < kMostDevices; ++i) {
    devices.MergeFrom(With(absl::StrCat("GPU-", i), 1024 * kMib));
  }
  EXPECT_TRUE(DevicesOf(devices).ok());
  devices.MergeFrom(With("GPU-more", 1024 * kMib));
  EXPECT_TRUE(absl::IsResourceExhausted(DevicesOf(devices).status()));
}

TEST(SlicesTest, CapacitiesAreStepsThatKubernetesTakes) {
  const auto bytes = [](uint64_t capacity) {
    const auto devices = DevicesOf(With("GPU-a", capacity));
    return devices.ok() && !devices->empty() ? devices->begin()->second.bytes : 0;
  };
  EXPECT_EQ(bytes(0), 0u);
  EXPECT_EQ(bytes(4 * kMib - 1), 0u);
  EXPECT_EQ(bytes(4 * kMib), 4 * kMib);
  EXPECT_EQ(bytes(7 * kMib + 3), 6 * kMib);
  EXPECT_LE(bytes(~uint64_t{0}), uint64_t{1} << 63);
}

TEST(SlicesTest, ProductNamesAreAttributes) {
  const auto product = [](const std::string& text) {
    const auto devices = DevicesOf(With("GPU-a", 1024 * kMib, text));
    return devices.ok() && !devices->empty() ? devices->begin()->second.product : "none";
  };
  EXPECT_EQ(product("A\nB\xff"), "A?B?");
  EXPECT_EQ(product(std::string(100, 'a')), std::string(64, 'a'));
  const auto step = PublishStep(SliceOf(With("GPU-a", 1024 * kMib, "")), "");
  ASSERT_TRUE(step.ok() && step->has_value());
  EXPECT_FALSE(absl::StrContains((*step)->body, "productName"));
}

TEST(SlicesTest, NamesOfNodesAreChecked) {
  EXPECT_EQ(NameOfSlice("a.b-c.internal").value_or(""), "a.b-c.internal-gpumem.dev");
  for (const std::string wrong :
       {"", "A", "a/b", "../a", "a..b", "-a", "a-", "a.-b", "a-.b", "a."}) {
    EXPECT_TRUE(absl::IsInvalidArgument(NameOfSlice(wrong).status())) << wrong;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(NameOfSlice(std::string(250, 'a')).status()));
}

}  // namespace slices_test
}  // namespace gpumem::kubernetes
