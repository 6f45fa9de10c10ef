// SPDX-License-Identifier: Apache-2.0
// Device memory that is unmapped while its addresses stay reserved (common/mapping).
#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/cuda/device_copy.h"
#include "common/cuda/synchronize.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"

namespace gpumem {
namespace detach_test {

constexpr uint64_t kBytes = 4 << 20;

class DetachOnGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto driver = CudaDriver::Get();
    if (!driver.ok()) GTEST_SKIP() << driver.status();
    driver_ = *driver;
    gpu_ = driver_->devices().front().uuid;
  }
  // Returns new device memory, which lives as long as it is open or mapped.
  UniqueFd NewMemory() {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = driver_->devices().front().handle;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(driver_->cuMemCreate(&handle, kBytes, &properties, 0), CUDA_SUCCESS);
    int fd = -1;
    EXPECT_EQ(driver_->cuMemExportToShareableHandle(&fd, handle,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(driver_->cuMemRelease(handle), CUDA_SUCCESS);
    return UniqueFd(fd);
  }
  // Returns the byte at `data`.
  absl::StatusOr<int> Read(const void* data) {
    auto copier = DeviceCopier::ForCuda(gpu_);
    if (!copier.ok()) return copier.status();
    uint8_t byte = 0;
    absl::Status status = (*copier)->CopyOut(&byte, data, 1);
    if (!status.ok()) return status;
    return byte;
  }
  void Fill(void* data, uint8_t value) {
    EXPECT_EQ(DeviceCopier::ForCuda(gpu_).value()->Fill(data, value, kBytes), absl::OkStatus());
  }

  const CudaDriver* driver_ = nullptr;
  std::string gpu_;
};

TEST_F(DetachOnGpuTest, OtherMemoryTakesTheAddresses) {
  const UniqueFd fds[] = {NewMemory(), NewMemory(), NewMemory()};
  auto mapped = MapCuda({{fds[0].get(), kBytes}, {fds[1].get(), kBytes}}, {.device_uuids = {gpu_}});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ((*mapped)[0]->device_uuids(), absl::MakeConstSpan(&gpu_, 1));
  void* const first = (*mapped)[0]->data();
  void* const second = (*mapped)[1]->data();
  Fill(first, 1);
  Fill(second, 2);
  ASSERT_EQ(SynchronizeDevices({gpu_}), absl::OkStatus());
  auto reserved = Detach((*mapped)[0]);
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_EQ(reserved->options.address, first);
  EXPECT_FALSE(Read(first).ok()) << "nothing is mapped there";
  EXPECT_EQ(Read(second).value(), 2) << "the part beside it";
  EXPECT_NE(ReserveCudaAddresses(2 * kBytes).value()->base(), reinterpret_cast<uintptr_t>(first));

  auto again = MapCuda({{fds[2].get(), kBytes}}, reserved->options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->front()->data(), first);
  Fill(first, 3);
  EXPECT_EQ(Read(first).value(), 3);
  EXPECT_EQ(Read(second).value(), 2);
}

TEST_F(DetachOnGpuTest, BothPartsComeBackInOneCallReadOnly) {
  const UniqueFd fds[] = {NewMemory(), NewMemory()};
  const MapRequest requests[] = {{fds[0].get(), kBytes}, {fds[1].get(), kBytes}};
  auto writable = MapCuda(requests, {.device_uuids = {gpu_}});
  ASSERT_TRUE(writable.ok()) << writable.status();
  Fill((*writable)[0]->data(), 1);
  Fill((*writable)[1]->data(), 2);
  auto mapped = MapCuda(requests, {.read_only = true, .device_uuids = {gpu_}});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  char* const data = static_cast<char*>((*mapped)[0]->data());
  for (int round = 0; round < 3; ++round) {
    std::vector<Reserved> reserved;
    for (std::unique_ptr<Mapping>& mapping : *mapped) {
      reserved.push_back(Detach(mapping).value());
    }
    EXPECT_FALSE(Read(data).ok());
    EXPECT_TRUE(reserved.front().options.read_only);
    EXPECT_EQ(reserved.front().options.range, reserved.back().options.range);
    mapped = MapCuda(requests, reserved.front().options);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_EQ((*mapped)[1]->data(), data + kBytes);
    EXPECT_EQ(Read(data).value(), 1);
    EXPECT_EQ(Read(data + kBytes).value(), 2);
  }
}

TEST_F(DetachOnGpuTest, ADeviceWithoutAContextHasNoWork) {
  EXPECT_EQ(SynchronizeDevices({}), absl::OkStatus());
  EXPECT_EQ(SynchronizeDevices({gpu_}), absl::OkStatus());
  EXPECT_EQ(SynchronizeDevices({"GPU-none"}).code(), absl::StatusCode::kNotFound);
}

}  // namespace detach_test
}  // namespace gpumem

#endif
