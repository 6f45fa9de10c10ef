/* SPDX-License-Identifier: Apache-2.0 */
/* Publications of files. Part of gpumem.h; see files.h. */
#ifndef GPUMEM_GPUMEM_FILES_H_
#define GPUMEM_GPUMEM_FILES_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpumem_file_format {
  GPUMEM_FILE_FORMAT_BY_NAME = 0,    /* safetensors if a file's name ends so, else bytes */
  GPUMEM_FILE_FORMAT_BYTES = 1,      /* each file is one array of bytes */
  GPUMEM_FILE_FORMAT_SAFETENSORS = 2 /* each file is of the safetensors format */
};

struct gpumem_publish_files_options {
  size_t struct_size;
  int32_t format;            /* enum gpumem_file_format */
  int32_t kind;              /* enum gpumem_kind: vmm or pinned */
  const char* device;        /* as in gpumem_acquire_options */
  int32_t without_checksums; /* computes no checksums of the arrays */
  int32_t access;            /* enum gpumem_publication_access */
  int32_t ephemeral;         /* ends with the client's session */
  uint64_t expire_after_ms;  /* ends after that long without an attachment; 0: never */
  const void* content_id;    /* as in gpumem_publish_options */
  size_t content_id_bytes;
  const void* files_id; /* null, or what gpumem_content_id_of wrote: ABORTED if they have changed */
  /* Called by the calling thread several times a second, with the bytes that were copied and those
   * of all files. Returns GPUMEM_OK, or an enum gpumem_status, which ends the call. May be null. */
  int (*progress)(void* context, uint64_t done, uint64_t total);
  void* context;
  uint64_t timeout_ms; /* for each answer of the daemon */
};

struct gpumem_published_files {
  size_t struct_size;
  uint64_t version;
  uint64_t files; /* with those that an index names */
  uint64_t arrays;
  uint64_t bytes;
};

/* Copies `count` files into new memory and publishes it: the tensors of safetensors files by name,
 * and other files as bytes. `published` may be null. */
int gpumem_client_publish_files(gpumem_client* client, const char* name, const char* const* paths,
                                size_t count, const struct gpumem_publish_files_options* options,
                                struct gpumem_published_files* published);

#define GPUMEM_CONTENT_ID_BYTES 32

/* Writes the content id of files, GPUMEM_CONTENT_ID_BYTES bytes. `poll` is called with `context`
 * several times a second while files are read, and may end the call as `progress`; it may be null.
 */
int gpumem_content_id_of(const char* const* paths, size_t count, int32_t format,
                         int (*poll)(void* context), void* context, void* content_id);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_FILES_H_ */
