// SPDX-License-Identifier: Apache-2.0
// NVML's figures of a device's memory, told by the tenant's limit.
#pragma once

#include <stdint.h>

// Of NVML's ABI, which the CUDA toolkit's headers may lack.
extern "C" {
struct GpumemNvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct GpumemNvmlMemoryV2 {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
int nvmlDeviceGetMemoryInfo(void* device, GpumemNvmlMemory* memory);
int nvmlDeviceGetMemoryInfo_v2(void* device, GpumemNvmlMemoryV2* memory);
}

namespace gpumem::preload {

// Returns the stub for the address of a function of NVML, or the address itself.
void* NvmlStubFor(void* address);

// Opens the lock in a child after fork(), where the thread that held it is not.
void AbandonNvml();

}  // namespace gpumem::preload
