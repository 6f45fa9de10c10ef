// SPDX-License-Identifier: Apache-2.0
// The project's own use of the driver runs on the fake one, which keeps the rules that it needs.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "common/cuda/context.h"
#include "common/cuda/driver.h"
#include "gtest/gtest.h"

#if GPUMEM_WITH_CUDA && CUDA_VERSION >= 12080

namespace gpumem {
namespace {

constexpr size_t kSize = size_t{4} << 20;

// What a process sends to another one that imports its memory.
struct Offer {
  CUipcMemHandle handle;
  CUmemPoolPtrExportData pointer;
};

std::shared_ptr<const CudaContext> ContextOf(const CudaDriver& driver, CUdevice device) {
  return CudaContext::Retain(driver, device).value();
}

// Imports what the parent offers; returns the exit status of the child process.
int ImportOffer(int channel) {
  Offer offer;
  if (read(channel, &offer, sizeof(offer)) != sizeof(offer)) return 2;
  const CudaDriver& driver = *CudaDriver::Get().value();
  auto context = ContextOf(driver, 0);
  CUdeviceptr first = 0;
  CUdeviceptr again = 0;
  CUdeviceptr pooled = 0;
  unsigned char bytes[2] = {};
  CUresult result = context->Call([&] {
    CUresult each = driver.cuIpcOpenMemHandle_v2(&first, offer.handle, 0);
    if (each == CUDA_SUCCESS) each = driver.cuIpcOpenMemHandle_v2(&again, offer.handle, 0);
    if (each == CUDA_SUCCESS)
      each = driver.cuMemPoolImportPointer(&pooled, nullptr, &offer.pointer);
    if (each == CUDA_SUCCESS) each = driver.cuMemcpyDtoH_v2(&bytes[0], first, 1);
    if (each == CUDA_SUCCESS) each = driver.cuMemcpyDtoH_v2(&bytes[1], pooled, 1);
    if (each == CUDA_SUCCESS) each = driver.cuMemsetD8_v2(first, 5, 1);
    if (each == CUDA_SUCCESS) each = driver.cuMemFreeAsync(pooled, nullptr);
    if (each == CUDA_SUCCESS) each = driver.cuIpcCloseMemHandle(first);
    if (each == CUDA_SUCCESS) each = driver.cuIpcCloseMemHandle(first);
    return each;
  });
  return result == CUDA_SUCCESS && first == again && bytes[0] == 3 && bytes[1] == 4 ? 0 : 3;
}

TEST(FakeCudaTest, GivesMemoryToAnotherProcess) {
  int channel[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, channel), 0);
  // The first test, because the driver does not survive fork().
  pid_t child = fork();
  if (child == 0) _exit(ImportOffer(channel[1]));
  const CudaDriver& driver = *CudaDriver::Get().value();
  auto context = ContextOf(driver, 0);
  CUdeviceptr address = 0;
  CUdeviceptr pooled = 0;
  CUmemoryPool pool = nullptr;
  Offer offer = {};
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUresult result = context->Call([&] {
    CUresult each = driver.cuMemAlloc_v2(&address, kSize);
    if (each == CUDA_SUCCESS) each = driver.cuMemPoolCreate(&pool, &properties);
    if (each == CUDA_SUCCESS) {
      each = driver.cuMemAllocFromPoolAsync(&pooled, kSize, pool, nullptr);
    }
    if (each == CUDA_SUCCESS) each = driver.cuMemsetD8_v2(address, 3, kSize);
    if (each == CUDA_SUCCESS) each = driver.cuMemsetD8_v2(pooled, 4, kSize);
    // Memory of pools has no legacy handle.
    if (driver.cuIpcGetMemHandle(&offer.handle, pooled) != CUDA_ERROR_INVALID_VALUE) {
      each = CUDA_ERROR_UNKNOWN;
    }
    if (each == CUDA_SUCCESS) each = driver.cuIpcGetMemHandle(&offer.handle, address);
    if (each == CUDA_SUCCESS) each = driver.cuMemPoolExportPointer(&offer.pointer, pooled);
    return each;
  });
  EXPECT_EQ(result, CUDA_SUCCESS);
  ASSERT_EQ(write(channel[0], &offer, sizeof(offer)), static_cast<ssize_t>(sizeof(offer)));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  unsigned char byte = 0;
  EXPECT_EQ(context->Call([&] { return driver.cuMemcpyDtoH_v2(&byte, address, 1); }), CUDA_SUCCESS);
  EXPECT_EQ(byte, 5);
  // The process that exports cannot import.
  CUdeviceptr own = 0;
  EXPECT_EQ(context->Call([&] { return driver.cuIpcOpenMemHandle_v2(&own, offer.handle, 0); }),
            CUDA_ERROR_INVALID_CONTEXT);
  close(channel[0]);
  close(channel[1]);
}

TEST(FakeCudaTest, HasDevicesAsTheDriverTellsThem) {
  const CudaDriver* driver = CudaDriver::Get().value();
  ASSERT_EQ(driver->devices().size(), 2u);
  EXPECT_EQ(driver->devices()[0].uuid, "GPU-66616b65-2d63-7564-612d-6770752d3030");
  EXPECT_EQ(driver->FindDevice("GPU-66616b65-2d63-7564-612d-6770752d3031").value(), 1);
  EXPECT_EQ(driver->FindDevice("PINNED-0").status(),
            absl::NotFoundError("the device PINNED-0 is no GPU: CUDA does not know it"));
}

TEST(FakeCudaTest, CountsMemory) {
  const CudaDriver& driver = *CudaDriver::Get().value();
  auto context = ContextOf(driver, 1);
  size_t before = 0;
  size_t during = 0;
  size_t total = 0;
  CUdeviceptr address = 0;
  unsigned char byte = 0;
  ASSERT_EQ(context->Call([&] { return driver.cuMemGetInfo_v2(&before, &total); }), CUDA_SUCCESS);
  ASSERT_EQ(context->Call([&] { return driver.cuMemAlloc_v2(&address, kSize); }), CUDA_SUCCESS);
  ASSERT_EQ(context->Call([&] { return driver.cuMemGetInfo_v2(&during, &total); }), CUDA_SUCCESS);
  EXPECT_EQ(before - during, kSize);
  EXPECT_EQ(context->Call([&] { return driver.cuMemsetD8_v2(address, 7, kSize); }), CUDA_SUCCESS);
  EXPECT_EQ(context->Call([&] { return driver.cuMemcpyDtoH_v2(&byte, address + kSize - 1, 1); }),
            CUDA_SUCCESS);
  EXPECT_EQ(byte, 7);
  // Beyond its end, there is nothing.
  EXPECT_EQ(context->Call([&] { return driver.cuMemcpyDtoH_v2(&byte, address + kSize, 1); }),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(context->Call([&] { return driver.cuMemAlloc_v2(&address, total); }),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(FakeCudaTest, MapsPhysicalMemoryTwice) {
  const CudaDriver& driver = *CudaDriver::Get().value();
  auto context = ContextOf(driver, 0);
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle imported = 0;
  int fd = -1;
  ASSERT_EQ(driver.cuMemCreate(&handle, kSize, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(
      driver.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemImportFromShareableHandle(
                &imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  close(fd);
  CUdeviceptr range = 0;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(driver.cuMemAddressReserve(&range, 2 * kSize, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemMap(range, kSize, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemMap(range + kSize, kSize, 0, imported, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemSetAccess(range, 2 * kSize, &access, 1), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemRelease(imported), CUDA_SUCCESS);
  unsigned char byte = 0;
  EXPECT_EQ(context->Call([&] { return driver.cuMemsetD8_v2(range, 9, kSize); }), CUDA_SUCCESS);
  EXPECT_EQ(context->Call([&] { return driver.cuMemcpyDtoH_v2(&byte, range + kSize + 5, 1); }),
            CUDA_SUCCESS);
  EXPECT_EQ(byte, 9);
  // Addresses with mappings cannot go.
  EXPECT_EQ(driver.cuMemAddressFree(range, 2 * kSize), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.cuMemUnmap(range, 2 * kSize), CUDA_SUCCESS);
  EXPECT_EQ(driver.cuMemAddressFree(range, 2 * kSize), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gpumem

#else

TEST(FakeCudaTest, IsNotBuilt) { GTEST_SKIP() << "built without CUDA"; }

#endif
