/* SPDX-License-Identifier: Apache-2.0 */
/* gpumem_c_loader LIBRARY: a program that is not linked with libgpumem.so and loads it at run time,
 * as other languages do. Gets a block, uses it, publishes a segment and attaches to it, and unloads
 * what it can. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "client/include/gpumem/gpumem.h"

static void* library;

static int Find(const char* name, void* function) {
  void* const found = dlsym(library, name);
  memcpy(function, &found, sizeof(found));
  if (found == NULL) fprintf(stderr, "gpumem_c_loader: %s\n", dlerror());
  return found != NULL;
}

int main(int argc, char** argv) {
  uint32_t (*version)(void);
  const char* (*last_error)(void);
  int (*connect)(const struct gpumem_connect_options*, gpumem_client**);
  int (*destroy_client)(gpumem_client*);
  int (*create)(gpumem_client*, const struct gpumem_pool_options*, gpumem_pool**);
  int (*destroy_pool)(gpumem_pool*);
  int (*allocate)(gpumem_pool*, uint64_t, void*, struct gpumem_block*);
  int (*acquire)(gpumem_client*, const struct gpumem_acquire_options*, gpumem_segment**);
  int (*release_segment)(gpumem_segment*);
  int (*publish)(gpumem_client*, const char*, const gpumem_segment* const*, size_t,
                 const struct gpumem_publish_options*, uint64_t*);
  int (*attach)(gpumem_client*, const char*, const struct gpumem_attach_options*,
                gpumem_attachment**);
  int (*get_info)(const gpumem_attachment*, struct gpumem_attachment_info*);
  int (*release_attachment)(gpumem_attachment*);
  int (*unpublish)(gpumem_client*, const char*, uint64_t*);
  const struct gpumem_acquire_options options = {.struct_size = sizeof(options), .bytes = 1 << 20};
  struct gpumem_attachment_info info = {.struct_size = sizeof(info)};
  gpumem_segment* segment = NULL;
  gpumem_attachment* attachment = NULL;
  gpumem_client* client = NULL;
  gpumem_pool* pool = NULL;
  struct gpumem_block block = {0};

  library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "gpumem_c_loader: %s\n", argc == 2 ? dlerror() : "which library?");
    return 2;
  }
  if (!Find("gpumem_version", &version) || !Find("gpumem_last_error", &last_error) ||
      !Find("gpumem_client_connect", &connect) || !Find("gpumem_pool_create", &create) ||
      !Find("gpumem_pool_allocate", &allocate) || !Find("gpumem_pool_destroy", &destroy_pool) ||
      !Find("gpumem_client_destroy", &destroy_client) || !Find("gpumem_client_acquire", &acquire) ||
      !Find("gpumem_segment_release", &release_segment) ||
      !Find("gpumem_client_publish", &publish) || !Find("gpumem_client_attach", &attach) ||
      !Find("gpumem_attachment_get_info", &get_info) ||
      !Find("gpumem_attachment_release", &release_attachment) ||
      !Find("gpumem_client_unpublish", &unpublish)) {
    return 1;
  }
  if (version() >> 16 != GPUMEM_API_VERSION >> 16) return 1;
  if (connect(NULL, &client) != GPUMEM_OK || create(client, NULL, &pool) != GPUMEM_OK ||
      allocate(pool, 1 << 20, NULL, &block) != GPUMEM_OK) {
    fprintf(stderr, "gpumem_c_loader: %s\n", last_error());
    return 1;
  }
  memset(block.data, 1, block.bytes);
  if (acquire(client, &options, &segment) != GPUMEM_OK ||
      publish(client, "loaded", (const gpumem_segment* const*)&segment, 1, NULL, NULL) !=
          GPUMEM_OK ||
      release_segment(segment) != GPUMEM_OK ||
      attach(client, "loaded", NULL, &attachment) != GPUMEM_OK ||
      get_info(attachment, &info) != GPUMEM_OK || info.data == NULL || info.version != 1 ||
      release_attachment(attachment) != GPUMEM_OK ||
      unpublish(client, "loaded", NULL) != GPUMEM_OK) {
    fprintf(stderr, "gpumem_c_loader: %s\n", last_error());
    return 1;
  }
  if (destroy_pool(pool) != GPUMEM_OK || destroy_client(client) != GPUMEM_OK) return 1;
  return dlclose(library);
}
