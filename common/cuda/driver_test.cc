// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "common/cuda/nvml.h"

namespace gpumem {
namespace {

TEST(CudaDriver, AnswersTheSameToEveryThread) {
  std::vector<absl::StatusOr<const CudaDriver*>> answers(4, nullptr);
  std::vector<std::thread> threads;
  for (auto& answer : answers) threads.emplace_back([&answer] { answer = CudaDriver::Get(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, answers.front());
}

TEST(CudaDriver, SaysInASentenceWhatIsMissing) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (driver.ok()) GTEST_SKIP() << "there is a GPU here";
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(driver.status().message().empty());
}

#if GPUMEM_WITH_CUDA
TEST(CudaDriver, FindsDevicesByUuid) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) GTEST_SKIP() << driver.status().message();
  ASSERT_FALSE((*driver)->devices().empty());
  for (const CudaDriver::VisibleDevice& device : (*driver)->devices()) {
    EXPECT_THAT(device.uuid,
                testing::MatchesRegex("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"));
    const absl::StatusOr<CUdevice> found = (*driver)->FindDevice(device.uuid);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, device.handle);
  }
  const absl::Status unknown = (*driver)->FindDevice("GPU-0").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()),
              AllOf(testing::HasSubstr("GPU-0"), testing::HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(CudaDriver, NamesErrorsAsTheDriverDoes) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) GTEST_SKIP() << driver.status().message();
  EXPECT_EQ((*driver)->Error(CUDA_SUCCESS, "x"), absl::OkStatus());
  const absl::Status full = (*driver)->Error(CUDA_ERROR_OUT_OF_MEMORY, "allocating");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), testing::HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_EQ((*driver)->Error(CUDA_ERROR_NOT_SUPPORTED, "x").code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ((*driver)->Error(CUDA_ERROR_UNKNOWN, "x").code(), absl::StatusCode::kInternal);
  EXPECT_EQ((*driver)->Error(static_cast<CUresult>(123456), "x").code(),
            absl::StatusCode::kInternal);
}
#endif

TEST(Nvml, KnowsNoDeviceThatDoesNotExist) {
  const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) {
    EXPECT_EQ(nvml.status().code(), absl::StatusCode::kUnavailable);
    GTEST_SKIP() << nvml.status().message();
  }
  EXPECT_EQ((*nvml)->FindDevice("GPU-0").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gpumem
