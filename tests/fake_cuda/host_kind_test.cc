// SPDX-License-Identifier: Apache-2.0
// Memory of kind host, which demoted segments have: it is of no GPU, and the GPUs that it is mapped
// for use it.
#include <memory>
#include <string>

#include "client/mapping/remapping.h"
#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"
#include "tests/support/pattern.h"

#if GPUMEM_WITH_CUDA && CUDA_VERSION >= 12080

namespace gpumem {
namespace {

using internal::FakeDaemon;
using internal::Remapping;

constexpr uint64_t kBytes = 2 * kMiB;

v1::Device Device(const std::string& uuid, v1::Kind kind, v1::Backend backend) {
  v1::Device device;
  device.set_device_uuid(uuid);
  device.set_backend(backend);
  device.set_capacity_bytes(64 * kMiB);
  device.set_granularity_bytes(kBytes);
  device.add_kinds(kind);
  return device;
}

TEST(HostKindTest, IsUsedByTheGpuThatItIsMappedFor) {
  const std::string first = CudaDriver::Get().value()->devices()[0].uuid;
  const std::string second = CudaDriver::Get().value()->devices()[1].uuid;
  FakeDaemon daemon(
      {.devices = {Device(first, v1::KIND_VMM, v1::BACKEND_CUDA),
                   Device(second, v1::KIND_VMM, v1::BACKEND_CUDA),
                   Device(FakeDaemon::kPinnedDevice, v1::KIND_HOST, v1::BACKEND_HOST)}});
  const auto client = Client::Connect({.runtime_dir = daemon.runtime_dir()}).value();
  Segment segment =
      client->Acquire({.bytes = kBytes, .kind = Kind::kHost, .map_devices = {second}}).value();
  EXPECT_EQ(segment.backend(), Backend::kCuda);
  EXPECT_EQ(segment.device_uuid(), FakeDaemon::kPinnedDevice);
  EXPECT_EQ(Remapping::GpuOf(segment), second);
  EXPECT_EQ(testing::Fill(testing::MemoryOf(segment), 1), absl::OkStatus());
  // As a worker opens it that knows only the ticket.
  const Segment opened = client->Open(segment.Share()->value, {.read_only = true}).value();
  EXPECT_EQ(Remapping::GpuOf(opened), first);
  EXPECT_EQ(testing::Check(testing::MemoryOf(opened), 1), absl::OkStatus());
}

}  // namespace
}  // namespace gpumem

#else

TEST(HostKindTest, IsNotBuilt) { GTEST_SKIP() << "built without CUDA"; }

#endif
