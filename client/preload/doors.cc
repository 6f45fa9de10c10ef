// SPDX-License-Identifier: Apache-2.0
// The ways by which a program gets the driver's functions: dlsym(), dlvsym() and
// cuGetProcAddress(). The third, exported symbols, needs no code: a preloaded library comes first.
//
// A fourth way in, for programs that cannot take a preload, would begin here: with
// CUDA_INJECTION64_PATH the driver calls InitializeInjection() of a library inside cuInit(). That
// function would write jumps to the stubs of functions.h into the real functions, whose beginnings
// it has moved, and bind Driver to what it has moved.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <dlfcn.h>
#include <string.h>

#include "client/preload/driver.h"
#include "client/preload/elf.h"
#include "client/preload/nvml.h"

namespace gpumem::preload {
namespace {

// What the entry points below do next: jump to `jump`, or if that is null, return `answer`.
struct Decision {
  void* answer;
  void* jump;
};

// True if the name can be one of ours: everything else is left alone at once.
bool MayBeOurs(const char* name) { return HasPrefix(name, "cu") || HasPrefix(name, "nvml"); }

void* Translate(const char* name, void* address) {
  return HasPrefix(name, "cu") ? StubFor(address) : NvmlStubFor(address);
}

// Decides about a search of the whole program, for a name that this library exports, too.
//
// The C library looks at the address that it returns to, so the search proper has to be a jump.
Decision DecideGlobal(void* handle, const char* name, const void* caller, void* real) {
  auto search = reinterpret_cast<void* (*)(void*, const char*)>(real);
  if (handle == RTLD_NEXT) {
    // A library behind the preload would find the driver itself.
    LoadedObject next;
    if (FindNextDefining(caller, name, &next) && HasPrefix(BaseName(next.path), "libcuda.so")) {
      void* found = search(RTLD_NEXT, name);
      if (found != nullptr) return {Translate(name, found), nullptr};
    }
    return {nullptr, real};
  }
  // Without a driver in the program its names are not defined, although the preload exports them.
  if (!DriverIsLoaded()) return {search(RTLD_NEXT, name), nullptr};
  return {nullptr, real};
}

}  // namespace

extern "C" {

__attribute__((visibility("hidden"))) Decision GpumemPreloadDlsym(void* handle, const char* name,
                                                                  const void* caller) {
  void* real = RealDlsym();
  if (real == nullptr) return {nullptr, nullptr};
  if (name == nullptr || !MayBeOurs(name) || IsInDriver(caller)) return {nullptr, real};
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) {
    if (!HasStub(name)) return {nullptr, real};
    return DecideGlobal(handle, name, caller, real);
  }
  void* found = reinterpret_cast<void* (*)(void*, const char*)>(real)(handle, name);
  return {Translate(name, found), nullptr};
}

__attribute__((visibility("hidden"))) Decision GpumemPreloadDlvsym(void* handle, const char* name,
                                                                   const char* version,
                                                                   const void* caller) {
  void* real = RealDlvsym();
  if (real == nullptr) return {nullptr, nullptr};
  if (name == nullptr || !MayBeOurs(name) || handle == RTLD_NEXT || handle == RTLD_DEFAULT ||
      IsInDriver(caller)) {
    return {nullptr, real};
  }
  auto search = reinterpret_cast<void* (*)(void*, const char*, const char*)>(real);
  return {Translate(name, search(handle, name, version)), nullptr};
}

}  // extern "C"

// Keep the arguments, ask for a decision with the address of the caller, and follow it. In
// assembly, because only a jump keeps the caller's address for the C library.
#if defined(__x86_64__)
#define GPUMEM_PRELOAD_DOOR(name, decide, caller_register) \
  asm(".text\n"                                            \
      ".globl " #name                                      \
      "\n"                                                 \
      ".type " #name ", @function\n" #name                 \
      ":\n"                                                \
      ".cfi_startproc\n"                                   \
      "  endbr64\n"                                        \
      "  pushq %rdi\n"                                     \
      "  .cfi_adjust_cfa_offset 8\n"                       \
      "  pushq %rsi\n"                                     \
      "  .cfi_adjust_cfa_offset 8\n"                       \
      "  pushq %rdx\n"                                     \
      "  .cfi_adjust_cfa_offset 8\n"                       \
      "  movq 24(%rsp), %" caller_register                 \
      "\n"                                                 \
      "  call " #decide                                    \
      "\n"                                                 \
      "  movq %rdx, %r11\n"                                \
      "  popq %rdx\n"                                      \
      "  .cfi_adjust_cfa_offset -8\n"                      \
      "  popq %rsi\n"                                      \
      "  .cfi_adjust_cfa_offset -8\n"                      \
      "  popq %rdi\n"                                      \
      "  .cfi_adjust_cfa_offset -8\n"                      \
      "  testq %r11, %r11\n"                               \
      "  jz 1f\n"                                          \
      "  jmpq *%r11\n"                                     \
      "1: ret\n"                                           \
      ".cfi_endproc\n"                                     \
      ".size " #name ", .-" #name "\n");
GPUMEM_PRELOAD_DOOR(dlsym, GpumemPreloadDlsym, "rdx")
GPUMEM_PRELOAD_DOOR(dlvsym, GpumemPreloadDlvsym, "rcx")
#elif defined(__aarch64__)
#define GPUMEM_PRELOAD_DOOR(name, decide, caller_register) \
  asm(".text\n"                                            \
      ".globl " #name                                      \
      "\n"                                                 \
      ".type " #name ", @function\n" #name                 \
      ":\n"                                                \
      "  stp x29, x30, [sp, #-48]!\n"                      \
      "  mov x29, sp\n"                                    \
      "  stp x0, x1, [sp, #16]\n"                          \
      "  str x2, [sp, #32]\n"                              \
      "  mov " caller_register                             \
      ", x30\n"                                            \
      "  bl " #decide                                      \
      "\n"                                                 \
      "  mov x9, x0\n"                                     \
      "  mov x16, x1\n"                                    \
      "  ldp x0, x1, [sp, #16]\n"                          \
      "  ldr x2, [sp, #32]\n"                              \
      "  ldp x29, x30, [sp], #48\n"                        \
      "  cbz x16, 1f\n"                                    \
      "  br x16\n"                                         \
      "1: mov x0, x9\n"                                    \
      "  ret\n"                                            \
      ".size " #name ", .-" #name "\n");
GPUMEM_PRELOAD_DOOR(dlsym, GpumemPreloadDlsym, "x2")
GPUMEM_PRELOAD_DOOR(dlvsym, GpumemPreloadDlvsym, "x3")
#else
#error "write the entry points of dlsym() and dlvsym() for this processor"
#endif

}  // namespace gpumem::preload

using gpumem::preload::Entry;
using gpumem::preload::IsInDriver;
using gpumem::preload::StubFor;

extern "C" {

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion,
                                  cuuint64_t flags) {
  Entry entry;
  CUresult result = entry.driver.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
  if (result == CUDA_SUCCESS && pfn != nullptr && !IsInDriver(__builtin_return_address(0))) {
    *pfn = StubFor(*pfn);
  }
  return result;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion,
                                     cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* symbolStatus) {
  Entry entry;
  CUresult result = entry.driver.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
  if (result == CUDA_SUCCESS && pfn != nullptr && !IsInDriver(__builtin_return_address(0))) {
    *pfn = StubFor(*pfn);
  }
  return result;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
