// SPDX-License-Identifier: Apache-2.0
// The pool's streams and events (client/pool/stream_api_cuda.cc) on the fake driver of two devices.
#include "client/pool/stream_api.h"

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/cuda/context.h"
#include "common/cuda/driver.h"
#include "gtest/gtest.h"

#if GPUMEM_WITH_CUDA && CUDA_VERSION >= 12080

namespace gpumem {
namespace {

using absl::StatusCode;
using internal::LegacyStream;
using internal::PerThreadStream;
using internal::StreamApi;

// Functions that the project does not call otherwise.
template <typename Function>
Function* Find(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

class StreamApiTest : public ::testing::Test {
 protected:
  StreamApiTest()
      : driver_(*CudaDriver::Get().value()),
        context_(CudaContext::Retain(driver_, 0).value()),
        streams_(internal::MakeCudaStreamApi(driver_.devices()[0].uuid).value()) {}

  CUstream NewStream(unsigned int flags = CU_STREAM_DEFAULT) {
    CUstream stream = nullptr;
    EXPECT_EQ(context_->Call([&] { return driver_.cuStreamCreate(&stream, flags); }), CUDA_SUCCESS);
    return stream;
  }
  // Has the stream wait until go_on_ is 1.
  void Stall(CUstream stream) {
    EXPECT_EQ(context_->Call([&] {
      const CUresult got = driver_.cuMemAlloc_v2(&go_on_, sizeof(uint32_t));
      return got != CUDA_SUCCESS ? got : driver_.cuMemsetD8_v2(go_on_, 0, sizeof(uint32_t));
    }),
              CUDA_SUCCESS);
    auto* const wait = Find<decltype(cuStreamWaitValue32_v2)>("cuStreamWaitValue32_v2");
    ASSERT_NE(wait, nullptr);
    EXPECT_EQ(wait(stream, go_on_, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  }
  void GoOn() {
    const uint32_t one = 1;
    EXPECT_EQ(context_->Call([&] { return driver_.cuMemcpyHtoD_v2(go_on_, &one, sizeof(one)); }),
              CUDA_SUCCESS);
  }

  const CudaDriver& driver_;
  std::shared_ptr<const CudaContext> context_;
  std::unique_ptr<StreamApi> streams_;
  CUdeviceptr go_on_ = 0;
};

TEST_F(StreamApiTest, IsOfADeviceThatIsSeenAndHasRoomForAContext) {
  EXPECT_EQ(internal::MakeCudaStreamApi("GPU-none").status().code(), StatusCode::kNotFound);
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 1;
  size_t total = 0;
  ASSERT_EQ(driver_.cuDeviceTotalMem_v2(&total, 1), CUDA_SUCCESS);
  CUmemGenericAllocationHandle all = 0;
  ASSERT_EQ(driver_.cuMemCreate(&all, total, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(internal::MakeCudaStreamApi(driver_.devices()[1].uuid).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(driver_.cuMemRelease(all), CUDA_SUCCESS);
  EXPECT_TRUE(internal::MakeCudaStreamApi(driver_.devices()[1].uuid).ok());
}

TEST_F(StreamApiTest, DefaultStreamsAndThoseWithoutTheFlagBlock) {
  EXPECT_TRUE(streams_->IsBlocking(LegacyStream()).value());
  EXPECT_TRUE(streams_->IsBlocking(PerThreadStream()).value());
  EXPECT_TRUE(streams_->IsBlocking(nullptr).value());
  EXPECT_TRUE(streams_->IsBlocking(NewStream()).value());
  EXPECT_FALSE(streams_->IsBlocking(NewStream(CU_STREAM_NON_BLOCKING)).value());
  const auto other = CudaContext::Retain(driver_, 1).value();
  CUstream stream = nullptr;
  ASSERT_EQ(other->Call([&] { return driver_.cuStreamCreate(&stream, CU_STREAM_DEFAULT); }),
            CUDA_SUCCESS);
  EXPECT_EQ(streams_->IsBlocking(stream).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(StreamApiTest, EventIsDoneOnceTheWorkBeforeItIs) {
  CUstream const stream = NewStream(CU_STREAM_NON_BLOCKING);
  Stall(stream);
  StreamApi::EventHandle const event = streams_->Record(stream).value();
  EXPECT_FALSE(streams_->Done(event).value());
  CUstream const waiting = NewStream(CU_STREAM_NON_BLOCKING);
  EXPECT_EQ(streams_->Wait(waiting, event), absl::OkStatus());
  StreamApi::EventHandle const after = streams_->Record(waiting).value();
  EXPECT_FALSE(streams_->Done(after).value());
  GoOn();
  EXPECT_EQ(streams_->Synchronize(event), absl::OkStatus());
  EXPECT_EQ(streams_->SynchronizeDevice(), absl::OkStatus());
  EXPECT_TRUE(streams_->Done(event).value());
  EXPECT_TRUE(streams_->Done(after).value());
  // Events that were dropped are used again.
  streams_->Drop(event);
  EXPECT_EQ(streams_->Record(waiting).value(), event);
  streams_->Drop(event);
  streams_->Drop(after);
}

TEST_F(StreamApiTest, CapturedStreamIsLeftAlone) {
  CUstream const stream = NewStream();
  StreamApi::EventHandle const event = streams_->Record(stream).value();
  EXPECT_TRUE(streams_->IsFree(stream));
  EXPECT_EQ(streams_->CheckFree(stream), absl::OkStatus());
  ASSERT_EQ(driver_.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_FALSE(streams_->IsFree(stream));
  EXPECT_EQ(streams_->CheckFree(stream).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(streams_->Record(stream).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(streams_->Wait(stream, event).code(), StatusCode::kFailedPrecondition);
  CUgraph graph = nullptr;
  EXPECT_EQ(driver_.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS) << "it is still valid";
  EXPECT_EQ(driver_.cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_TRUE(streams_->IsFree(stream));
  streams_->Drop(event);
}

// It is that of the thread's context, which need not be the pool's.
TEST_F(StreamApiTest, PerThreadStreamIsFreeInAnyContext) {
  EXPECT_TRUE(streams_->IsFree(PerThreadStream()));
  EXPECT_EQ(context_->Call([&] {
    EXPECT_TRUE(streams_->IsFree(PerThreadStream()));
    return CUDA_SUCCESS;
  }),
            CUDA_SUCCESS);
}

// The last test: the program has reset the device.
TEST_F(StreamApiTest, ErrorsOfTheDriverAreReturned) {
  StreamApi::EventHandle const event = streams_->Record(NewStream()).value();
  auto* const reset = Find<decltype(cuDevicePrimaryCtxReset_v2)>("cuDevicePrimaryCtxReset_v2");
  ASSERT_NE(reset, nullptr);
  ASSERT_EQ(reset(0), CUDA_SUCCESS);
  EXPECT_EQ(streams_->IsBlocking(nullptr).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(streams_->IsFree(PerThreadStream()));
  EXPECT_EQ(streams_->CheckFree(nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(streams_->Record(nullptr).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(streams_->Done(event).status().code(), StatusCode::kInternal);
  EXPECT_EQ(streams_->Synchronize(event).code(), StatusCode::kInternal);
  EXPECT_EQ(streams_->SynchronizeDevice().code(), StatusCode::kInternal);
  EXPECT_EQ(streams_->Wait(nullptr, event).code(), StatusCode::kInvalidArgument);
  streams_->Drop(event);
}

}  // namespace
}  // namespace gpumem

// The fake driver keeps the events of a device that was reset.
extern "C" const char* __lsan_default_suppressions() { return "leak:cuEventCreate"; }

#else

TEST(StreamApiTest, IsNotBuilt) { GTEST_SKIP() << "built without CUDA"; }

#endif
