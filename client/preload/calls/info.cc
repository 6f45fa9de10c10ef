// SPDX-License-Identifier: Apache-2.0
// What programs are told of a device's memory: the tenant's limit, and what of it is left.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "client/preload/accounting.h"
#include "client/preload/books.h"

namespace gpumem::preload {
namespace {

// The driver's figures of the current context's device, as one thread saw them last.
//
// They count where memory that the daemon does not know of fills the device: then the driver has
// less than the tenant may get. Asking takes the driver some microseconds. So an answer holds for a
// few milliseconds, while the tenant's limit and its free memory are the same to the byte. An
// allocation or a free of this process that is charged changes these, and has the driver asked
// again: the next call always shows it. A change that the daemon knows nothing of shows within
// kHoldsNs. So does an error that a kernel has left in the context.
struct DriverFigures {
  size_t free_bytes = 0, total = 0;
  uint64_t limit = 0, left = 0;  // of the tenant, at that time
  uint64_t asked_ns = 0;         // 0: never
  uint64_t context = 0;
};
constexpr uint64_t kHoldsNs = 5'000'000;
// Of the device that the thread asked for last: room for variables of threads is scarce.
thread_local DriverFigures t_figures;

uint64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Answers with the lower of the driver's figures and the tenant's. The driver alone answers where
// there is no context, or no limit.
template <typename Size>
CUresult MemoryInfo(const Entry& entry, CUresult (*ask)(const Entry&, Size*, Size*),
                    Size* free_bytes, Size* total) {
  uint64_t context = 0;
  int device = -1;
  uint64_t limit = 0;
  uint64_t left = 0;
  const bool pointers = free_bytes != nullptr && total != nullptr;
  if (!entry.outermost || !pointers || !CurrentContext(entry.driver, &context, &device)) {
    return ask(entry, free_bytes, total);
  }
  SettleBooks(device);
  if (!LimitOf(device, &limit, &left)) {
    return ask(entry, free_bytes, total);
  }
  DriverFigures& figures = t_figures;
  const uint64_t now = NowNs();
  const bool holds = figures.asked_ns != 0 && now - figures.asked_ns < kHoldsNs &&
                     figures.limit == limit && figures.left == left && figures.context == context;
  if (!holds) {
    figures.asked_ns = 0;
    Size driver_free = 0;
    Size driver_total = 0;
    const CUresult result = ask(entry, &driver_free, &driver_total);
    if (result != CUDA_SUCCESS) return result;
    figures = {driver_free, driver_total, limit, left, now, context};
  }
  *total = static_cast<Size>(limit < figures.total ? limit : figures.total);
  *free_bytes = static_cast<Size>(left < figures.free_bytes ? left : figures.free_bytes);
  return CUDA_SUCCESS;
}

template <typename Size>
void LowerTotal(const Entry& entry, int device, Size* bytes) {
  uint64_t limit = 0;
  uint64_t left = 0;
  if (!entry.outermost || !LimitOf(device, &limit, &left)) return;
  if (limit < *bytes) *bytes = static_cast<Size>(limit);
}

}  // namespace
}  // namespace gpumem::preload

using gpumem::preload::Entry;
using gpumem::preload::LowerTotal;
using gpumem::preload::MemoryInfo;

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
  Entry entry;
  return MemoryInfo<size_t>(
      entry,
      [](const Entry& inside, size_t* left, size_t* whole) {
        return inside.driver.cuMemGetInfo_v2(left, whole);
      },
      free, total);
}

CUresult CUDAAPI cuMemGetInfo(unsigned int* free, unsigned int* total) {
  Entry entry;
  return MemoryInfo<unsigned int>(
      entry,
      [](const Entry& inside, unsigned int* left, unsigned int* whole) {
        return inside.driver.cuMemGetInfo(left, whole);
      },
      free, total);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  Entry entry;
  CUresult result = entry.driver.cuDeviceTotalMem_v2(bytes, dev);
  if (result == CUDA_SUCCESS) LowerTotal(entry, dev, bytes);
  return result;
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int* bytes, CUdevice dev) {
  Entry entry;
  CUresult result = entry.driver.cuDeviceTotalMem(bytes, dev);
  if (result == CUDA_SUCCESS) LowerTotal(entry, dev, bytes);
  return result;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
