// SPDX-License-Identifier: Apache-2.0
// The driver's functions that use device memory: each inside the gate (gate.h), and otherwise as it
// is.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/driver.h"
#include "client/preload/gate.h"

namespace gpumem::preload {
namespace {

template <auto kFunction>
struct Gated;

// With the arguments of the driver's function, which cuda.h declares.
template <typename... Arguments, CUresult (*Driver::*kFunction)(Arguments...)>
struct Gated<kFunction> {
  static CUresult CUDAAPI Call(Arguments... arguments) {
    const GateHold hold;
    return (RealDriver().*kFunction)(arguments...);
  }
};

}  // namespace
}  // namespace gpumem::preload

// Defines a function of the driver's name as a jump to Gated::Call(). C++ cannot say that without
// the arguments, which would be a list of 130 signatures.
#if defined(__x86_64__)
#define GPUMEM_PRELOAD_JUMP(name) "  endbr64\n  jmpq *GpumemPreloadGated_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define GPUMEM_PRELOAD_JUMP(name)                    \
  "  hint #34\n"                                     \
  "  adrp x16, GpumemPreloadGated_" #name            \
  "\n"                                               \
  "  ldr x16, [x16, :lo12:GpumemPreloadGated_" #name \
  "]\n"                                              \
  "  br x16\n"
#else
#error "write the jump for this processor"
#endif
#define GPUMEM_PRELOAD_DEFINE(name)                                                              \
  extern "C" __attribute__((visibility("hidden"), used)) void* const GpumemPreloadGated_##name = \
      reinterpret_cast<void*>(&gpumem::preload::Gated<&gpumem::preload::Driver::name>::Call);    \
  asm(".text\n"                                                                                  \
      ".globl " #name                                                                            \
      "\n"                                                                                       \
      ".type " #name ", @function\n" #name ":\n" GPUMEM_PRELOAD_JUMP(name) ".size " #name        \
                                                                           ", .-" #name "\n");
GPUMEM_PRELOAD_GATE(GPUMEM_PRELOAD_DEFINE)
GPUMEM_PRELOAD_GATE_13(GPUMEM_PRELOAD_DEFINE)
#undef GPUMEM_PRELOAD_DEFINE

#endif  // GPUMEM_PRELOAD_BUILT
