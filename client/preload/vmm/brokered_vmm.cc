// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <stdlib.h>

#include "client/preload/accounting.h"
#include "client/preload/books.h"
#include "client/preload/brokered_memory.h"
#include "client/preload/gate.h"
#include "client/preload/hash_map.h"
#include "client/preload/lock.h"
#include "client/preload/vmm/brokered_vmm.h"
#include "client/preload/vmm/ranges.h"

namespace gpumem::preload {
namespace {

// The driver's handles are addresses of the process or small numbers. No address begins like this.
constexpr uint64_t kTokenBits = 48;
constexpr uint64_t kTokens = uint64_t{0x6770} << kTokenBits;

// Memory of one cuMemCreate(). Exists until no handle, no mapping and no call uses it.
struct BrokeredMemory {
  GpumemPhysical* physical;
  uint64_t address;  // where libgpumem maps it
  uint64_t token;
  CUmemAllocationProp properties;  // as the program asked
  uint64_t handles;
  uint64_t uses;  // mappings, and calls under way
  bool pinned;
  BrokeredMemory* next;  // in a list of those that are about to be freed
};

// A mapping of the program's.
struct BrokeredMapping {
  uint64_t address;
  uint64_t size;
  uint64_t offset;
  BrokeredMemory* memory;
  bool attached;                // false while it is suspended
  uint8_t access[kMaxDevices];  // CUmemAccess_flags of each device
};

// Not held while the plug-in is called, which may block.
Mutex g_physical_mutex;
HashMap<BrokeredMemory*> g_memory;  // by token
Ranges<BrokeredMapping> g_mapped;
uint64_t g_last_token = 0;

// Requires g_physical_mutex. Returns memory that the program has a handle of, or null.
BrokeredMemory* FindMemory(uint64_t token) {
  BrokeredMemory** const found = g_memory.Get(token);
  return found == nullptr || (*found)->handles == 0 ? nullptr : *found;
}

// Requires g_physical_mutex. Puts memory that is not used any more into the list.
void Collect(BrokeredMemory* memory, BrokeredMemory** dead) {
  if (memory->handles != 0 || memory->uses != 0) return;
  g_memory.Take(memory->token, &memory);
  memory->next = *dead;
  *dead = memory;
}

void FreeAll(BrokeredMemory* dead) {
  while (dead != nullptr) {
    BrokeredMemory* const memory = dead;
    dead = memory->next;
    Broker()->release_physical(memory->physical);
    free(memory);
  }
}

// Keeps the memory of a token while it exists.
class MemoryUse {
 public:
  explicit MemoryUse(uint64_t token) {
    MutexLock lock(&g_physical_mutex);
    memory_ = FindMemory(token);
    if (memory_ != nullptr) ++memory_->uses;
  }
  // Of memory with a use that was counted before.
  explicit MemoryUse(BrokeredMemory* counted) : memory_(counted) {}
  ~MemoryUse() {
    if (memory_ == nullptr) return;
    BrokeredMemory* dead = nullptr;
    {
      MutexLock lock(&g_physical_mutex);
      --memory_->uses;
      Collect(memory_, &dead);
    }
    FreeAll(dead);
  }
  MemoryUse(const MemoryUse&) = delete;
  MemoryUse& operator=(const MemoryUse&) = delete;

  BrokeredMemory* memory() const { return memory_; }

 private:
  BrokeredMemory* memory_;
};

// Returns what the driver says of a handle that does not exist: after fork() something else.
CUresult NoSuchHandle() {
  int count = 0;
  const CUresult result = RealDriver().cuDeviceGetCount(&count);
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult HandleOf(const Driver& driver, const BrokeredMemory& memory,
                  CUmemGenericAllocationHandle* handle) {
  return driver.cuMemRetainAllocationHandle(handle, reinterpret_cast<void*>(memory.address));
}

CUresult MapMemory(const Driver& driver, uint64_t address, uint64_t size, uint64_t offset,
                   const BrokeredMemory& memory, unsigned long long flags) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = HandleOf(driver, memory, &handle);
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuMemMap(address, size, offset, handle, flags);
  // The mapping keeps the memory by itself, and a handle would keep it while it is suspended.
  driver.cuMemRelease(handle);
  return result;
}

CUresult Attach(const Driver& driver, const BrokeredMapping& mapping) {
  CUresult result =
      MapMemory(driver, mapping.address, mapping.size, mapping.offset, *mapping.memory, 0);
  if (result != CUDA_SUCCESS) return result;
  CUmemAccessDesc access[kMaxDevices] = {};
  size_t count = 0;
  for (int device = 0; device < kMaxDevices; ++device) {
    if (mapping.access[device] == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    access[count].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access[count].location.id = device;
    access[count++].flags = static_cast<CUmemAccess_flags>(mapping.access[device]);
  }
  if (count == 0) return CUDA_SUCCESS;
  result = driver.cuMemSetAccess(mapping.address, mapping.size, access, count);
  if (result != CUDA_SUCCESS) driver.cuMemUnmap(mapping.address, mapping.size);
  return result;
}

bool CanBeServed(const Driver& driver, const CUmemAllocationProp& properties, uint64_t size,
                 unsigned long long flags) {
  if (flags != 0 || properties.type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      (properties.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 ||
      properties.win32HandleMetaData != nullptr || properties.allocFlags.compressionType != 0 ||
      properties.allocFlags.usage != 0) {
    return false;
  }
  for (const unsigned char byte : properties.allocFlags.reserved) {
    if (byte != 0) return false;
  }
  // The driver answers to sizes that are not possible.
  size_t granularity = 0;
  return size != 0 &&
         driver.cuMemGetAllocationGranularity(&granularity, &properties,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
         granularity != 0 && size % granularity == 0;
}

void Pin(BrokeredMemory* memory) {
  {
    MutexLock lock(&g_physical_mutex);
    if (memory->pinned) return;
    memory->pinned = true;
  }
  Broker()->pin_physical(memory->physical);
}

}  // namespace

bool IsToken(CUmemGenericAllocationHandle handle) { return handle >> kTokenBits == 0x6770; }

bool CreatePhysical(const Entry& entry, CUmemGenericAllocationHandle* handle, uint64_t size,
                    const CUmemAllocationProp* properties, unsigned long long flags,
                    CUresult* result) {
  if (!entry.outermost || handle == nullptr ||
      !CanBeServed(entry.driver, *properties, size, flags) ||
      OpenAccounting(properties->location.id) != CUDA_SUCCESS) {
    return false;
  }
  GpumemBrokeredDevice* const device = BrokeredDevice(properties->location.id);
  if (device == nullptr) return false;
  *result = CUDA_ERROR_OUT_OF_MEMORY;
  BrokeredMemory* const memory = static_cast<BrokeredMemory*>(calloc(1, sizeof(BrokeredMemory)));
  if (memory == nullptr) return true;
  const auto create = [&](int may_wait) {
    return Broker()->create_physical(device, size, may_wait, &memory->physical, &memory->address);
  };
  int answer;
  do {
    {
      const GateHold hold;
      answer = create(0);
    }
    if (answer == GPUMEM_ACCOUNTANT_NO_MEMORY) answer = create(1);
  } while (answer == GPUMEM_ACCOUNTANT_SUSPENDED);
  if (answer != GPUMEM_ACCOUNTANT_OK) {
    free(memory);
    return answer != GPUMEM_ACCOUNTANT_UNLIMITED;
  }
  memory->properties = *properties;
  memory->handles = 1;
  BrokeredMemory* dead = memory;
  {
    MutexLock lock(&g_physical_mutex);
    memory->token = kTokens | ++g_last_token;
    if (g_memory.Put(memory->token, memory)) dead = nullptr;
  }
  if (dead != nullptr) {
    const GateHold hold;
    FreeAll(dead);
    return true;
  }
  *handle = memory->token;
  *result = CUDA_SUCCESS;
  return true;
}

CUresult ReleasePhysical(CUmemGenericAllocationHandle token) {
  const GateHold hold;
  BrokeredMemory* dead = nullptr;
  {
    MutexLock lock(&g_physical_mutex);
    BrokeredMemory* const memory = FindMemory(token);
    if (memory == nullptr) return NoSuchHandle();
    --memory->handles;
    Collect(memory, &dead);
  }
  FreeAll(dead);
  return CUDA_SUCCESS;
}

CUresult MapPhysical(const Driver& driver, CUdeviceptr address, uint64_t size, uint64_t offset,
                     CUmemGenericAllocationHandle token, unsigned long long flags) {
  const GateHold hold;
  MutexLock lock(&g_physical_mutex);
  BrokeredMemory* const memory = FindMemory(token);
  if (memory == nullptr) return NoSuchHandle();
  if (!g_mapped.MakeRoom()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = MapMemory(driver, address, size, offset, *memory, flags);
  if (result != CUDA_SUCCESS) return result;
  g_mapped.Add({address, size, offset, memory, /*attached=*/true, {}});
  ++memory->uses;
  return CUDA_SUCCESS;
}

CUresult PropertiesOfPhysical(CUmemAllocationProp* properties, CUmemGenericAllocationHandle token) {
  MutexLock lock(&g_physical_mutex);
  const BrokeredMemory* const memory = FindMemory(token);
  if (memory == nullptr) return NoSuchHandle();
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = memory->properties;
  return CUDA_SUCCESS;
}

CUresult ExportPhysical(int* descriptor, CUmemGenericAllocationHandle token,
                        CUmemAllocationHandleType type, unsigned long long flags) {
  const GateHold hold;
  const MemoryUse use(token);
  if (use.memory() == nullptr) return NoSuchHandle();
  // Not of the driver's handle, which is an imported one: it refuses these.
  if (descriptor == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (use.memory()->properties.requestedHandleTypes & type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Pin(use.memory());
  return Broker()->export_physical(use.memory()->physical, descriptor) != 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_OPERATING_SYSTEM;
}

bool RetainPhysical(uint64_t address, CUmemGenericAllocationHandle* token) {
  MutexLock lock(&g_physical_mutex);
  const BrokeredMapping* const mapping = g_mapped.At(address);
  if (mapping == nullptr) return false;
  ++mapping->memory->handles;
  *token = mapping->memory->token;
  return true;
}

void ForgetPhysicalMappings(uint64_t address, uint64_t size) {
  BrokeredMemory* dead = nullptr;
  {
    MutexLock lock(&g_physical_mutex);
    g_mapped.Remove(address, size, [&](const BrokeredMapping& mapping) {
      --mapping.memory->uses;
      Collect(mapping.memory, &dead);
    });
  }
  FreeAll(dead);
}

void NoteAccess(uint64_t address, uint64_t size, const CUmemAccessDesc* access, size_t count) {
  bool is_elsewhere = false;
  {
    MutexLock lock(&g_physical_mutex);
    for (size_t i = 0; i < count; ++i) {
      const CUmemLocation& location = access[i].location;
      if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 ||
          location.id >= kMaxDevices) {
        is_elsewhere = true;
        continue;
      }
      g_mapped.ForEach(address, size, [&](BrokeredMapping& mapping) {
        mapping.access[location.id] = static_cast<uint8_t>(access[i].flags);
      });
    }
  }
  // Such access could not be given back after a suspension.
  if (is_elsewhere) PinMappings(address, size);
}

void PinPhysical(CUmemGenericAllocationHandle token) {
  const MemoryUse use(token);
  if (use.memory() != nullptr) Pin(use.memory());
}

void PinMappings(uint64_t address, uint64_t size) {
  while (true) {
    BrokeredMemory* next = nullptr;
    {
      MutexLock lock(&g_physical_mutex);
      g_mapped.ForEach(address, size, [&](const BrokeredMapping& mapping) {
        if (!mapping.memory->pinned) next = mapping.memory;
      });
      if (next == nullptr) return;
      ++next->uses;
    }
    const MemoryUse use(next);
    Pin(next);
  }
}

CUresult DriverHandle(const Driver& driver, CUmemGenericAllocationHandle token,
                      CUmemGenericAllocationHandle* handle) {
  const MemoryUse use(token);
  if (use.memory() == nullptr) return NoSuchHandle();
  return HandleOf(driver, *use.memory(), handle);
}

bool HandleTypesAt(uint64_t address, int* types) {
  MutexLock lock(&g_physical_mutex);
  const BrokeredMapping* const mapping = g_mapped.At(address);
  if (mapping == nullptr) return false;
  *types = mapping->memory->properties.requestedHandleTypes;
  return true;
}

int DetachPhysical() {
  const Driver& driver = RealDriver();
  if (SynchronizeContexts(driver) != CUDA_SUCCESS) return 0;
  const RelaxedCapture relaxed(driver);
  MutexLock lock(&g_physical_mutex);
  for (size_t i = 0; i < g_mapped.count; ++i) {
    BrokeredMapping& mapping = g_mapped.items[i];
    if (!mapping.attached || mapping.memory->pinned) continue;
    if (driver.cuMemUnmap(mapping.address, mapping.size) != CUDA_SUCCESS) return 0;
    mapping.attached = false;
  }
  return 1;
}

int AttachPhysical() {
  const Driver& driver = RealDriver();
  const RelaxedCapture relaxed(driver);
  MutexLock lock(&g_physical_mutex);
  for (size_t i = 0; i < g_mapped.count; ++i) {
    BrokeredMapping& mapping = g_mapped.items[i];
    if (mapping.attached) continue;
    if (Attach(driver, mapping) != CUDA_SUCCESS) return 0;
    mapping.attached = true;
  }
  return 1;
}

void AbandonPhysical() {
  g_physical_mutex.Reset();
  g_memory.Abandon();
  g_mapped = {};
}

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
