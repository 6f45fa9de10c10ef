// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "daemon/device/host_device.h"
#include "daemon/device/testing/fault_injection.h"

namespace gpumemd {
namespace self_test_test {

using ::testing::HasSubstr;

using gpumem::kMiB;

std::unique_ptr<Device> Host() { return *MakeHostDevice({.capacity_bytes = 4 * kMiB}); }

TEST(SelfTestTest, MakesMemoryAndGivesItBack) {
  int made = 0, given_back = 0;
  const auto device = InjectFaults(Host(), [&](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kCreate) ++made;
    if (op.type == DeviceOp::Type::kDestroy) ++given_back;
    return absl::OkStatus();
  });
  EXPECT_EQ(SelfTest(*device), absl::OkStatus());
  EXPECT_EQ(made, 1);
  EXPECT_EQ(given_back, 1);
  EXPECT_EQ(*device->DriverFreeBytes(), 4 * kMiB);
}

TEST(SelfTestTest, ADeviceThatFailsIsNamed) {
  const auto device = InjectFaults(
      Host(), [](const DeviceOp&) { return absl::InternalError("CUDA_ERROR_ECC_UNCORRECTABLE"); });
  const absl::Status failed = SelfTest(*device);
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.message()), HasSubstr(HostDeviceUuid(0)));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE"));
}

TEST(SelfTestTest, AFullDeviceIsDistinguishedFromABrokenOne) {
  const auto device = Host();
  const auto all = device->Create({.kind = Kind::kVmm, .bytes = 4 * kMiB});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(SelfTest(*device).code(), absl::StatusCode::kResourceExhausted);
}

// Memory without a descriptor.
class Unshared : public Device {
 public:
  explicit Unshared(Kind kind) { info_.kinds = {kind}; }
  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec&) override {
    class Memory : public Allocation {};
    return std::make_unique<Memory>();
  }
  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return 0; }

 private:
  DeviceInfo info_;
};

TEST(SelfTestTest, MemoryThatCannotBeSharedIsAFault) {
  Unshared device(Kind::kVmm);
  EXPECT_EQ(SelfTest(device).code(), absl::StatusCode::kInternal);
}

TEST(SelfTestTest, NoContextIsMadeForIt) {
  Unshared device(Kind::kMempool);
  EXPECT_EQ(SelfTest(device), absl::OkStatus());
}

}  // namespace self_test_test
}  // namespace gpumemd
