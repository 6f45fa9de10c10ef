// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include <atomic>

#include "client/preload/driver.h"
#include "client/preload/elf.h"
#include "client/preload/hash_map.h"
#include "client/preload/lock.h"
#include "client/preload/nvml.h"

namespace gpumem::preload {

constinit thread_local int Entry::depth_ = 0;

namespace {

// Addresses of this library's own definitions, as it is linked with -Bsymbolic.
#define GPUMEM_PRELOAD_STUB(name) {#name, reinterpret_cast<void*>(&::name), offsetof(Driver, name)},
const Stub kStubs[] = {GPUMEM_PRELOAD_STUBS(GPUMEM_PRELOAD_STUB)};
#undef GPUMEM_PRELOAD_STUB

// Called in place of functions with any arguments, which are in registers that it does not look at.
CUresult NotSupported() { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult NoDevice() { return CUDA_ERROR_NO_DEVICE; }

Driver g_driver;
Driver g_no_driver;
HashMap<void*> g_stub_of;
LoadedObject g_object;
Mutex g_mutex;  // held while g_driver is filled
std::atomic<bool> g_ready{false};
std::atomic<bool> g_absent{false};

template <typename Function>
void Bind(Function* function, const char* name) {
  void* found = FindFunction(g_object, name);
  *function =
      reinterpret_cast<Function>(found != nullptr ? found : reinterpret_cast<void*>(&NotSupported));
}

// Keeps libcuda loaded for ever: its addresses stay in the tables. False if it is not loaded. Must
// not be called with a mutex held: another thread may hold the loader's lock, and run a constructor
// that calls dlsym().
bool PinLoaded() {
  LoadedObject object;
  if (!FindLoadedObject("libcuda.so", &object)) return false;
  OpenLibrary(object.path, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  return true;
}

// Requires g_mutex, and PinLoaded() before. False if libcuda is not loaded.
bool BindLoaded() {
  if (g_ready.load(std::memory_order_acquire)) return true;
  if (!FindLoadedObject("libcuda.so", &g_object)) return false;
#define GPUMEM_PRELOAD_BIND(name) Bind(&g_driver.name, #name);
  GPUMEM_PRELOAD_STUBS(GPUMEM_PRELOAD_BIND)
  GPUMEM_PRELOAD_CALLED(GPUMEM_PRELOAD_BIND)
#undef GPUMEM_PRELOAD_BIND
  for (const Stub& stub : kStubs) {
    void* real = FindFunction(g_object, stub.name);
    // Where two names have one address, the first stub serves both.
    if (real == nullptr || g_stub_of.Get(reinterpret_cast<uint64_t>(real)) != nullptr) continue;
    g_stub_of.Put(reinterpret_cast<uint64_t>(real), stub.function);
  }
  g_ready.store(true, std::memory_order_release);
  return true;
}

const Driver& SlowDriver() {
  // Not with the mutex held: constructors of libcuda may call dlsym().
  if (!DriverIsLoaded() && !g_absent.load(std::memory_order_acquire)) {
    OpenLibrary("libcuda.so.1", RTLD_NOW);
  }
  PinLoaded();
  MutexLock lock(&g_mutex);
  if (BindLoaded()) return g_driver;
  if (!g_absent.load(std::memory_order_relaxed)) {
#define GPUMEM_PRELOAD_BIND(name) \
  g_no_driver.name = reinterpret_cast<decltype(&::name)>(reinterpret_cast<void*>(&NoDevice));
    GPUMEM_PRELOAD_STUBS(GPUMEM_PRELOAD_BIND)
    GPUMEM_PRELOAD_CALLED(GPUMEM_PRELOAD_BIND)
#undef GPUMEM_PRELOAD_BIND
    g_absent.store(true, std::memory_order_release);
  }
  return g_no_driver;
}

// Finds a function of the C library, which has had two names for the library of dlsym().
void* FindInLibc(const char* name) {
  for (const char* library : {"libc.so.6", "libdl.so.2"}) {
    LoadedObject object;
    if (!FindLoadedObject(library, &object)) continue;
    if (void* found = FindFunction(object, name)) return found;
  }
  return nullptr;
}

void* Cached(std::atomic<void*>* cache, const char* name) {
  void* found = cache->load(std::memory_order_relaxed);
  if (found == nullptr) {
    found = FindInLibc(name);
    cache->store(found, std::memory_order_relaxed);
  }
  return found;
}

// The last address that was found to be outside: a runtime asks 440 times from one place.
std::atomic<const void*> g_outside{nullptr};

std::atomic<void*> g_dlsym{nullptr};
std::atomic<void*> g_dlvsym{nullptr};
std::atomic<void*> g_dlopen{nullptr};

}  // namespace

const Driver& RealDriver() {
  if (g_ready.load(std::memory_order_acquire)) return g_driver;
  return SlowDriver();
}

const Stub* Stubs(size_t* count) {
  *count = sizeof(kStubs) / sizeof(kStubs[0]);
  return kStubs;
}

const LoadedObject* DriverObject() {
  RealDriver();
  return g_ready.load(std::memory_order_acquire) ? &g_object : nullptr;
}

void Rebind(const Stub& stub, void* function) {
  // Another thread may call through it: both functions do the same.
  void** member = reinterpret_cast<void**>(reinterpret_cast<char*>(&g_driver) + stub.member);
  __atomic_store_n(member, function, __ATOMIC_RELEASE);
}

bool DriverIsLoaded() {
  if (g_ready.load(std::memory_order_acquire)) return true;
  LoadedObject object;
  return FindLoadedObject("libcuda.so", &object);
}

void* StubFor(void* address) {
  if (address == nullptr) return nullptr;
  if (!g_ready.load(std::memory_order_acquire)) {
    if (!PinLoaded()) return address;
    MutexLock lock(&g_mutex);
    if (!BindLoaded()) return address;
  }
  void** stub = g_stub_of.Get(reinterpret_cast<uint64_t>(address));
  return stub == nullptr ? address : *stub;
}

bool HasStub(const char* name) {
  for (const Stub& stub : kStubs) {
    if (strcmp(stub.name, name) == 0) return true;
  }
  return false;
}

bool IsInDriver(const void* address) {
  if (g_ready.load(std::memory_order_acquire) && g_object.contains(address)) return true;
  if (g_outside.load(std::memory_order_relaxed) == address) return false;
  LoadedObject object;
  if (FindObjectOf(address, &object)) {
    const char* name = BaseName(object.path);
    for (const char* own : {"libcuda.so", "libcudadebugger.so", "libnvidia-", "libgpumem"}) {
      if (HasPrefix(name, own)) return true;
    }
  }
  g_outside.store(address, std::memory_order_relaxed);
  return false;
}

void* RealDlsym() { return Cached(&g_dlsym, "dlsym"); }
void* RealDlvsym() { return Cached(&g_dlvsym, "dlvsym"); }

void* OpenLibrary(const char* path, int flags) {
  auto open = reinterpret_cast<void* (*)(const char*, int)>(Cached(&g_dlopen, "dlopen"));
  return open == nullptr ? nullptr : open(path, flags);
}

bool AbandonDriver() {
  g_mutex.Reset();
  if (g_ready.load(std::memory_order_relaxed)) return true;
  g_stub_of.Abandon();  // it may be half filled
  return g_absent.load(std::memory_order_relaxed);
}

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
