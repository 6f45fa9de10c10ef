/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between libgpumem-preload.so and the library that speaks to the daemon.
 *
 * The preload is in every process of a tenant, most of which never touch CUDA. Therefore it has no
 * gRPC inside. At the first call that needs memory, it loads the plug-in named by
 * GPUMEM_PRELOAD_ACCOUNTANT, or else libgpumem-accountant.so in the preload's folder, and calls
 * gpumem_accountant_open() in it. All functions must be thread-safe and may block. They may call
 * the CUDA driver: the preload passes calls of a thread that it has called into on to the driver.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMEM_ACCOUNTANT_VERSION 1u

enum GpumemAnswer {
  GPUMEM_ACCOUNTANT_OK = 0,
  GPUMEM_ACCOUNTANT_NO_MEMORY = 1, /* the limit, or the device, has not that much left */
  GPUMEM_ACCOUNTANT_GONE = 2,      /* no answer from the daemon; the program sees out of memory */
  GPUMEM_ACCOUNTANT_UNLIMITED =
      3, /* the daemon does not account this device: pass, charge nothing */
  GPUMEM_ACCOUNTANT_SUSPENDED = 4, /* of GpumemBroker alone: ask again once the gate is open */
};

struct GpumemBroker; /* brokered_memory.h */
struct GpumemPreload;

/* A device by its UUID, as cuDeviceGetUuid_v2() tells it (that of the instance, under MIG). */
struct GpumemDeviceId {
  unsigned char bytes[16];
};

struct GpumemAccountant {
  uint32_t version; /* GPUMEM_ACCOUNTANT_VERSION */
  uint32_t size;    /* of this struct; later versions append members */

  /* Reserves `bytes` in one step of check and charge. Sets *id, which is never 0, on OK. Returns a
   * GpumemAnswer. `bytes` is a multiple of 512, and not always of 2 MiB: close to the limit the
   * preload asks for what a request lacks to the byte. With `may_wait` the answer may take as long
   * as the user allows: the preload has tried all else, and holds no lock meanwhile that other
   * calls of the program need. Without it, an answer that is not there at once is a refusal. */
  int (*acquire)(const struct GpumemDeviceId* device, uint64_t bytes, int may_wait, uint64_t* id);

  /* Gives a reservation of acquire() or acquire_context() back, whole. */
  void (*release)(uint64_t id);

  /* Reserves what a CUDA context on the device is expected to take; the daemon knows how much. As
   * acquire(), and may wait. Called before the first context of the process on that device. */
  int (*acquire_context)(const struct GpumemDeviceId* device, uint64_t* id);

  /* Tells the limit of this process's tenant on the device, and what of it is not yet reserved.
   * UINT64_MAX where there is no limit. Has what this process
   * has reserved and released before. Takes no round trip where the daemon offers its page. Returns
   * a GpumemAnswer; with any but OK the program sees the driver's figures. */
  int (*info)(const struct GpumemDeviceId* device, uint64_t* limit, uint64_t* free_bytes);

  /* Returns what serves the program's memory if its tenant is in broker mode, else null. Called
   * once; both tables stay valid until the process ends. May be null: account mode. */
  const struct GpumemBroker* (*broker)(const struct GpumemPreload* preload);
};

/* Returns the table, valid until the process ends, or null: then every request is refused as out of
 * memory. Called once in a process, never in a child after fork() of a process that called it. */
const struct GpumemAccountant* gpumem_accountant_open(uint32_t version);

#ifdef __cplusplus
}
#endif
