// SPDX-License-Identifier: Apache-2.0
// Arrays: memory that is taken and given back, without contents.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "tests/fake_cuda/state.h"

// One type for both kinds of array.
struct CUarray_st {
  CUcontext context;
  uint64_t bytes;
};
struct CUmipmappedArray_st {
  CUcontext context;
  uint64_t bytes;
};

namespace fake_cuda {
namespace {

uint64_t Size(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned int levels) {
  if ((array.Flags & CUDA_ARRAY3D_SPARSE) != 0) return 0;
  uint64_t element = array.NumChannels;
  if (array.Format == CU_AD_FORMAT_UNSIGNED_INT16 || array.Format == CU_AD_FORMAT_HALF) {
    element *= 2;
  } else if (array.Format != CU_AD_FORMAT_UNSIGNED_INT8) {
    element *= 4;
  }
  uint64_t bytes = 0;
  for (unsigned int level = 0; level < levels; ++level) {
    uint64_t height = array.Height == 0 ? 1 : array.Height >> level;
    uint64_t depth = array.Depth == 0 ? 1 : array.Depth;
    bytes += (array.Width >> level) * element * height * depth;
  }
  return RoundUp(bytes, bytes < kMiB ? 64 << 10 : kPage);
}

template <typename Handle>
CUresult Create(Handle* handle, const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned int levels) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  if (ForbiddenByCapture(call.state)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (handle == nullptr || array.Width == 0 || levels == 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = Size(array, levels);
  if (!TakeMemory(context->device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = new std::remove_pointer_t<Handle>{context, bytes};
  return CUDA_SUCCESS;
}

template <typename Handle>
CUresult Destroy(Handle handle) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  DropTiles(handle);
  GiveMemory(handle->context->device, handle->bytes);
  delete handle;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

extern "C" {

CUresult CUDAAPI cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  if (pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR array = {};
  array.Width = pAllocateArray->Width;
  array.Height = pAllocateArray->Height;
  array.Format = pAllocateArray->Format;
  array.NumChannels = pAllocateArray->NumChannels;
  return fake_cuda::Create(pHandle, array, 1);
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray* pHandle,
                                    const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  if (pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return fake_cuda::Create(pHandle, *pAllocateArray, 1);
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray* pHandle,
                                        const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                        unsigned int numMipmapLevels) {
  if (pMipmappedArrayDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return fake_cuda::Create(pHandle, *pMipmappedArrayDesc, numMipmapLevels);
}

CUresult CUDAAPI cuArrayDestroy(CUarray hArray) { return fake_cuda::Destroy(hArray); }
CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  return fake_cuda::Destroy(hMipmappedArray);
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
