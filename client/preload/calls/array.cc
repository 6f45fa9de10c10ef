// SPDX-License-Identifier: Apache-2.0
// Arrays and mipmapped arrays.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/accounting.h"
#include "client/preload/books.h"

namespace gpumem::preload {
namespace {

uint64_t FormatSize(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    default:
      // 32 bits, or a compressed or planar format, none of which has more for a channel. So this is
      // at most too much.
      return 4;
  }
}

// Returns what a level of an array takes. The driver does not tell; its layout is in tiles of 64
// bytes by 8 rows.
uint64_t LevelSize(uint64_t width, uint64_t height, uint64_t depth, CUarray_format format,
                   unsigned int channels) {
  uint64_t row = (width * FormatSize(format) * (channels == 0 ? 1 : channels) + 63) / 64 * 64;
  uint64_t rows = height <= 1 ? 1 : (height + 7) / 8 * 8;
  uint64_t layers = depth == 0 ? 1 : depth;
  constexpr uint64_t kTooMuch = uint64_t{1} << 60;
  if (row > kTooMuch || rows > kTooMuch / (row == 0 ? 1 : row)) return kTooMuch;
  uint64_t layer = row * rows;
  if (layers > kTooMuch / (layer == 0 ? 1 : layer)) return kTooMuch;
  return layer * layers;
}

uint64_t ArraySize(uint64_t bytes) {
  constexpr uint64_t kPage = uint64_t{64} << 10;
  return ChargedSize((bytes + kPage - 1) / kPage * kPage);
}

template <typename Descriptor>
uint64_t Size3d(const Descriptor& array, unsigned int levels) {
  // Its memory comes by cuMemMapArrayAsync(), and was charged by cuMemCreate().
  if ((array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
  bool layered = (array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  uint64_t bytes = 0;
  for (unsigned int level = 0; level < levels && level < 32; ++level) {
    uint64_t depth = layered ? array.Depth : array.Depth >> level;
    bytes += LevelSize(array.Width >> level, array.Height >> level, depth, array.Format,
                       array.NumChannels);
  }
  return ArraySize(bytes);
}

template <typename Descriptor>
uint64_t Size2d(const Descriptor& array) {
  return ArraySize(LevelSize(array.Width, array.Height, 1, array.Format, array.NumChannels));
}

template <typename Handle, typename Call>
CUresult CreateCharged(const Entry& entry, uint64_t bytes, Handle* handle, Call call) {
  return AllocateRecorded(entry, &g_arrays, bytes, call,
                          [&] { return reinterpret_cast<uint64_t>(*handle); });
}

template <typename Handle, typename Call>
CUresult DestroyCharged(const Entry& entry, Handle handle, Call call) {
  uint64_t key = reinterpret_cast<uint64_t>(handle);
  Record record;
  if (!entry.outermost || key == 0) return call();
  // An array that is a level or a plane of another one has no record.
  const bool known = g_arrays.Take(key, &record);
  CUresult result = call();
  if (result == CUDA_SUCCESS) {
    Refund(record.charge);
    UnbindArray(key);
  } else if (known) {
    g_arrays.Put(key, record);
  }
  return result;
}

}  // namespace
}  // namespace gpumem::preload

using gpumem::preload::CreateCharged;
using gpumem::preload::DestroyCharged;
using gpumem::preload::Entry;
using gpumem::preload::Size2d;
using gpumem::preload::Size3d;

extern "C" {

CUresult CUDAAPI cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  Entry entry;
  return CreateCharged(entry, pAllocateArray == nullptr ? 0 : Size2d(*pAllocateArray), pHandle,
                       [&] { return entry.driver.cuArrayCreate_v2(pHandle, pAllocateArray); });
}

CUresult CUDAAPI cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR_v1* pAllocateArray) {
  Entry entry;
  return CreateCharged(entry, pAllocateArray == nullptr ? 0 : Size2d(*pAllocateArray), pHandle,
                       [&] { return entry.driver.cuArrayCreate(pHandle, pAllocateArray); });
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray* pHandle,
                                    const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  Entry entry;
  return CreateCharged(entry, pAllocateArray == nullptr ? 0 : Size3d(*pAllocateArray, 1), pHandle,
                       [&] { return entry.driver.cuArray3DCreate_v2(pHandle, pAllocateArray); });
}

CUresult CUDAAPI cuArray3DCreate(CUarray* pHandle,
                                 const CUDA_ARRAY3D_DESCRIPTOR_v1* pAllocateArray) {
  Entry entry;
  return CreateCharged(entry, pAllocateArray == nullptr ? 0 : Size3d(*pAllocateArray, 1), pHandle,
                       [&] { return entry.driver.cuArray3DCreate(pHandle, pAllocateArray); });
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray* pHandle,
                                        const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                        unsigned int numMipmapLevels) {
  Entry entry;
  return CreateCharged(
      entry, pMipmappedArrayDesc == nullptr ? 0 : Size3d(*pMipmappedArrayDesc, numMipmapLevels),
      pHandle, [&] {
        return entry.driver.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
      });
}

CUresult CUDAAPI cuArrayDestroy(CUarray hArray) {
  Entry entry;
  return DestroyCharged(entry, hArray, [&] { return entry.driver.cuArrayDestroy(hArray); });
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  Entry entry;
  return DestroyCharged(entry, hMipmappedArray,
                        [&] { return entry.driver.cuMipmappedArrayDestroy(hMipmappedArray); });
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
