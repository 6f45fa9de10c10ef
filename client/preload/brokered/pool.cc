// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <atomic>

#include "client/preload/accounting.h"
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/brokered/pool.h"
#include "client/preload/brokered_memory.h"
#include "client/preload/gate.h"
#include "client/preload/pool.h"

namespace gpumem::preload {
namespace {

// Devices whose plug-in has been told the program's choice of reuse.
std::atomic<bool> g_reuse_told[kMaxDevices];

std::atomic<uint32_t> g_streams_forgotten{1};

// The last stream of this thread that was no default stream: asking for its context costs as much
// as the rest of an allocation.
struct KnownStream {
  CUstream stream = nullptr;
  uint32_t forgotten = 0;  // g_streams_forgotten when it was asked for
  uint64_t context = 0;
};
thread_local KnownStream t_known;

bool IsDefaultStream(CUstream stream) {
  return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// Returns the context of a stream, by the driver's handle of it; 0 if the driver does not tell. A
// green context has another handle than the primary one.
uint64_t ContextOf(const Driver& driver, CUstream stream) {
  KnownStream& known = t_known;
  const uint32_t forgotten = g_streams_forgotten.load(std::memory_order_acquire);
  if (known.stream == stream && known.forgotten == forgotten) return known.context;
  CUcontext context = nullptr;
  if (driver.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) return 0;
  known = {stream, forgotten, reinterpret_cast<uint64_t>(context)};
  return known.context;
}

// Returns the context that a call with a stream is about; 0 without one: then the driver answers.
uint64_t ContextFor(const Driver& driver, CUstream stream) {
  if (!IsDefaultStream(stream)) return ContextOf(driver, stream);
  uint64_t context = 0;
  int device = -1;
  return CurrentContext(driver, &context, &device) ? context : 0;
}

bool IsOfPrimary(const Driver& driver, CUstream stream, int device) {
  const uint64_t context = ContextFor(driver, stream);
  return context != 0 && context == PrimaryOf(device);
}

// Returns the device whose default pool it is, or -1.
int DeviceOfDefaultPool(const Driver& driver, CUmemoryPool pool) {
  for (int device = 0; device < kMaxDevices; ++device) {
    CUmemoryPool standard = DefaultPool(driver, device);
    if (standard == nullptr) break;
    if (standard == pool) return device;
  }
  return -1;
}

// The program may have set the pool's flags before its first allocation.
void TellReuse(const Driver& driver, const StreamAllocation& wanted, GpumemBrokeredDevice* device) {
  constexpr struct {
    CUmemPool_attribute attribute;
    GpumemStreamReuse flag;
  } kFlags[] = {
      {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
       GPUMEM_STREAM_REUSE_FOLLOW_EVENT_DEPENDENCIES},
      {CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, GPUMEM_STREAM_REUSE_ALLOW_OPPORTUNISTIC},
      {CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
       GPUMEM_STREAM_REUSE_ALLOW_INTERNAL_DEPENDENCIES},
  };
  if (g_reuse_told[wanted.device].exchange(true, std::memory_order_acq_rel)) return;
  uint32_t flags = 0;
  for (const auto& [attribute, flag] : kFlags) {
    int set = 1;
    if (driver.cuMemPoolGetAttribute(wanted.pool, attribute, &set) != CUDA_SUCCESS) set = 1;
    if (set != 0) flags |= flag;
  }
  Broker()->stream_memory->set_reuse(device, flags);
}

}  // namespace

bool AllocateBrokered(const Entry& entry, const StreamAllocation& wanted, uint64_t* address,
                      CUresult* result) {
  const Driver& driver = entry.driver;
  // Errors of arguments are the driver's to tell.
  if (!IsBrokered() || wanted.bytes == 0) return false;
  GpumemBrokeredDevice* const device = BrokeredDevice(wanted.device);
  if (device == nullptr || wanted.pool != DefaultPool(driver, wanted.device) ||
      !IsOfPrimary(driver, wanted.stream, wanted.device)) {
    return false;
  }
  // The driver refuses what the captures forbid. A captured stream gets memory of its graph.
  if (IsAnyCaptured()) return false;
  if (!g_reuse_told[wanted.device].load(std::memory_order_acquire)) {
    TellReuse(driver, wanted, device);
  }
  switch (AllocateBehindGate(device, /*of_streams=*/true, [&] {
    return Broker()->stream_memory->allocate(device, wanted.bytes, wanted.stream, address);
  })) {
    case GPUMEM_ACCOUNTANT_OK:
      *result = CUDA_SUCCESS;
      return true;
    case GPUMEM_ACCOUNTANT_UNLIMITED:  // the stream is being captured
      return false;
    default:
      *result = CUDA_ERROR_OUT_OF_MEMORY;
      return true;
  }
}

bool IsOfAnyPrimary(const Driver& driver, CUstream stream) {
  const uint64_t context = ContextFor(driver, stream);
  for (int device = 0; context != 0 && device < DeviceCount(); ++device) {
    if (context == PrimaryOf(device)) return true;
  }
  return false;
}

bool IsStreamOrdered(uint64_t base) {
  return IsBrokered() && Broker()->stream_memory->contains(base) != 0;
}

void AddToAttribute(const Driver& driver, CUmemoryPool pool, CUmemPool_attribute attribute,
                    void* value) {
  if (attribute != CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT &&
      attribute != CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH &&
      attribute != CU_MEMPOOL_ATTR_USED_MEM_CURRENT && attribute != CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    return;
  }
  GpumemBrokeredDevice* const device = BrokeredDevice(DeviceOfDefaultPool(driver, pool));
  if (device == nullptr) return;
  GpumemPoolFigures figures = {};
  Broker()->stream_memory->get_figures(device, &figures);
  cuuint64_t& told = *static_cast<cuuint64_t*>(value);
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) told += figures.reserved;
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) told += figures.reserved_high;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT) told += figures.used;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) told += figures.used_high;
}

void NotePoolAttribute(const Driver& driver, CUmemoryPool pool, CUmemPool_attribute attribute) {
  const int ordinal = DeviceOfDefaultPool(driver, pool);
  GpumemBrokeredDevice* const device = BrokeredDevice(ordinal);
  if (device == nullptr) return;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      Broker()->stream_memory->reset_high(device, /*of_used=*/0);
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      Broker()->stream_memory->reset_high(device, /*of_used=*/1);
      break;
    default:
      g_reuse_told[ordinal].store(false, std::memory_order_release);
      break;
  }
}

size_t TrimBrokeredPool(const Driver& driver, CUmemoryPool pool, size_t least) {
  GpumemBrokeredDevice* const device = BrokeredDevice(DeviceOfDefaultPool(driver, pool));
  if (device == nullptr) return least;
  GpumemPoolFigures figures = {};
  Broker()->stream_memory->trim(device, least);
  Broker()->stream_memory->get_figures(device, &figures);
  return least > figures.reserved ? least - figures.reserved : 0;
}

void ForgetStreamContexts() { g_streams_forgotten.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
