/* gpumem_c_loader LIBRARY: a program that is not linked with libgpumem.so and loads it at run time,
 * as other languages do. Gets a block, uses it, and unloads what it can. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "client/gpumem.h"

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
      !Find("gpumem_client_destroy", &destroy_client)) {
    return 1;
  }
  if (version() >> 16 != GPUMEM_API_VERSION >> 16) return 1;
  if (connect(NULL, &client) != GPUMEM_OK || create(client, NULL, &pool) != GPUMEM_OK ||
      allocate(pool, 1 << 20, NULL, &block) != GPUMEM_OK) {
    fprintf(stderr, "gpumem_c_loader: %s\n", last_error());
    return 1;
  }
  memset(block.data, 1, block.bytes);
  if (destroy_pool(pool) != GPUMEM_OK || destroy_client(client) != GPUMEM_OK) return 1;
  return dlclose(library);
}
