/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between libgpumem-preload.so and the library that reads machine code.
 *
 * A program that cannot take a preload gets the library by CUDA_INJECTION64_PATH. Only then the
 * library loads libgpumem-relocator.so, which needs a decoder of instructions.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A function in memory. It must not be executed by another thread meanwhile. */
struct GpumemFunction {
  const uint8_t* code;
  size_t size;         /* by its symbol */
  size_t readable;     /* bytes that can be read from `code` on; at least `size` */
  uint8_t* trampoline; /* is written here, and runs here */
  size_t capacity;     /* bytes that can be written there */
};

struct GpumemRelocation {
  size_t kept;      /* bytes of the function's entry that stay: endbr64 */
  size_t displaced; /* bytes after these that a jump may be written over; at least 5 */
  size_t written;   /* bytes of the trampoline */
};

/* Writes a trampoline, which does what the function did: it runs the displaced instructions, and
 * jumps to those behind them. Fills `result` and returns null; or returns why the function cannot
 * be replaced, as words that follow its name. Thread-safe; keeps nothing. */
const char* gpumem_relocate(const struct GpumemFunction* function, struct GpumemRelocation* result);

#ifdef __cplusplus
}
#endif
