/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants that a program makes under its tenant, to hold a part of its work to less. Part of
 * gpumem.h; see client.h. */
#ifndef GPUMEM_GPUMEM_TENANT_H_
#define GPUMEM_GPUMEM_TENANT_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpumem_device_limit {
  const char* device_uuid;
  uint64_t limit_bytes;
};
/* The limits of such a tenant. Those of the tenants above it hold as well. 0 and null: not set.
 * GPUMEM_UNLIMITED, and UINT32_MAX: no limit of this tenant. */
struct gpumem_tenant_limits {
  size_t struct_size;
  uint64_t limit_bytes; /* on any one GPU; an update with it drops earlier device_limits */
  const struct gpumem_device_limit* device_limits; /* on single GPUs, in place of that */
  size_t device_limit_count;
  uint64_t total_limit_bytes;  /* over all GPUs */
  uint64_t pinned_limit_bytes; /* of pinned host memory */
  uint64_t tier_limit_bytes;   /* of suspended memory in the host tier */
  uint32_t max_segments;
  uint32_t max_sessions;
  uint32_t max_waiting; /* requests that wait at one time */
  int32_t has_priority; /* 1: priority is set */
  int32_t priority;     /* that of the tenant above it at most */
  int32_t has_preload_mode;
  int32_t preload_mode; /* enum gpumem_preload_mode; not set: as in the tenant above it */
  int32_t reserved;     /* 0 */
};
struct gpumem_tenant_options {
  size_t struct_size;
  const char* name; /* letters, digits, '.', '_' and '-'; null: one that no other tenant has */
  int32_t lasting;  /* 1: it lasts until it is ended; needs a name. 0: it ends with the session */
  int32_t reserved; /* 0 */
};
/* A whole name, with its end. */
struct gpumem_tenant_name {
  size_t struct_size;
  char text[64];
};
/* Makes a tenant under the client's, and writes its name. Processes of this user begin in it by
 * gpumem_connect_options.tenant or $GPUMEM_TENANT. What it uses counts against the client's tenant,
 * too. A lasting one that is there already, with the same limits, is no error. `options` and
 * `limits` may be null. */
int gpumem_client_create_tenant(gpumem_client* client, const struct gpumem_tenant_options* options,
                                const struct gpumem_tenant_limits* limits,
                                struct gpumem_tenant_name* name);
/* Changes the limits that are set. Revokes nothing. */
int gpumem_client_update_tenant(gpumem_client* client, const char* tenant,
                                const struct gpumem_tenant_limits* limits);

/* What a tenant that has ended, and those under it, still have. */
struct gpumem_tenant_remains {
  size_t struct_size;
  uint64_t charged_bytes; /* over all devices */
  uint32_t sessions;
  int32_t gone; /* 1: nothing */
};
/* Ends such a tenant, and all that were made under it: they get no new session and no new memory.
 * What they hold stays until it is released. Call it again to see it go. One that is gone is no
 * error. `remains` may be null. */
int gpumem_client_end_tenant(gpumem_client* client, const char* tenant,
                             struct gpumem_tenant_remains* remains);

typedef struct gpumem_tenant_list gpumem_tenant_list;

struct gpumem_made_tenant {
  size_t struct_size;
  const char* name;       /* whole; lives as long as the list */
  uint64_t created_ms;    /* Unix time */
  uint64_t charged_bytes; /* over all GPUs, with those under it */
  uint32_t sessions;      /* the same */
  int32_t lasting;
  int32_t ending;   /* 1: it has ended, and still has something */
  int32_t reserved; /* 0 */
};
/* Writes a snapshot of the tenants that programs of this user have made under the client's, on all
 * levels, by name. `count` may be null. */
int gpumem_client_list_tenants(gpumem_client* client, gpumem_tenant_list** tenants, size_t* count);
int gpumem_tenant_list_get(const gpumem_tenant_list* tenants, size_t index,
                           struct gpumem_made_tenant* tenant);
int gpumem_tenant_list_destroy(gpumem_tenant_list* tenants);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_TENANT_H_ */
