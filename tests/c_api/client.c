/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions, segments, devices and usage. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/c_api/check.h"

void TestClient(void) {
  const struct gpumem_connect_options green = {
      .struct_size = sizeof(green), .tenant = "green", .name = "c program", .timeout_ms = 20000};
  struct gpumem_client_info info = {.struct_size = sizeof(info)};
  struct gpumem_device device = {.struct_size = sizeof(device)};
  struct gpumem_peer peer = {.struct_size = sizeof(peer)};
  struct gpumem_tenant_usage tenant = {.struct_size = sizeof(tenant)};
  struct gpumem_device_usage on_device = {.struct_size = sizeof(on_device)};
  struct gpumem_acquire_options acquire = {
      .struct_size = sizeof(acquire), .bytes = 2 * kMiB, .device = "1"};
  gpumem_client* client = NULL;
  gpumem_segment* segment = NULL;
  gpumem_device_list* devices = NULL;
  gpumem_usage* usage = NULL;
  struct gpumem_memory memory = {.struct_size = sizeof(memory)};
  uint64_t before;
  size_t count = 0, i;

  OK(gpumem_client_connect(&green, &client));
  OK(gpumem_client_get_info(client, &info));
  CHECK(strcmp(info.tenant, "green") == 0);
  CHECK(info.rule[0] != '\0' && info.daemon_version[0] != '\0' && info.session_id != 0);

  OK(gpumem_client_list_devices(client, &devices, &count));
  CHECK(count == 3); /* two, and pinned memory */
  OK(gpumem_device_list_get(devices, 1, &device));
  CHECK(strncmp(device.uuid, "HOST-00000001", 13) == 0);
  CHECK(device.name[0] != '\0' && device.pci_bus_id != NULL);
  CHECK(device.backend == GPUMEM_BACKEND_HOST);
  CHECK(device.capacity_bytes == 256 * (uint64_t)kMiB && device.charged_bytes == 0);
  CHECK(device.granularity_bytes == 2 * kMiB);
  CHECK(device.kind_count >= 1 && device.kinds[0] == GPUMEM_KIND_VMM);
  for (i = 0; i < device.peer_count; ++i) {
    OK(gpumem_device_list_get_peer(devices, 1, i, &peer));
    CHECK(strncmp(peer.uuid, "HOST-00000000", 13) == 0);
  }
  EXPECT(GPUMEM_OUT_OF_RANGE, gpumem_device_list_get(devices, count, &device));
  EXPECT(GPUMEM_OUT_OF_RANGE, gpumem_device_list_get_peer(devices, 1, i, &peer));
  OK(gpumem_device_list_destroy(devices));

  OK(gpumem_client_get_memory(client, "HOST-00000001-0000-0000-0000-000000000000", &memory));
  CHECK(memory.limit_bytes == 64 * (uint64_t)kMiB && memory.free_bytes <= memory.limit_bytes);
  before = memory.free_bytes;
  OK(gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_client_get_memory(client, "HOST-00000001-0000-0000-0000-000000000000", &memory));
  CHECK(memory.free_bytes == before - 2 * kMiB && memory.reserved == 0);
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_get_memory(client, "HOST-7", &memory));
  OK(gpumem_client_get_usage(client, &usage));
  OK(gpumem_usage_get_tenant(usage, &tenant));
  CHECK(tenant.preload_mode == GPUMEM_PRELOAD_BROKER && tenant.reserved == 0);
  CHECK(strcmp(tenant.tenant, "green") == 0);
  CHECK(tenant.charged_bytes == 2 * kMiB && tenant.segments == 1 && tenant.sessions == 1);
  for (i = 0; i < tenant.device_count; ++i) {
    OK(gpumem_usage_get_device(usage, i, &on_device));
    if (strncmp(on_device.device_uuid, "HOST-00000001", 13) == 0) break;
  }
  CHECK(i < tenant.device_count);
  CHECK(on_device.leased_bytes == 2 * kMiB && on_device.charged_bytes == 2 * kMiB);
  CHECK(on_device.retained_bytes == 0 && on_device.lingering_bytes == 0);
  CHECK(on_device.peak_bytes == 2 * kMiB && on_device.limit_bytes >= 2 * kMiB);
  /* One byte-second is charged in half a microsecond. */
  CHECK(on_device.byte_seconds > 0 && on_device.byte_seconds != GPUMEM_UNLIMITED);
  EXPECT(GPUMEM_OUT_OF_RANGE, gpumem_usage_get_device(usage, tenant.device_count, &on_device));
  OK(gpumem_usage_destroy(usage));

  /* In any order. */
  OK(gpumem_client_destroy(client));
  OK(gpumem_segment_release(segment));
}

void TestSegments(void) {
  gpumem_client* const client = Connect();
  struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire),
                                           .bytes = 2 * kMiB,
                                           .kind = GPUMEM_KIND_VMM,
                                           .timeout_ms = 20000,
                                           .tag = "kv",
                                           .scratch = 1};
  const struct gpumem_open_options read_only = {.struct_size = sizeof(read_only), .read_only = 1};
  struct gpumem_segment_info info = {.struct_size = sizeof(info)};
  struct gpumem_segment_info other = {.struct_size = sizeof(other)};
  gpumem_segment* segment = NULL;
  gpumem_segment* opened = NULL;
  gpumem_segment* many[3] = {NULL};
  const char* tickets[3] = {NULL};
  const char* again = NULL;
  char ticket[64];
  size_t i;

  OK(gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_segment_get_info(segment, &info));
  CHECK(info.data != NULL && info.bytes == acquire.bytes);
  CHECK(strncmp(info.device_uuid, "HOST-00000000", 13) == 0 && info.kind == GPUMEM_KIND_VMM);
  CHECK(info.backend == GPUMEM_BACKEND_HOST && !info.reused && !info.registered);
  CHECK(info.lease_id != 0 && info.segment_id != 0);
  CHECK(strcmp(info.tag, "kv") == 0 && info.scratch);
  memset(info.data, 0x5c, info.bytes);

  OK(gpumem_segment_share(segment, GPUMEM_SCOPE_TENANT, &tickets[0]));
  OK(gpumem_segment_share(segment, GPUMEM_SCOPE_TENANT, &again));
  CHECK(again == tickets[0]);
  OK(gpumem_segment_share(segment, GPUMEM_SCOPE_ANY, &again));
  CHECK(strcmp(again, tickets[0]) != 0);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_segment_share(segment, 2, &again));
  OK(gpumem_client_open(client, tickets[0], &read_only, &opened));
  OK(gpumem_segment_get_info(opened, &other));
  CHECK(strcmp(other.tag, "") == 0 && other.scratch);
  CHECK(other.data != info.data && other.segment_id == info.segment_id);
  CHECK(memcmp(other.data, info.data, info.bytes) == 0);
  OK(gpumem_segment_release(opened));
  strncpy(ticket, tickets[0], sizeof(ticket) - 1);
  OK(gpumem_segment_release(segment));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_open(client, ticket, NULL, &opened));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_open(client, "no ticket", NULL, &opened));

  acquire.bytes = 2 * kMiB;
  OK(gpumem_client_acquire_many(client, &acquire, 3, many));
  for (i = 0; i < 3; ++i) {
    OK(gpumem_segment_get_info(many[i], &info));
    CHECK(info.bytes == acquire.bytes);
    memset(info.data, (int)i + 1, info.bytes);
    OK(gpumem_segment_share(many[i], GPUMEM_SCOPE_TENANT, &tickets[i]));
  }
  CHECK(Leased(client) == 6 * kMiB);
  {
    gpumem_segment* copies[3] = {NULL};
    OK(gpumem_client_open_many(client, tickets, 3, NULL, copies));
    for (i = 0; i < 3; ++i) {
      OK(gpumem_segment_get_info(copies[i], &other));
      CHECK(*(const unsigned char*)other.data == i + 1);
      OK(gpumem_segment_release(copies[i]));
    }
  }
  for (i = 0; i < 3; ++i) OK(gpumem_segment_release_async(many[i]));
  CHECK(Leased(client) == 0); /* the call waits for them */
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_acquire_many(client, &acquire, 0, many));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_acquire_many(client, &acquire, SIZE_MAX, many));
  acquire.device = "HOST-9";
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_client_destroy(client));
}

/* What each kind has for programs that do not know gpumem. */
void TestRawHandles(void) {
  static const struct gpumem_handle nothing;
  gpumem_client* const client = Connect();
  struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = kMiB};
  struct gpumem_segment_info info = {.struct_size = sizeof(info)};
  int kind;
  for (kind = GPUMEM_KIND_VMM; kind <= GPUMEM_KIND_PINNED; ++kind) {
    const int has_fd = kind == GPUMEM_KIND_VMM || kind == GPUMEM_KIND_PINNED;
    const int has_ipc = kind == GPUMEM_KIND_IPC;
    const int has_pool = kind == GPUMEM_KIND_MEMPOOL;
    gpumem_segment* segment = NULL;
    struct gpumem_handle handle = nothing;
    int fd = -1, pool_fd = -1;
    acquire.kind = kind;
    OK(gpumem_client_acquire(client, &acquire, &segment));
    OK(gpumem_segment_get_info(segment, &info));
    CHECK(info.kind == kind);
    memset(info.data, kind, info.bytes);
    EXPECT(has_ipc ? GPUMEM_OK : GPUMEM_UNIMPLEMENTED,
           gpumem_segment_get_ipc_handle(segment, &handle));
    EXPECT(has_pool ? GPUMEM_OK : GPUMEM_UNIMPLEMENTED,
           gpumem_segment_get_export_data(segment, &handle));
    CHECK((has_ipc || has_pool) == (memcmp(&handle, &nothing, sizeof(handle)) != 0));
    EXPECT(has_pool ? GPUMEM_OK : GPUMEM_UNIMPLEMENTED,
           gpumem_segment_get_pool_fd(segment, &pool_fd));
    CHECK(has_pool == (pool_fd >= 0));
    EXPECT(has_fd ? GPUMEM_OK : GPUMEM_UNIMPLEMENTED, gpumem_segment_get_fd(segment, &fd));
    if (has_fd) {
      unsigned char* const mapped = mmap(NULL, kMiB, PROT_READ, MAP_SHARED, fd, 0);
      CHECK(mapped != MAP_FAILED);
      CHECK(mapped[0] == kind && mapped[kMiB - 1] == kind);
      CHECK(munmap(mapped, kMiB) == 0);
    }
    OK(gpumem_segment_release(segment));
  }
  OK(gpumem_client_destroy(client));
}
