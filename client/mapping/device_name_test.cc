// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/device_name.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace device_name_test {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kA[] = "GPU-1a2b3c4d-0000-0000-0000-000000000001";
constexpr char kB[] = "GPU-1a2b3c4d-0000-0000-0000-000000000002";
constexpr char kC[] = "GPU-ffffffff-0000-0000-0000-000000000003";
constexpr char kHost0[] = "HOST-00000000-0000-0000-0000-000000000000";
constexpr char kHost1[] = "HOST-00000000-0001-0000-0000-000000000000";
constexpr char kPinned[] = "PINNED-00000000-0000-0000-0000-000000000000";

class DeviceNameTest : public ::testing::Test {
 protected:
  static v1::Device Device(const char* uuid, v1::Backend backend, v1::Kind kind,
                           const char* pci = "") {
    v1::Device device;
    device.set_device_uuid(uuid);
    device.set_backend(backend);
    device.add_kinds(kind);
    device.set_pci_bus_id(pci);
    return device;
  }

  absl::StatusOr<std::string> Resolve(absl::string_view name) const {
    std::vector<const v1::Device*> devices;
    for (const v1::Device& device : devices_) devices.push_back(&device);
    return ResolveDevice(name, devices, [this] { return visible_; });
  }

  std::vector<v1::Device> devices_ = {
      Device(kA, v1::BACKEND_CUDA, v1::KIND_VMM, "00000000:1B:00.0"),
      Device(kB, v1::BACKEND_CUDA, v1::KIND_VMM, "00000000:3A:00.0"),
      Device(kC, v1::BACKEND_CUDA, v1::KIND_VMM, "00010000:1B:00.0"),
      Device(kPinned, v1::BACKEND_HOST, v1::KIND_PINNED)};
  absl::StatusOr<std::vector<std::string>> visible_ = std::vector<std::string>{kC, kA};
};

TEST_F(DeviceNameTest, Uuids) {
  EXPECT_EQ(*Resolve(kA), kA);
  EXPECT_EQ(*Resolve(kPinned), kPinned);
  EXPECT_EQ(*Resolve("GPU-f"), kC);
  EXPECT_EQ(*Resolve("gpu-FFFF"), kC);
  EXPECT_EQ(*Resolve("P"), kPinned);
  EXPECT_EQ(*Resolve("GPU-1a2b3c4d-0000-0000-0000-000000000002"), kB);
}

TEST_F(DeviceNameTest, ABeginningOfSeveralIsRefusedWithTheirNames) {
  const absl::Status status = Resolve("GPU-1a2b").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(kA), HasSubstr(kB), Not(HasSubstr(kC))));
}

TEST_F(DeviceNameTest, AWholeNameIsNoBeginning) {
  devices_.push_back(Device("GPU-f", v1::BACKEND_CUDA, v1::KIND_VMM));
  EXPECT_EQ(*Resolve("GPU-f"), "GPU-f");
}

TEST_F(DeviceNameTest, PciBusIdsInEverySpelling) {
  for (const char* name :
       {"00000000:1B:00.0", "0000:1b:00.0", "0000:1B:00.0", "1b:00.0", "1B:00", "00000000:1b:00"}) {
    EXPECT_EQ(Resolve(name).value_or("none"), kA) << name;
  }
  EXPECT_EQ(*Resolve("00010000:1b:00.0"), kC);
  EXPECT_EQ(*Resolve("3a:00.0"), kB);
  for (const char* name : {"0001:1b:00.0", "1b:00.1", "1b:0", "1b", "1b:00.", "1b:00.0 ",
                           ":1b:00.0", "000:1b:00.0", "0x1b:00.0", "0000:1g:00.0", "-1:00.0"}) {
    EXPECT_EQ(Resolve(name).status().code(), StatusCode::kNotFound) << name;
  }
}

TEST_F(DeviceNameTest, OrdinalsAreThisProcesss) {
  EXPECT_EQ(*Resolve("0"), kC);
  EXPECT_EQ(*Resolve("1"), kA);
  EXPECT_EQ(*Resolve("cuda:1"), kA);
  const absl::Status status = Resolve("2").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(kC), HasSubstr(kA)));
  for (const char* name : {"cuda:", "cuda:x", "-1", "+1", "1 ", "99999999999999999999"}) {
    EXPECT_EQ(Resolve(name).status().code(), StatusCode::kNotFound) << name;
  }
}

TEST_F(DeviceNameTest, AnOrdinalWithoutADriverOrOfAnotherDevice) {
  visible_ = absl::UnavailableError("no CUDA driver: none");
  const absl::Status status = Resolve("0").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(kA));
  EXPECT_EQ(*Resolve(kA), kA);

  visible_ = std::vector<std::string>{"GPU-of-nobody"};
  EXPECT_EQ(Resolve("0").status().code(), StatusCode::kNotFound);
}

TEST_F(DeviceNameTest, OnTheHostBackendTheDaemonsOrderCounts) {
  devices_ = {Device(kHost0, v1::BACKEND_HOST, v1::KIND_VMM),
              Device(kHost1, v1::BACKEND_HOST, v1::KIND_VMM),
              Device(kPinned, v1::BACKEND_HOST, v1::KIND_PINNED)};
  visible_ = absl::InternalError("the driver was asked");
  EXPECT_EQ(*Resolve("0"), kHost0);
  EXPECT_EQ(*Resolve("cuda:1"), kHost1);
  const absl::Status status = Resolve("2").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(kHost1));
  EXPECT_EQ(*Resolve("HOST-00000000-0001"), kHost1);
  EXPECT_EQ(Resolve("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve("most-free").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(DeviceNameTest, WhatThereIsNotIsToldWithWhatThereIs) {
  const absl::Status status = Resolve("GPU-2").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("GPU-2"), HasSubstr(kA), HasSubstr("00000000:1B:00.0"), HasSubstr(kB),
                    HasSubstr(kC)));
}

}  // namespace device_name_test
}  // namespace gpumem::internal
