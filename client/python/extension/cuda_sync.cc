// SPDX-License-Identifier: Apache-2.0
#include "client/python/extension/cuda_sync.h"

#include <dlfcn.h>

namespace gpumem::python {
namespace {

// Functions by the names and types of cuda.h; nothing else of it is needed.
struct Driver {
  int (*device_count)(int*) = nullptr;
  int (*context_state)(int, unsigned*, int*) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*release)(int) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*synchronize)() = nullptr;
  bool found = false;
};

template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

// Finds the driver if the process has loaded it. It is never unloaded, so the functions stay valid.
Driver FindDriver() {
  Driver driver;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return driver;
  driver.found = Find(library, "cuDeviceGetCount", driver.device_count) &&
                 Find(library, "cuDevicePrimaryCtxGetState", driver.context_state) &&
                 Find(library, "cuDevicePrimaryCtxRetain", driver.retain) &&
                 Find(library, "cuDevicePrimaryCtxRelease_v2", driver.release) &&
                 Find(library, "cuCtxPushCurrent_v2", driver.push) &&
                 Find(library, "cuCtxPopCurrent_v2", driver.pop) &&
                 Find(library, "cuCtxSynchronize", driver.synchronize);
  return driver;
}

}  // namespace

void SynchronizeCuda() {
  const Driver driver = FindDriver();
  int devices = 0;
  if (!driver.found || driver.device_count(&devices) != 0) return;
  for (int device = 0; device < devices; ++device) {
    unsigned flags = 0;
    int active = 0;
    if (driver.context_state(device, &flags, &active) != 0 || active == 0) continue;
    void* context = nullptr;
    if (driver.retain(&context, device) != 0) continue;
    if (driver.push(context) == 0) {
      driver.synchronize();
      driver.pop(&context);
    }
    driver.release(device);
  }
}

}  // namespace gpumem::python
