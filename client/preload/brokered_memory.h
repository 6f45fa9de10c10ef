/* SPDX-License-Identifier: Apache-2.0 */
/* Broker mode: the program's ordinary device memory is gpumem's, so that it can be taken back under
 * pressure and suspended. What libgpumem-accountant.so offers the preload for that, beside
 * accountant.h. All functions are thread-safe and may block.
 */
#pragma once

#include <stdint.h>

#include "client/preload/accountant.h"
#include "client/preload/brokered/stream_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* C wants (void).
 * NOLINTBEGIN(modernize-redundant-void-arg) */

/* What the preload does for the plug-in. */
struct GpumemPreload {
  /* Closes the gate: when this returns 1, no thread uses brokered memory or gives work to the GPU,
   * and each that wants to waits. Work given before may still run. Returns 0, with the gate open,
   * if a thread has been inside for that long. */
  int (*close_gate)(uint64_t timeout_ms);
  void (*open_gate)(void);
  /* The calling thread is the plug-in's, which suspends and resumes. The driver alone serves its
   * calls from now on, also while the gate is closed. */
  void (*own_thread)(void);
  /* Returns how often threads have passed it. */
  uint64_t (*gate_passes)(void);
  /* Waits for all work of a device, if its primary context is the calling thread's. False if it is
   * not, or if the driver tells an error. Called within free(). */
  int (*synchronize)(const struct GpumemDeviceId* id);
  /* Gives back what the process has reserved on a device and does not need. True if that was
   * anything. Called within allocate(). */
  int (*make_room)(const struct GpumemDeviceId* id);
  /* Waits for all work of the process. False if the driver tells an error. */
  int (*synchronize_all)(void);
  /* Waits for all work of the process, and unmaps what the program has mapped of physical memory
   * that is not pinned. Then maps it again. False if the driver refuses, in which case a part may
   * be done; the next call of either continues. With the gate closed. */
  int (*detach_physical)(void);
  int (*attach_physical)(void);
};

/* What cuIpcGetMemHandle() and its relatives carry. */
struct GpumemIpcHandle {
  unsigned char bytes[64]; /* CU_IPC_HANDLE_SIZE */
};

/* Physical memory, for cuMemCreate(). */
struct GpumemPhysical;

/* A device's pool. Never freed. */
struct GpumemBrokeredDevice;

struct GpumemBroker {
  /* Returns null where the daemon does not serve the device. */
  struct GpumemBrokeredDevice* (*device)(const struct GpumemDeviceId* id);

  /* Before an allocation, inside the gate: a suspension sees its pool then. */
  void (*prepare)(struct GpumemBrokeredDevice* device, int of_streams);
  /* Allocates memory that every stream may use at once, in the device's primary context, which the
   * process must have. Returns a GpumemAnswer. May wait, outside the gate, as the process can be
   * suspended meanwhile: SUSPENDED then. */
  int (*allocate)(struct GpumemBrokeredDevice* device, uint64_t bytes, uint64_t* address);

  /* Frees a block, also a stream-ordered one: when all work of the device is done, or that of a
   * stream. Returns 0 if no block begins at the address. free_on_stream() returns -1 if the stream
   * is being captured, or of another device, and else 1. */
  int (*free)(uint64_t address);
  int (*free_on_stream)(uint64_t address, void* stream);

  /* A stream is about to be destroyed. */
  void (*forget_stream)(void* stream);

  /* Finds the block, also one of open(), that an address lies in. False if there is none. */
  int (*find)(uint64_t address, uint64_t* base, uint64_t* bytes);

  /* Writes a handle by which other processes of the tenant open the block. False if that is not
   * possible. */
  int (*share)(uint64_t base, struct GpumemIpcHandle* handle);
  /* True for a handle of share(). */
  int (*is_shared)(const struct GpumemIpcHandle* handle);
  /* Opens it for a device, which may be another one than the memory's; again, if it is open
   * already, at the same address. close() undoes one of them, and is false if none is open at the
   * address. */
  int (*open)(struct GpumemBrokeredDevice* device, const struct GpumemIpcHandle* handle,
              uint64_t* address);
  int (*close)(uint64_t address);

  /* Returns the bytes that the pool holds without use. */
  uint64_t (*unused)(struct GpumemBrokeredDevice* device);
  /* Returns the bytes of the device that the process holds, or has suspended. */
  uint64_t (*held)(struct GpumemBrokeredDevice* device);
  /* Gives back what unused() counts. True if that was anything. */
  int (*trim)(struct GpumemBrokeredDevice* device);

  /* Frees everything on the device, before its primary context goes. */
  void (*drop)(struct GpumemBrokeredDevice* device);

  /* Acquires physical memory of exactly so many bytes, and maps it at an address, for the process
   * to take a handle from. Returns a GpumemAnswer; UNLIMITED: gpumem cannot serve it, but the
   * driver may. `may_wait`: waits as long as the user allows, for a request that was refused.
   * Outside the gate then, as the process can be suspended meanwhile: SUSPENDED. */
  int (*create_physical)(struct GpumemBrokeredDevice* device, uint64_t bytes, int may_wait,
                         struct GpumemPhysical** physical, uint64_t* address);
  /* The process has neither handles nor mappings of it any more. */
  void (*release_physical)(struct GpumemPhysical* physical);
  /* From now on it stays on the device, also while the process is suspended. */
  void (*pin_physical)(struct GpumemPhysical* physical);
  /* Pins it, and writes a descriptor that cuMemImportFromShareableHandle() takes in any process.
   * The caller closes it. False if there is none. */
  int (*export_physical)(struct GpumemPhysical* physical, int* fd);

  /* A thread has found the gate closed. Resumes the memory if the reason for the suspension leaves
   * that to the program; else returns at once. */
  void (*wanted)(void);

  const struct GpumemStreamMemory* stream_memory;
};

/* NOLINTEND(modernize-redundant-void-arg) */

#ifdef __cplusplus
}
#endif
