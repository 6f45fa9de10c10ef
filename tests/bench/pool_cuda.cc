// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/pool_cuda.h"

#include "common/cuda/driver.h"
#include "tests/bench/bed.h"

namespace gpumem::bench::cuda {

#if GPUMEM_WITH_CUDA

namespace {

const CudaDriver& Driver() {
  static const CudaDriver* const driver = OrDie(CudaDriver::Get(), "CUDA");
  return *driver;
}

CUdevice Device() {
  static const CUdevice device = OrDie(Driver().FindDevice(bed->device.uuid), "device");
  return device;
}

// Not by Driver().Error() alone: that makes a text even of success.
void Check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) OrDie(Driver().Error(result, call), "CUDA");
}

CUstream Of(Stream stream) { return static_cast<CUstream>(stream); }
CUdeviceptr AddressOf(const Block& block) { return reinterpret_cast<CUdeviceptr>(block.data); }
Block BlockAt(CUdeviceptr address, uint64_t bytes) {
  return {.data = reinterpret_cast<void*>(address), .bytes = bytes};
}

class Malloc : public PoolPeer {
 public:
  Block Allocate(uint64_t bytes, Stream) override {
    CUdeviceptr address = 0;
    Check(Driver().cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    return BlockAt(address, bytes);
  }
  void Free(const Block& block, Stream) override {
    Check(Driver().cuMemFree_v2(AddressOf(block)), "cuMemFree");
  }
};

class MallocAsync : public PoolPeer {
 public:
  MallocAsync() {
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = Device()};
    Check(Driver().cuMemPoolCreate(&pool_, &props), "cuMemPoolCreate");
    cuuint64_t threshold = UINT64_MAX;
    Check(Driver().cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
          "cuMemPoolSetAttribute");
  }
  ~MallocAsync() override {
    const PeerThread thread;  // the last thread that has it ends it
    Check(Driver().cuCtxSynchronize(), "cuCtxSynchronize");
    Check(Driver().cuMemPoolDestroy(pool_), "cuMemPoolDestroy");
  }

  Block Allocate(uint64_t bytes, Stream stream) override {
    CUdeviceptr address = 0;
    Check(Driver().cuMemAllocFromPoolAsync(&address, bytes, pool_, Of(stream)),
          "cuMemAllocFromPoolAsync");
    return BlockAt(address, bytes);
  }
  void Free(const Block& block, Stream stream) override {
    Check(Driver().cuMemFreeAsync(AddressOf(block), Of(stream)), "cuMemFreeAsync");
  }
  uint64_t Reserved() const override { return Attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }
  uint64_t ReservedPeak() const override { return Attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH); }

 private:
  uint64_t Attribute(CUmemPool_attribute attribute) const {
    cuuint64_t value = 0;
    Check(Driver().cuMemPoolGetAttribute(pool_, attribute, &value), "cuMemPoolGetAttribute");
    return value;
  }

  CUmemoryPool pool_ = nullptr;
};

}  // namespace

void PushContext() {
  // Retained once, and for good.
  static CUctx_st* const context = [] {
    CUcontext primary = nullptr;
    Check(Driver().cuDevicePrimaryCtxRetain(&primary, Device()), "cuDevicePrimaryCtxRetain");
    return primary;
  }();
  Check(Driver().cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
}

void PopContext() {
  CUcontext context = nullptr;
  Check(Driver().cuCtxPopCurrent_v2(&context), "cuCtxPopCurrent");
}

Stream NewStream() {
  CUstream stream = nullptr;
  Check(Driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

void EndStream(Stream stream) { Check(Driver().cuStreamDestroy_v2(Of(stream)), "cuStreamDestroy"); }

void Fill(const Block& block, Stream stream) {
  Check(Driver().cuMemsetD8Async(AddressOf(block), 0, block.bytes, Of(stream)), "cuMemsetD8Async");
}

void Synchronize(Stream stream) {
  Check(Driver().cuStreamSynchronize(Of(stream)), "cuStreamSynchronize");
}

bool IsCapturing(Stream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  Check(Driver().cuStreamIsCapturing(Of(stream), &status), "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::unique_ptr<PoolPeer> MakeMalloc() { return std::make_unique<Malloc>(); }
std::unique_ptr<PoolPeer> MakeMallocAsync() { return std::make_unique<MallocAsync>(); }

#else

namespace {
void Die() { OrDie(CudaDriver::Get().status(), "CUDA"); }
}  // namespace

void PushContext() { Die(); }
void PopContext() { Die(); }
Stream NewStream() {
  Die();
  return nullptr;
}
void EndStream(Stream) { Die(); }
void Fill(const Block&, Stream) { Die(); }
void Synchronize(Stream) { Die(); }
bool IsCapturing(Stream) {
  Die();
  return false;
}
std::unique_ptr<PoolPeer> MakeMalloc() {
  Die();
  return nullptr;
}
std::unique_ptr<PoolPeer> MakeMallocAsync() { return MakeMalloc(); }

#endif

}  // namespace gpumem::bench::cuda
