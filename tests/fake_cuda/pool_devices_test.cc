// SPDX-License-Identifier: Apache-2.0
// Pools of a daemon with GPUs: which one they choose, and whose streams they use. Nothing is
// leased.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"
#include "gpumem/pool.h"
#include "gtest/gtest.h"

#if GPUMEM_WITH_CUDA && CUDA_VERSION >= 12080

namespace gpumem {
namespace {

using absl::StatusCode;
using internal::FakeDaemon;

class PoolDevicesTest : public testing::Test {
 protected:
  PoolDevicesTest()
      : first_(CudaDriver::Get().value()->devices()[0].uuid),
        second_(CudaDriver::Get().value()->devices()[1].uuid) {}

  static v1::Device Device(const std::string& uuid, std::vector<v1::Kind> kinds,
                           v1::Backend backend = v1::BACKEND_CUDA) {
    v1::Device device;
    device.set_device_uuid(uuid);
    device.set_backend(backend);
    device.set_capacity_bytes(64 * kMiB);
    device.set_granularity_bytes(2 * kMiB);
    for (v1::Kind kind : kinds) device.add_kinds(kind);
    return device;
  }
  void Start(std::vector<v1::Device> devices) {
    client_.reset();
    daemon_ = std::make_unique<FakeDaemon>(FakeDaemon::Script{.devices = std::move(devices)});
    client_ = Client::Connect({.runtime_dir = daemon_->runtime_dir()}).value();
  }
  std::string DeviceOf(const PoolOptions& options) {
    const auto pool = Pool::Create(client_, options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return pool.ok() ? (*pool)->device_uuid() : "";
  }
  StatusCode Refused(const PoolOptions& options) {
    return Pool::Create(client_, options).status().code();
  }

  const std::string first_, second_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::shared_ptr<Client> client_;
};

TEST_F(PoolDevicesTest, FirstVisibleDeviceThatMakesTheKindIsChosen) {
  Start({Device(second_, {v1::KIND_VMM, v1::KIND_IPC}), Device(first_, {v1::KIND_VMM}),
         Device("HOST-P", {v1::KIND_PINNED, v1::KIND_HOST}, v1::BACKEND_HOST)});
  EXPECT_EQ(DeviceOf({}), first_) << "as CUDA numbers them";
  EXPECT_EQ(DeviceOf({.kind = Kind::kIpc}), second_);
  EXPECT_EQ(DeviceOf({.device = second_}), second_);
  EXPECT_EQ(DeviceOf({.kind = Kind::kPinned}), "HOST-P");
  EXPECT_EQ(DeviceOf({.kind = Kind::kHost}), "HOST-P");
  EXPECT_EQ(DeviceOf({.kind = Kind::kHost, .map_devices = {second_}}), "HOST-P");
  EXPECT_EQ(Refused({.kind = Kind::kMempool}), StatusCode::kUnimplemented);
  EXPECT_EQ(Refused({.kind = Kind::kIpc, .map_devices = {first_, second_}}),
            StatusCode::kUnimplemented);
}

TEST_F(PoolDevicesTest, PinnedMemoryOfADaemonWithoutGpusUsesThisProcesssStreams) {
  Start({Device("HOST-0", {v1::KIND_VMM}, v1::BACKEND_HOST),
         Device("HOST-P", {v1::KIND_PINNED, v1::KIND_HOST}, v1::BACKEND_HOST)});
  EXPECT_EQ(DeviceOf({.kind = Kind::kPinned}), "HOST-P");
  EXPECT_EQ(DeviceOf({.kind = Kind::kHost}), "HOST-P");
}

TEST_F(PoolDevicesTest, GpusThatThisProcessDoesNotSeeAreRefused) {
  Start({Device("GPU-elsewhere", {v1::KIND_VMM})});
  EXPECT_EQ(Refused({}), StatusCode::kNotFound);
  EXPECT_EQ(Refused({.device = "GPU-elsewhere"}), StatusCode::kNotFound);
}

}  // namespace
}  // namespace gpumem

#else

TEST(PoolDevicesTest, IsNotBuilt) { GTEST_SKIP() << "built without CUDA"; }

#endif
