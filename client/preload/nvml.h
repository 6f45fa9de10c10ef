// SPDX-License-Identifier: Apache-2.0
// NVML's figures of a device's memory, told by the tenant's limit, and of this process's, to which
// NVML does not count memory of gpumem.
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
struct GpumemNvmlProcess {
  unsigned int pid;
  unsigned long long used;  // all bits set: not known
};
struct GpumemNvmlProcessV2 {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
int nvmlDeviceGetMemoryInfo(void* device, GpumemNvmlMemory* memory);
int nvmlDeviceGetMemoryInfo_v2(void* device, GpumemNvmlMemoryV2* memory);
// `count`: of entries that fit, then of those written.
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned int* count,
                                         GpumemNvmlProcess* processes);
int nvmlDeviceGetComputeRunningProcesses_v2(void* device, unsigned int* count,
                                            GpumemNvmlProcessV2* processes);
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned int* count,
                                            GpumemNvmlProcessV2* processes);
}

namespace gpumem::preload {

// Returns the stub for the address of a function of NVML, or the address itself.
void* NvmlStubFor(void* address);

// Opens the lock in a child after fork(), where the thread that held it is not.
void AbandonNvml();

}  // namespace gpumem::preload
