// SPDX-License-Identifier: Apache-2.0
// Broker mode: memory of cuMemAllocAsync() from a device's default pool is gpumem's
// (brokered/stream_memory.h).
//
// What cannot be gpumem's is the driver's, and charged, as in account mode: memory of other pools,
// and of streams that are being captured or belong to no primary context.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/preload/accounting.h"
#include "client/preload/brokered_memory.h"
#include "client/preload/driver.h"
#include "client/preload/gate.h"

namespace gpumem::preload {

// Allocates by `allocate`, which returns a GpumemAnswer and may wait. So it is called outside the
// gate, and again if the process was suspended meanwhile.
template <typename Allocate>
int AllocateBehindGate(GpumemBrokeredDevice* device, bool of_streams, Allocate allocate) {
  while (true) {
    {
      const GateHold hold;
      Broker()->prepare(device, of_streams);
    }
    const int answer = allocate();
    if (answer != GPUMEM_ACCOUNTANT_SUSPENDED) return answer;
  }
}

struct StreamAllocation {
  int device;         // whose pools it is about
  CUmemoryPool pool;  // not null
  CUstream stream;    // not null: default streams by their names
  uint64_t bytes;
};

// Each of these does nothing and returns false where the memory is not gpumem's. `result` is what
// the program gets.
bool AllocateBrokered(const Entry& entry, const StreamAllocation& wanted, uint64_t* address,
                      CUresult* result);

// True if a stream, named as above, belongs to a primary context.
bool IsOfAnyPrimary(const Driver& driver, CUstream stream);

// True if a block of gpumem that begins at an address is of AllocateBrokered().
bool IsStreamOrdered(uint64_t base);

// Adds gpumem's part to the driver's figure of a pool.
void AddToAttribute(const Driver& driver, CUmemoryPool pool, CUmemPool_attribute attribute,
                    void* value);
// The program has set an attribute of a pool.
void NotePoolAttribute(const Driver& driver, CUmemoryPool pool, CUmemPool_attribute attribute);

// Gives back what the pool does not use, as long as `least` bytes stay. Returns how many of these
// the driver's part of the pool has to keep.
size_t TrimBrokeredPool(const Driver& driver, CUmemoryPool pool, size_t least);

// A stream's handle, or that of its context, may come again for another one.
void ForgetStreamContexts();

}  // namespace gpumem::preload
