// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/device_plugin/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/kubernetes/device_plugin/deviceplugin.pb.h"
#include "client/kubernetes/podresources.pb.h"
#include "common/bytes.h"

namespace gpumem::kubernetes {
namespace units_test {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Devices = google::protobuf::RepeatedPtrField<v1::Device>;

constexpr char kUuid[] = "GPU-fef8089b-4820-abfc-e83e-94318197576e";
constexpr uint64_t kH200 = 143'771 * kMiB;  // as nvidia-smi shows it

void Add(const std::string& uuid, uint64_t bytes, Devices* devices, v1::Kind kind = v1::KIND_VMM) {
  v1::Device* const device = devices->Add();
  device->set_device_uuid(uuid);
  device->set_capacity_bytes(bytes);
  device->add_kinds(kind);
}

Devices EightGpus() {
  Devices devices;
  for (int gpu = 0; gpu < 8; ++gpu) {
    Add(absl::StrFormat("GPU-fef8089b-4820-abfc-e83e-%012d", gpu), kH200, &devices);
  }
  return devices;
}

v1beta1::ListAndWatchResponse MessageOf(const UnitList& list) {
  v1beta1::ListAndWatchResponse message;
  for (const auto& [uuid, units] : list.gpus) {
    for (uint32_t number = 0; number < units.count; ++number) {
      v1beta1::Device* const device = message.add_devices();
      device->set_id(IdOf({uuid, list.step, number}));
      device->set_health("Unhealthy");
    }
  }
  return message;
}

TEST(UnitsTest, StepsAreWholeMib) {
  EXPECT_EQ(*ParseStep("1MiB"), kMiB);
  EXPECT_EQ(*ParseStep("256 MiB"), 256 * kMiB);
  EXPECT_EQ(*ParseStep("1.5GiB"), 1536 * kMiB);
  EXPECT_EQ(*ParseStep("1TiB"), 1024 * kGiB);
  for (const char* text : {"", "0", "-1GiB", "1GB", "1048575", "1025GiB", "big", "1MiB/"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseStep(text).status())) << text;
  }
  EXPECT_EQ(NameOfStep(kGiB), "1GiB");
  EXPECT_EQ(NameOfStep(1024 * kGiB), "1024GiB");
  EXPECT_EQ(NameOfStep(1536 * kMiB), "1536MiB");
}

TEST(UnitsTest, ResourcesAreNamedByTheirStep) {
  EXPECT_EQ(ResourceOf(kDefaultStep), "gpumem.dev/memory-1GiB");
  EXPECT_EQ(ResourceOf(256 * kMiB), "gpumem.dev/memory-256MiB");
  for (const char* name : {"gpumem.dev/memory-1GiB", "example.com/gpu_mem.1", "a/b"}) {
    EXPECT_TRUE(IsResourceName(name)) << name;
  }
  for (const char* name :
       {"", "memory", "/memory", "a.b/", "a.b/c/d", "A.b/c", "a..b/c", "-a/c", "a.b/-c", "a.b/c d",
        "kubernetes.io/c", "x.kubernetes.io/c", "requests.a/c"}) {
    EXPECT_FALSE(IsResourceName(name)) << name;
  }
  EXPECT_FALSE(IsResourceName(absl::StrCat("a.b/", std::string(64, 'c'))));
}

// Running pods have units of the step and the name that were chosen before.
TEST(UnitsTest, ResourcesOfOtherStepsHaveUnitsToo) {
  EXPECT_TRUE(HasUnits("a.b/c", "a.b/c"));
  EXPECT_TRUE(HasUnits("gpumem.dev/memory-512MiB", "a.b/c"));
  for (const char* name : {"gpumem.dev/memory-", "gpumem.dev/memory-1024MiB", "gpumem.dev/other",
                           "nvidia.com/gpu", "a.b/d", ""}) {
    EXPECT_FALSE(HasUnits(name, "a.b/c")) << name;
  }
}

TEST(UnitsTest, IdsSayAllOfAUnit) {
  EXPECT_EQ(IdOf({kUuid, kGiB, 7}), absl::StrCat(kUuid, "/1GiB/0007"));
  for (const Unit& unit : {Unit{kUuid, kMiB, 0}, Unit{kUuid, 256 * kMiB, 9999},
                           Unit{"MIG-fef8089b-4820-abfc-e83e-94318197576e", kGiB, 12345}}) {
    const auto read = ParseId(IdOf(unit));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, unit);
  }
  for (const std::string& id :
       {std::string(), std::string("GPU-a"), absl::StrCat(kUuid, "/1GiB/7"),
        absl::StrCat(kUuid, "/1GiB/00007"), absl::StrCat(kUuid, "/1GiB/-007"),
        absl::StrCat(kUuid, "/1024MiB/0007"), absl::StrCat(kUuid, "/1GiB/0007/"),
        absl::StrCat(kUuid, "/1GiB/4294967296"), absl::StrCat(kUuid, "/GiB/0007"),
        std::string("/1GiB/0007"), std::string("G PU/1GiB/0007"),
        std::string("GPU-a/1GiB/0007\x01"),
        absl::StrCat("GPU-", std::string(60, 'a'), "/1GiB/0007"), std::string(1 << 20, '/')}) {
    const auto read = ParseId(id);
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << id;
    EXPECT_LT(read.status().message().size(), 300u);
  }
}

TEST(UnitsTest, GpusHaveAUnitForEachWholeStep) {
  Devices devices;
  Add(kUuid, kH200, &devices);
  Add("GPU-small", kGiB - 1, &devices);
  Add("PINNED", 64 * kGiB, &devices, v1::KIND_PINNED);
  const auto list = UnitsOf(devices, kGiB);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->gpus, UnorderedElementsAre(Pair(kUuid, GpuUnits{140, true}),
                                               Pair("GPU-small", GpuUnits{0, true})));
  Add(kUuid, kGiB, &devices);
  EXPECT_TRUE(absl::IsInvalidArgument(UnitsOf(devices, kGiB).status())) << "twice";
  Devices other;
  Add("GPU/a", kGiB, &other);
  EXPECT_TRUE(absl::IsInvalidArgument(UnitsOf(other, kGiB).status()));
  other.Clear();
  Add(absl::StrCat("GPU-", std::string(55, 'a')), kGiB, &other);
  EXPECT_TRUE(absl::IsInvalidArgument(UnitsOf(other, kGiB).status())) << "too long for an id";
}

TEST(UnitsTest, LostGpusStayAsUnhealthyOnes) {
  Devices devices;
  Add("GPU-a", 4 * kGiB, &devices);
  Add("GPU-b", 4 * kGiB, &devices);
  const UnitList both = *UnitsOf(devices, kGiB);
  devices.RemoveLast();
  const UnitList lost = WithLost(*UnitsOf(devices, kGiB), both, {});
  EXPECT_THAT(lost.gpus, UnorderedElementsAre(Pair("GPU-a", GpuUnits{4, true}),
                                              Pair("GPU-b", GpuUnits{4, false})));
  EXPECT_EQ(WithLost(both, lost, {}), both) << "it is back";
  EXPECT_THAT(Unhealthy(both).gpus, UnorderedElementsAre(Pair("GPU-a", GpuUnits{4, false}),
                                                         Pair("GPU-b", GpuUnits{4, false})));
}

// Each GPU that is replaced has a new UUID. The kubelet has to read the list nevertheless.
TEST(UnitsTest, LostGpusDoNotMakeTheListTooLong) {
  const UnitList now = {.step = kMiB, .gpus = {{"GPU-now", {40'000}}}};
  UnitList earlier = now;
  for (const char* uuid : {"GPU-a", "GPU-b", "GPU-c", "GPU-d"}) earlier.gpus[uuid] = {40'000};
  earlier.gpus["GPU-e"] = {};
  const UnitList some = WithLost(now, earlier, {"GPU-d"});
  EXPECT_LE(BytesOf(some), kMostUnitList);
  EXPECT_TRUE(some.gpus.contains("GPU-a"));
  EXPECT_TRUE(some.gpus.contains("GPU-d")) << "pods have its units";
  EXPECT_FALSE(some.gpus.contains("GPU-c"));
  EXPECT_FALSE(some.gpus.contains("GPU-e")) << "it had no units";
  EXPECT_TRUE(some.gpus.at("GPU-now").healthy);
  const UnitList held = WithLost(now, earlier, {"GPU-a", "GPU-b", "GPU-c", "GPU-d"});
  EXPECT_LE(BytesOf(held), kMostUnitList) << "else the kubelet would have none at all";
  EXPECT_EQ(held.gpus.size(), 3u);

  // GPUs are replaced again and again.
  std::mt19937_64 random(3);
  UnitList list;
  for (int round = 0; round < 200; ++round) {
    std::set<std::string> with_pods;
    UnitList next = {.step = kMiB};
    for (const auto& [uuid, units] : list.gpus) {
      if (units.healthy && random() % 4 != 0) next.gpus[uuid] = units;
      if (random() % 16 == 0) with_pods.insert(uuid);
    }
    if (next.gpus.size() < 2) {
      const auto count = static_cast<uint32_t>(random() % 20'000);
      next.gpus[absl::StrCat("GPU-", round)] = {count};
    }
    const UnitList merged = WithLost(next, list, with_pods);
    ASSERT_LE(BytesOf(merged), kMostUnitList);
    size_t left_out = 0;
    for (const auto& [uuid, units] : next.gpus) ASSERT_EQ(merged.gpus.at(uuid), units);
    for (const auto& [uuid, units] : list.gpus) {
      const auto gpu = merged.gpus.find(uuid);
      if (gpu != merged.gpus.end()) {
        ASSERT_EQ(gpu->second.healthy, next.gpus.contains(uuid));
      } else {
        left_out += BytesOf({kMiB, {{uuid, units}}});
      }
    }
    ASSERT_TRUE(left_out == 0 || BytesOf(merged) + left_out > kMostUnitList) << "without need";
    list = merged;
  }
}

TEST(UnitsTest, BytesAreThoseOfTheMessage) {
  for (const uint64_t mib : {1024, 256, 100, 32}) {
    const UnitList list = *UnitsOf(EightGpus(), mib * kMiB);
    EXPECT_EQ(BytesOf(list), MessageOf(list).ByteSizeLong()) << mib;
  }
  const UnitList digits = {.step = kMiB, .gpus = {{kUuid, {20'000}}, {"GPU-b", {10'000}}}};
  EXPECT_EQ(BytesOf(digits), MessageOf(digits).ByteSizeLong());
}

// The figures of docs/how-to/kubernetes-device-plugin.md.
TEST(UnitsTest, TheKubeletReadsAllListsThatAreAllowed) {
  const auto list = UnitsOf(EightGpus(), kDefaultStep);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(BytesOf(*list) >> 10, 71u);
  EXPECT_EQ(BytesOf(*UnitsOf(EightGpus(), 256 * kMiB)) >> 10, 293u);
  EXPECT_EQ(BytesOf(*UnitsOf(EightGpus(), 32 * kMiB)) >> 10, 2316u);
  const auto small = UnitsOf(EightGpus(), kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(small.status())) << small.status();
  EXPECT_THAT(std::string(small.status().message()), HasSubstr("1MiB is too small"));

  // The longest list, all of it with pods: as the kubelet lists it to us.
  Devices devices;
  const uint64_t least = 55'000;
  Add(kUuid, least * kMiB, &devices);
  const UnitList most = *UnitsOf(devices, kMiB);
  ::v1::ListPodResourcesResponse pods;
  auto* const container = pods.add_pod_resources()->add_containers();
  const v1beta1::ListAndWatchResponse message = MessageOf(most);
  for (const auto& device : message.devices()) {
    auto* const entry = container->add_devices();
    entry->set_resource_name(ResourceOf(kMiB));
    entry->add_device_ids(device.id());
  }
  EXPECT_LT(pods.ByteSizeLong(), size_t{16} << 20);
}

}  // namespace units_test
}  // namespace gpumem::kubernetes
