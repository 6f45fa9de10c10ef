/* SPDX-License-Identifier: Apache-2.0 */
/* Publications: versions of segments under a name. Part of gpumem.h; see publication.h. */
#ifndef GPUMEM_GPUMEM_PUBLICATION_H_
#define GPUMEM_GPUMEM_PUBLICATION_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"
#include "gpumem_segment.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpumem_attachment gpumem_attachment;
typedef struct gpumem_claim gpumem_claim;

enum gpumem_publication_access {
  GPUMEM_PUBLICATION_ACCESS_TENANT = 0, /* sessions of the publisher's tenant attach to it */
  GPUMEM_PUBLICATION_ACCESS_ANY = 1     /* those of every tenant */
};

struct gpumem_publish_options {
  size_t struct_size;
  const void* metadata; /* any bytes, which are copied; every attachment receives them */
  size_t metadata_bytes;
  int32_t access;           /* enum gpumem_publication_access */
  int32_t ephemeral;        /* ends with the client's session */
  uint64_t expire_after_ms; /* ends after that long without an attachment; 0: never */
  uint64_t timeout_ms;
  /* Names what the memory contains, for gpumem_client_attach_or_claim: at most 64 bytes of any
   * value; 0 bytes: none. Ends the client's claim on it under the name. */
  const void* content_id;
  size_t content_id_bytes;
};
/* Publishes `count` segments of the client. The caller keeps them and may release them at once.
 * Writes the new version to `version`, which may be null. */
int gpumem_client_publish(gpumem_client* client, const char* name,
                          const gpumem_segment* const* segments, size_t count,
                          const struct gpumem_publish_options* options, uint64_t* version);
/* Existing attachments stay. Writes the newest version to `version`, which may be null. */
int gpumem_client_unpublish(gpumem_client* client, const char* name, uint64_t* version);

struct gpumem_attach_options {
  size_t struct_size;
  uint64_t wait_for_version; /* or a later one, also of a future name; 0: the newest that exists */
  /* For that version; 0 and GPUMEM_UNLIMITED: for as long as the session lives. Also for room, if
   * the publication is suspended; without a version, these two do not wait for room. For
   * gpumem_client_attach_or_claim, 0 does not wait. */
  uint64_t wait_ms;
  const gpumem_cancel_token* cancel; /* may be null; must live until the call returns */
  const char* const* map_devices;    /* as in gpumem_open_options, with what follows */
  size_t map_device_count;
  void* address;
  uint64_t timeout_ms; /* for the answer, from the end of the wait */
  int32_t revocable;
  int32_t writable; /* 1: other attachments see the writes; 0: a write faults */
};
int gpumem_client_attach(gpumem_client* client, const char* name,
                         const struct gpumem_attach_options* options,
                         gpumem_attachment** attachment);

/* Attaches to the newest version of the name if it has this content id (1 to 64 bytes). Else gives
 * the client the claim on both, if no session of the tenant has it: the caller is to load the
 * contents and publish them with this content id. Else waits until the session with the claim
 * publishes them, and attaches; or until that session gives the claim up or ends, and the caller
 * gets it. Sets exactly one of `attachment` and `claim`, and the other to null. See Client::
 * AttachOrClaim in client.h.
 *   DEADLINE_EXCEEDED   another session has the claim, also after the wait
 *   NOT_FOUND           the name is another tenant's, without these contents
 *   INVALID_ARGUMENT    options->wait_for_version is set; a content id of 0 or over 64 bytes
 *   RESOURCE_EXHAUSTED  the session (64) or the tenant has too many claims
 *   UNIMPLEMENTED       the daemon is too old
 *   and as gpumem_client_attach */
int gpumem_client_attach_or_claim(gpumem_client* client, const char* name, const void* content_id,
                                  size_t content_id_bytes,
                                  const struct gpumem_attach_options* options,
                                  gpumem_attachment** attachment, gpumem_claim** claim);
struct gpumem_claim_info {
  size_t struct_size;
  const char* name; /* without a tenant; lives as long as the handle, as does the next one */
  const void* content_id;
  size_t content_id_bytes;
};
int gpumem_claim_get_info(const gpumem_claim* claim, struct gpumem_claim_info* info);
/* Releases the claim and frees the handle, whatever the status. Has no effect on the claim if the
 * contents were published. Without an answer of the daemon it is retried later. */
int gpumem_claim_release(gpumem_claim* claim);

struct gpumem_attachment_info {
  size_t struct_size;
  void* data; /* all segments, one after another; null if they are of several devices or kinds */
  uint64_t bytes;
  uint64_t version;
  const char* tenant;   /* the publisher's */
  const void* metadata; /* lives as long as the handle */
  size_t metadata_bytes;
  size_t segment_count;
  const void* content_id; /* lives as long as the handle */
  size_t content_id_bytes;
};
int gpumem_attachment_get_info(const gpumem_attachment* attachment,
                               struct gpumem_attachment_info* info);
/* Describes one segment, in the publisher's order. FAILED_PRECONDITION once it was taken out. */
int gpumem_attachment_get_segment(const gpumem_attachment* attachment, size_t index,
                                  struct gpumem_segment_info* info);
/* Transfers one segment to the caller, which must release it. The attachment's `data` and `bytes`
 * no longer cover its place. */
int gpumem_attachment_take_segment(gpumem_attachment* attachment, size_t index,
                                   gpumem_segment** segment);
/* Unmaps all of it, ends its leases in one call, and frees the handle, whatever the status. No GPU
 * work may use the memory by then. */
int gpumem_attachment_release(gpumem_attachment* attachment);
/* As gpumem_attachment_release, but does not wait for the daemon (gpumem_segment_release_async). */
int gpumem_attachment_release_async(gpumem_attachment* attachment);

typedef struct gpumem_publication_list gpumem_publication_list;

/* The newest version under a name. */
struct gpumem_publication {
  size_t struct_size;
  const char* tenant;
  const char* name;
  uint64_t version;
  uint64_t bytes;
  uint64_t metadata_bytes;
  uint32_t segments;
  uint32_t attached_sessions; /* to this version */
  int32_t access;             /* enum gpumem_publication_access */
  int32_t ephemeral;
  uint64_t age_ms;
  uint64_t expire_after_ms; /* GPUMEM_UNLIMITED: never */
  uint64_t expires_in_ms;   /* if no attachment changes that; GPUMEM_UNLIMITED: never */
  /* For the client's tenant only, else 0 and "". The pid is in the daemon's PID namespace. */
  uint64_t publisher_session_id;
  const char* publisher_name;
  int32_t publisher_pid;
  int32_t publisher_alive;
  /* Of `bytes`, in the host tier. Above 0: it is suspended, and attaching brings it back first. */
  uint64_t suspended_bytes;
  const void* content_id; /* lives as long as the list */
  size_t content_id_bytes;
};
/* Lists what the client may attach to, of one tenant or all (null), by tenant and name. `count` may
 * be null. */
int gpumem_client_list_publications(gpumem_client* client, const char* tenant,
                                    gpumem_publication_list** publications, size_t* count);
int gpumem_publication_list_get(const gpumem_publication_list* publications, size_t index,
                                struct gpumem_publication* publication);
int gpumem_publication_list_destroy(gpumem_publication_list* publications);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_PUBLICATION_H_ */
