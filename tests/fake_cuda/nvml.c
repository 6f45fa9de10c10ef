/* SPDX-License-Identifier: Apache-2.0 */
/* A libnvidia-ml.so.1 that knows the devices of the fake driver, and nothing of their use.
 * FAKE_CUDA_DEVICES and FAKE_CUDA_MEMORY as for that. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};

struct Process {
  unsigned int pid;
  unsigned long long used;
};
struct ProcessV2 {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
};

/* Handles are ordinals, counted from 1. */
typedef void* Device;

#define RESERVED (1u << 20)

static unsigned long long number(const char* name, unsigned long long standard) {
  const char* text = getenv(name);
  return text == NULL ? standard : strtoull(text, NULL, 10);
}

void* fake_nvml_find(const char* name);
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned int* count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device);
int nvmlDeviceGetUUID(Device device, char* uuid, unsigned int length);
int nvmlDeviceGetMemoryInfo(Device device, struct Memory* memory);
int nvmlDeviceGetMemoryInfo_v2(Device device, struct MemoryV2* memory);
int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned int* count,
                                         struct Process* processes);
int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned int* count,
                                            struct ProcessV2* processes);
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned int* count,
                                            struct ProcessV2* processes);

/* What a library of the driver finds in the driver. */
void* fake_nvml_find(const char* name) {
  void* found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  /* Work after the call, so that it is no jump. */
  return found == (void*)&fake_nvml_find ? NULL : found;
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = (unsigned int)number("FAKE_CUDA_DEVICES", 1);
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
  if (index >= number("FAKE_CUDA_DEVICES", 1)) return 2;
  *device = (Device)(uintptr_t)(index + 1);
  return 0;
}

/* The bytes are those of cuDeviceGetUuid(): "fake-cuda-gpu-0" and the ordinal. */
int nvmlDeviceGetUUID(Device device, char* uuid, unsigned int length) {
  int written = snprintf(uuid, length, "GPU-66616b65-2d63-7564-612d-6770752d30%02x",
                         (unsigned int)('0' + (uintptr_t)device - 1));
  return written < (int)length ? 0 : 7;
}

int nvmlDeviceGetMemoryInfo(Device device, struct Memory* memory) {
  (void)device;
  memory->total = number("FAKE_CUDA_MEMORY", 1ull << 30);
  memory->used = RESERVED;
  memory->free = memory->total - memory->used;
  return 0;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, struct MemoryV2* memory) {
  (void)device;
  memory->total = number("FAKE_CUDA_MEMORY", 1ull << 30);
  memory->reserved = RESERVED;
  memory->used = 0;
  memory->free = memory->total - RESERVED;
  return 0;
}

/* On each device: init with 1,000 bytes, one whose memory is not known, and the caller with 2,000.
 */
#define LIST_PROCESSES                                                             \
  (void)device;                                                                    \
  unsigned int room = *count;                                                      \
  *count = 3;                                                                      \
  if (room < *count) return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */                  \
  for (unsigned int i = 0; i < *count; ++i) {                                      \
    processes[i].pid = i == 0 ? 1 : (unsigned int)(i == 1 ? getppid() : getpid()); \
    processes[i].used = i == 1 ? ~0ull : i == 0 ? 1000 : 2000;                     \
  }                                                                                \
  return 0;

int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned int* count,
                                         struct Process* processes) {
  LIST_PROCESSES
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned int* count,
                                            struct ProcessV2* processes) {
  LIST_PROCESSES
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned int* count,
                                            struct ProcessV2* processes) {
  LIST_PROCESSES
}
