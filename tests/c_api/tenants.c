/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants that the program makes under its tenant. */
#include <string.h>

#include "tests/c_api/check.h"

static gpumem_client* ConnectAs(const char* tenant) {
  const struct gpumem_connect_options options = {.struct_size = sizeof(options), .tenant = tenant};
  gpumem_client* client = NULL;
  OK(gpumem_client_connect(&options, &client));
  return client;
}

static void Nulls(gpumem_client* client) {
  struct gpumem_tenant_name name = {.struct_size = sizeof(name)};
  struct gpumem_tenant_limits limits = {.struct_size = sizeof(limits), .device_limit_count = 1};
  const struct gpumem_device_limit nowhere = {.limit_bytes = 1};
  gpumem_tenant_list* list = NULL;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_create_tenant(NULL, NULL, NULL, &name));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_create_tenant(client, NULL, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_create_tenant(client, NULL, &limits, &name));
  limits.device_limits = &nowhere;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_create_tenant(client, NULL, &limits, &name));
  limits.device_limit_count = 0;
  limits.has_preload_mode = 1;
  limits.preload_mode = 7;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_create_tenant(client, NULL, &limits, &name));
  name.struct_size = 0;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_create_tenant(client, NULL, NULL, &name));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_update_tenant(NULL, "a", NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_update_tenant(client, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_end_tenant(NULL, "a", NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_end_tenant(client, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_list_tenants(NULL, &list, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_list_tenants(client, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_tenant_list_get(NULL, 0, NULL));
  OK(gpumem_tenant_list_destroy(NULL));
}

void TestTenants(void) {
  gpumem_client* const client = Connect();
  const struct gpumem_tenant_options lasting = {
      .struct_size = sizeof(lasting), .name = "kept", .lasting = 1};
  const struct gpumem_tenant_options nameless = {.struct_size = sizeof(nameless), .lasting = 1};
  struct gpumem_device_limit on_device = {
      .device_uuid = "HOST-00000001-0000-0000-0000-000000000000", .limit_bytes = 2 * kMiB};
  struct gpumem_tenant_limits limits = {.struct_size = sizeof(limits),
                                        .limit_bytes = 4 * kMiB,
                                        .device_limits = &on_device,
                                        .device_limit_count = 1,
                                        .max_sessions = 3};
  struct gpumem_tenant_limits change = {.struct_size = sizeof(change), .limit_bytes = 8 * kMiB};
  const struct gpumem_tenant_limits high = {
      .struct_size = sizeof(high), .has_priority = 1, .priority = 9};
  struct gpumem_acquire_options acquire = {
      .struct_size = sizeof(acquire), .bytes = 4 * kMiB, .device = "0"};
  struct gpumem_tenant_name name = {.struct_size = sizeof(name)};
  struct gpumem_tenant_name other = {.struct_size = sizeof(other)};
  struct gpumem_tenant_remains remains = {.struct_size = sizeof(remains)};
  struct gpumem_made_tenant made = {.struct_size = sizeof(made)};
  gpumem_client* inside = NULL;
  gpumem_segment* segment = NULL;
  gpumem_segment* more = NULL;
  gpumem_tenant_list* list = NULL;
  size_t count = 0;

  Nulls(client);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_create_tenant(client, &nameless, NULL, &name));
  EXPECT(GPUMEM_PERMISSION_DENIED, gpumem_client_create_tenant(client, NULL, &high, &name));
  CHECK(name.text[0] == '\0');
  OK(gpumem_client_create_tenant(client, &lasting, &limits, &name));
  CHECK(strncmp(name.text, "blue:", 5) == 0 && strstr(name.text, ".kept") != NULL);
  OK(gpumem_client_create_tenant(client, &lasting, &limits, &other)); /* once more */
  CHECK(strcmp(name.text, other.text) == 0);
  OK(gpumem_client_create_tenant(client, NULL, NULL, &other)); /* until the session ends */
  CHECK(strcmp(name.text, other.text) != 0);

  inside = ConnectAs(name.text);
  OK(gpumem_client_acquire(inside, &acquire, &segment));
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_client_acquire(inside, &acquire, &more));
  acquire.device = "1"; /* with a separate limit */
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_client_acquire(inside, &acquire, &more));
  acquire.device = "0";
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_update_tenant(client, name.text, NULL));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_update_tenant(inside, name.text, &change));
  OK(gpumem_client_update_tenant(client, name.text, &change));
  OK(gpumem_client_acquire(inside, &acquire, &more));
  OK(gpumem_segment_release(more));
  change.limit_bytes = GPUMEM_UNLIMITED;
  OK(gpumem_client_update_tenant(client, name.text, &change));
  acquire.bytes = 32 * kMiB;
  OK(gpumem_client_acquire(inside, &acquire, &more));
  OK(gpumem_segment_release(more));

  OK(gpumem_client_list_tenants(client, &list, &count));
  CHECK(count == 2);
  OK(gpumem_tenant_list_get(list, 0, &made));
  CHECK(strcmp(made.name, name.text) == 0 && made.lasting == 1 && made.ending == 0);
  /* What was released just now may be charged a moment longer. */
  CHECK(made.charged_bytes >= 4 * kMiB && made.sessions == 1 && made.created_ms > 0);
  OK(gpumem_tenant_list_get(list, 1, &made));
  CHECK(strcmp(made.name, other.text) == 0 && made.lasting == 0);
  EXPECT(GPUMEM_OUT_OF_RANGE, gpumem_tenant_list_get(list, 2, &made));
  OK(gpumem_tenant_list_destroy(list));

  OK(gpumem_client_end_tenant(client, other.text, &remains));
  CHECK(remains.gone == 1);
  OK(gpumem_client_end_tenant(client, name.text, &remains));
  CHECK(remains.gone == 0 && remains.charged_bytes >= 4 * kMiB && remains.sessions == 1);
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_client_acquire(inside, &acquire, &more));
  OK(gpumem_segment_release(segment));
  OK(gpumem_client_destroy(inside));
  OK(gpumem_client_end_tenant(client, name.text, NULL));
  OK(gpumem_client_destroy(client));
}
