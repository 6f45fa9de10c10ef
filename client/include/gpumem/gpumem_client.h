/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions with the daemon, and cancellation of waiting calls. Part of gpumem.h; see client.h. */
#ifndef GPUMEM_GPUMEM_CLIENT_H_
#define GPUMEM_GPUMEM_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpumem_client gpumem_client;

#define GPUMEM_UNLIMITED UINT64_MAX /* for bytes and times */

struct gpumem_connect_options {
  size_t struct_size;
  const char* runtime_dir; /* of the daemon's sockets; null: $GPUMEM_RUNTIME_DIR, else as found */
  const char* tenant;      /* null: $GPUMEM_TENANT, else the first that the rules allow */
  const char* name;        /* null: the program's */
  uint64_t timeout_ms;     /* 0: 30 s */
  int no_reconnect;        /* 1: the session ends with its daemon */
  /* 1: fails at once if no daemon listens. 0: waits for one up to timeout_ms, if the folder of its
   * sockets exists. (Not an int: that would lie in former padding.) */
  uint64_t no_wait;
};
int gpumem_client_connect(const struct gpumem_connect_options* options, gpumem_client** client);
/* Frees the handle. The session lives as long as any object created from it. */
int gpumem_client_destroy(gpumem_client* client);

struct gpumem_client_info {
  size_t struct_size;
  const char* tenant;
  const char* rule; /* that chose the tenant, in words */
  const char* daemon_version;
  uint64_t session_id;
};
int gpumem_client_get_info(const gpumem_client* client, struct gpumem_client_info* info);

/* Cancels waiting calls from another thread. */
typedef struct gpumem_cancel_token gpumem_cancel_token;
int gpumem_cancel_token_create(gpumem_cancel_token** token);
/* Cancels the token's calls, present and future: they return CANCELLED. */
int gpumem_cancel_token_cancel(gpumem_cancel_token* token);
int gpumem_cancel_token_is_cancelled(const gpumem_cancel_token* token, int* cancelled);
/* Frees the handle. Its calls continue, and can no longer be cancelled. */
int gpumem_cancel_token_destroy(gpumem_cancel_token* token);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_CLIENT_H_ */
