// SPDX-License-Identifier: Apache-2.0
// Writes into code that is loaded, while other threads may run other parts of it.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace gpumem::preload {

// Returns writable memory of `bytes`, all of which is within the reach of 32-bit distances from all
// of [begin, end). Null if there is none.
uint8_t* AllocateNear(uintptr_t begin, uintptr_t end, size_t bytes);

// Makes memory of AllocateNear() executable and no longer writable.
bool MakeExecutable(uint8_t* memory, size_t bytes);

// Gives back memory of AllocateNear().
void FreeNear(uint8_t* memory, size_t bytes);

// Bytes to write over code.
struct Edit {
  uint8_t* at = nullptr;
  uint8_t bytes[8] = {};
  size_t size = 0;
};

enum class Edited { kAll, kNone, kSome };

// Writes the edits, which do not overlap, into the code of loaded objects. No memory is writable
// and executable at any time. The pages keep their protection, and become private memory of the
// process.
//
// Each page is replaced by an edited copy, in one step of the kernel. Another thread therefore runs
// the old code of the page or the new code, and finds the page at any time. A thread must not be
// within the bytes of an edit, but may be at the first one.
Edited EditCode(const Edit* edits, size_t count);

}  // namespace gpumem::preload
