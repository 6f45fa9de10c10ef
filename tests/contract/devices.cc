// SPDX-License-Identifier: Apache-2.0
// The ways to say which device.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/contract.h"

namespace gpumem::contract {
namespace {

TEST_P(DeviceNames, AUuidItsBeginningAnOrdinalOrAPciAddress) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const std::string& uuid = devices_[i].uuid;
    std::vector<std::string> names = {uuid, absl::StrCat(i), absl::StrCat("cuda:", i)};
    // The shortest beginning that no other has.
    for (size_t length = uuid.find('-') + 2; length < uuid.size(); ++length) {
      int fits = 0;
      for (const DeviceInfo& device : devices_) {
        fits += device.uuid.compare(0, length, uuid, 0, length) == 0;
      }
      if (fits != 1) continue;
      names.push_back(uuid.substr(0, length));
      break;
    }
    if (!devices_[i].pci_bus_id.empty()) names.push_back(devices_[i].pci_bus_id);
    for (const std::string& name : names) {
      const auto got = Get(name);
      ASSERT_OK(got) << name;
      EXPECT_EQ(*got, uuid) << name;
    }
  }
  EXPECT_STATUS(Get("GPU-nowhere"), kNotFound, "GPU-nowhere");
  EXPECT_STATUS(Get(absl::StrCat(devices_.size() + 1)), kNotFound, "");
}

TEST_P(DeviceNames, NoneIsTheFirstThatMakesTheKind) {
  std::map<Kind, std::string> first;
  for (const v1::Device& device : Devices()) {
    for (const int kind : device.kinds()) {
      first.emplace(static_cast<Kind>(kind), device.device_uuid());
    }
  }
  EXPECT_EQ(*Get(""), devices_[0].uuid);
  for (const auto& [kind, uuid] : first) {
    const auto got = Get("", kind);
    ASSERT_OK(got);
    EXPECT_EQ(*got, uuid) << KindName(kind);
  }
}

TEST_P(DeviceNames, MostFreeIsWhereTheTenantCanGetMost) {
  if (devices_.size() < 2) GTEST_SKIP() << "there is one device only";
  const auto client = Connect(kSmall);
  const uint64_t quarter = SmallLimit(backend()) / 4;  // of what it may have on each
  const auto most_free = [&]() -> std::string {
    auto segment = client->Acquire({.bytes = quarter, .device = "most-free"});
    return segment.ok() ? segment->device_uuid() : segment.status().ToString();
  };
  auto first = client->Acquire({.bytes = 2 * quarter, .device = devices_[0].uuid});
  ASSERT_OK(first);
  EXPECT_NE(most_free(), devices_[0].uuid);
  std::vector<Segment> others;
  for (size_t i = 1; i < devices_.size(); ++i) {
    auto segment = client->Acquire({.bytes = 3 * quarter, .device = devices_[i].uuid});
    ASSERT_OK(segment);
    others.push_back(*std::move(segment));
  }
  EXPECT_EQ(most_free(), devices_[0].uuid);
  // Full everywhere: a denial, as for any device.
  auto rest = client->Acquire({.bytes = 2 * quarter, .device = devices_[0].uuid});
  ASSERT_OK(rest);
  EXPECT_DENIED(client->Acquire({.bytes = 2 * quarter, .device = "most-free"}), kDeviceLimit);
}

TEST_P(DeviceNames, WhatADeviceDoesNotMakeIsRefusedWithWhatItDoes) {
  for (const v1::Device& device : Devices()) {
    EXPECT_GE(device.kinds_size(), 1);
    for (Kind kind : {Kind::kVmm, Kind::kMempool, Kind::kIpc, Kind::kPinned}) {
      bool made = false;
      for (const int one : device.kinds()) made = made || one == static_cast<int>(kind);
      const auto got = Get(device.device_uuid(), kind);
      if (made) {
        EXPECT_OK(got);
      } else {
        // The sentence names one that it makes.
        const auto first = static_cast<Kind>(device.kinds(0));
        EXPECT_STATUS(got, kUnimplemented, std::string(KindName(first)));
      }
    }
  }
}

// --- One GPU's memory, used by another ----------------------------------------------

// A GPU that can use the memory of the kind's first device; empty where there is none.
std::string PeerOf(const v1::Device& device) {
  for (const v1::PeerAccess& peer : device.peers()) {
    if (peer.access()) return peer.device_uuid();
  }
  return "";
}

// Not of the host backend.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PeerSegments);

TEST_P(KindContract, OnlyGpusAreNamedToUseMemory) {
  const std::string uuid = DeviceFor(kind()).device_uuid();
  if (GetParam().backend == "cuda" && kind() != Kind::kPinned) {
    EXPECT_OK(Connect()->Acquire({.bytes = bytes_, .kind = kind(), .map_devices = {uuid}}));
    return;
  }
  EXPECT_STATUS(Connect()->Acquire({.bytes = bytes_, .kind = kind(), .map_devices = {uuid}}),
                kInvalidArgument, "map_devices");
  EXPECT_TRUE(EventuallyCharged(0)) << "nothing is kept of what was refused";
}

TEST_P(PeerSegments, AnotherGpuUsesIt) {
  const v1::Device device = DeviceFor(kind());
  const std::string peer = PeerOf(device);
  if (peer.empty()) GTEST_SKIP() << "no other GPU reaches " << device.device_uuid();
  const auto maker = StartActor(), user = StartActor();
  ASSERT_OK(maker->Acquire("made", {.kind = kind(), .bytes = bytes_}));
  ASSERT_OK(maker->Write("made", 31));
  const auto ticket = maker->Share("made");
  ASSERT_OK(ticket);
  ASSERT_OK(user->Open("opened", *ticket, {.user = peer}));
  EXPECT_OK(user->Expect("opened", 31));
  EXPECT_OK(user->TryWrite("opened")) << "by a kernel of the other GPU";
  EXPECT_OK(user->Write("opened", 32));
  EXPECT_OK(maker->Expect("made", 32));
}

TEST_P(PeerSegments, AProcessThatDoesNotSeeItsGpuNamesOneThatItSees) {
  const v1::Device device = DeviceFor(kind());
  const std::string peer = PeerOf(device);
  if (peer.empty()) GTEST_SKIP() << "no other GPU reaches " << device.device_uuid();
  const auto maker = StartActor();
  ASSERT_OK(maker->Acquire("made", {.kind = kind(), .bytes = bytes_}));
  ASSERT_OK(maker->Write("made", 41));
  const auto ticket = maker->Share("made");
  ASSERT_OK(ticket);
  Actor blinkered(Identity::kSameUser, daemon().runtime_dir());
  ASSERT_OK(blinkered.See(peer));
  ASSERT_OK(blinkered.Connect(kOwner));
  EXPECT_STATUS(blinkered.Open("unseen", *ticket), kNotFound, "CUDA_VISIBLE_DEVICES");
  ASSERT_OK(blinkered.Open("opened", *ticket, {.user = peer}));
  EXPECT_OK(blinkered.Expect("opened", 41));
  EXPECT_OK(blinkered.Write("opened", 42));
  EXPECT_OK(maker->Expect("made", 42));
}

}  // namespace
}  // namespace gpumem::contract
