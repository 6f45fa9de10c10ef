// SPDX-License-Identifier: Apache-2.0
// Charges device memory to the tenant by way of the plug-in (accountant.h), and keeps what each
// allocation was charged.
#pragma once

#include <stdint.h>

#include "client/preload/brokered_memory.h"
#include "client/preload/driver.h"

namespace gpumem::preload {

// Those with larger ordinals are not accounted; no machine has that many.
constexpr int kMaxDevices = 64;

// What an allocation was charged.
struct Charge {
  uint64_t bytes = 0;
  uint64_t reservation = 0;  // 0: of the shared credit
  int device = -1;           // the driver's ordinal; -1: nothing was charged
};

// Returns what an allocation by itself is charged. The driver takes pages of 2 MiB, and puts
// requests below 1 MiB together into such pages, in units of 512 bytes. So small ones are charged
// as asked, without the part of a page that is still empty.
uint64_t ChargedSize(uint64_t bytes);

// Opens the plug-in, if that has not been done. CUDA_SUCCESS, or what Reserve() would refuse with.
CUresult OpenAccounting(int device);

// Reserves `bytes` on a device, as they are. A refusal is CUDA_ERROR_OUT_OF_MEMORY; before that,
// the books of pools and graphs are brought up to date, and the plug-in may let the request wait:
// no lock may be held. In a child after fork() of a process that has used memory,
// CUDA_ERROR_NOT_INITIALIZED, as of the driver itself.
CUresult Reserve(int device, uint64_t bytes, Charge* charge);

// Gives back what Reserve() charged. Does nothing for an empty charge.
void Refund(const Charge& charge);

// Reserves for an amount that changes by parts, as a pool's. Never waits.
CUresult ReserveShared(int device, uint64_t bytes);
// The same after a refusal of that. May wait, so no lock may be held.
CUresult ReserveWaiting(int device, uint64_t bytes);
void RefundShared(int device, uint64_t bytes);

// Charges what the driver has taken already. If that is above the limit, nothing more is granted
// until it is below it again.
void ChargeAnyway(int device, uint64_t bytes);

// Reserves for the process's first context on a device, if that has not been done.
CUresult EnsureContext(int device);

// Gives the reservation of EnsureContext() back: the last context of the device has gone.
void RefundContext(int device);

// Returns the number of devices, and false if the plug-in knows no limit for this one.
int DeviceCount();
bool LimitOf(int device, uint64_t* limit, uint64_t* free_bytes);

// Returns the device with a UUID, or -1 if the process does not use device memory.
int DeviceInUse(const unsigned char (&uuid)[16]);
// Returns the same of a device by its UUID, which CUDA need not see. Needs no driver.
bool LimitOfUuid(const unsigned char (&uuid)[16], uint64_t* limit, uint64_t* free_bytes);

// Returns the plug-in's table, once something was reserved; null in account mode.
const GpumemBroker* Broker();
// Returns its name of a device; null in account mode, and where the daemon does not serve it.
GpumemBrokeredDevice* BrokeredDevice(int device);

}  // namespace gpumem::preload
