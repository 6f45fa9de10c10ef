// SPDX-License-Identifier: Apache-2.0
// Broker mode: memory of cuMemAlloc() and cuMemAllocPitch() is gpumem's (brokered_memory.h). That
// of cuMemAllocAsync() is, too (brokered/pool.h).
//
// What cannot be gpumem's is the driver's, and charged, as in account mode: memory in contexts that
// are not primary ones, and while streams are being captured.
#pragma once

#include <stdint.h>

#include "client/preload/driver.h"

namespace gpumem::preload {

// True in broker mode, from the process's first use of device memory on.
bool IsBrokered();

// Each of these does nothing and returns false where the memory is not gpumem's. `result` is what
// the program gets.
bool AllocateBrokered(const Entry& entry, uint64_t bytes, uint64_t* address, CUresult* result);
bool FreeBrokered(const Entry& entry, uint64_t address, CUresult* result);
bool FreeBrokered(const Entry& entry, uint64_t address, CUstream stream, CUresult* result);

// A stream is about to be destroyed.
void ForgetStream(CUstream stream);

// Returns the block that an address lies in.
bool FindBrokered(uint64_t address, uint64_t* base, uint64_t* bytes);
// True if an address lies in a block.
bool IsInBrokered(uint64_t address);

// Returns what the pool of a device holds without use, and gives that back: true if it was
// anything.
uint64_t UnusedBrokered(int device);
bool TrimBrokered(int device);
// Returns all that it holds.
uint64_t HeldBrokered(int device);

// Frees all of a device, before its primary context goes. `may_wait` false: does nothing while the
// memory is suspended, so that a suspended process can end.
void DropBrokered(int device, bool may_wait);

// True if any stream is being captured, or this one is.
bool IsAnyCaptured();
bool IsCaptured(const Driver& driver, CUstream stream);
// Captures of streams begin, and end. Frees that had to wait for the end are done then.
void CaptureBegins();
void CaptureEnds();
// A capture has begun on a stream. EndsCapture() is true if one has, and it is about to end.
void NoteCaptureOf(CUstream stream);
bool EndsCapture(CUstream stream);
// Destroys a stream when no capture is under way any more. False if none is.
bool DestroyAfterCaptures(CUstream stream);

void AbandonBrokered();

}  // namespace gpumem::preload
