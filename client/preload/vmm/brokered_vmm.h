// SPDX-License-Identifier: Apache-2.0
// Broker mode: physical memory of cuMemCreate() is gpumem's (brokered_memory.h).
//
// The program's handle is a token, which the driver does not know. libgpumem maps the memory at an
// address that it chooses. The program's mappings are further mappings of the same memory. While
// the process is suspended these are gone: its reservations of addresses stay, and the driver can
// free the memory. Memory that others may have is pinned: it and its mappings stay.
//
// The rest is the driver's, and charged, as in account mode:
//   - memory of another location than a device that the daemon serves
//   - memory with other handle types than POSIX descriptors
//   - compressed memory, and memory for sparse arrays
//   - sizes that the driver does not take
//   - segments beyond the number that the daemon allows
#pragma once

#include <stdint.h>

#include "client/preload/driver.h"

namespace gpumem::preload {

// True for a handle of CreatePhysical(), also after its release.
bool IsToken(CUmemGenericAllocationHandle handle);

// Does nothing and returns false where the memory is not gpumem's. `result` is what the program
// gets.
bool CreatePhysical(const Entry& entry, CUmemGenericAllocationHandle* handle, uint64_t size,
                    const CUmemAllocationProp* properties, unsigned long long flags,
                    CUresult* result);

// Each of these is the driver's function for a token.
CUresult ReleasePhysical(CUmemGenericAllocationHandle token);
CUresult MapPhysical(const Driver& driver, CUdeviceptr address, uint64_t size, uint64_t offset,
                     CUmemGenericAllocationHandle token, unsigned long long flags);
CUresult PropertiesOfPhysical(CUmemAllocationProp* properties, CUmemGenericAllocationHandle token);
CUresult ExportPhysical(int* descriptor, CUmemGenericAllocationHandle token,
                        CUmemAllocationHandleType type, unsigned long long flags);

// Takes another handle of the memory that is mapped at an address. False if that is not gpumem's.
bool RetainPhysical(uint64_t address, CUmemGenericAllocationHandle* token);

// The driver has unmapped a range, or has set the access to it. Inside the gate.
void ForgetPhysicalMappings(uint64_t address, uint64_t size);
void NoteAccess(uint64_t address, uint64_t size, const CUmemAccessDesc* access, size_t count);

// Pin the memory of a token, and all that is mapped in a range. Inside the gate.
void PinPhysical(CUmemGenericAllocationHandle token);
void PinMappings(uint64_t address, uint64_t size);

// Takes a handle of the driver for a token, which cuMemRelease() of the driver gives back. Inside
// the gate.
CUresult DriverHandle(const Driver& driver, CUmemGenericAllocationHandle token,
                      CUmemGenericAllocationHandle* handle);

// Returns the handle types that were asked for, of memory that is mapped at an address. False if
// that is not gpumem's.
bool HandleTypesAt(uint64_t address, int* types);

// GpumemPreload::detach_physical and attach_physical.
int DetachPhysical();
int AttachPhysical();

void AbandonPhysical();

}  // namespace gpumem::preload
