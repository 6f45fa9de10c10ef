/* SPDX-License-Identifier: Apache-2.0 */
/* gpumem_c_program PART: a program in plain C that knows nothing of gpumem but gpumem.h, and uses
 * all of it. Exits with 0 where everything was as it should be; else says what was not. */
#include <string.h>

#include "tests/c_api/check.h"

gpumem_client* Connect(void) {
  gpumem_client* client = NULL;
  OK(gpumem_client_connect(NULL, &client));
  return client;
}

uint64_t Leased(gpumem_client* client) {
  struct gpumem_tenant_usage tenant = {.struct_size = sizeof(tenant)};
  struct gpumem_device_usage device = {.struct_size = sizeof(device)};
  gpumem_usage* usage = NULL;
  uint64_t bytes = 0;
  size_t i;
  OK(gpumem_client_get_usage(client, &usage));
  OK(gpumem_usage_get_tenant(usage, &tenant));
  for (i = 0; i < tenant.device_count; ++i) {
    OK(gpumem_usage_get_device(usage, i, &device));
    bytes += device.leased_bytes;
  }
  OK(gpumem_usage_destroy(usage));
  return bytes;
}

int DaemonPid(void) {
  const char* const pid = getenv("TEST_DAEMON_PID");
  CHECK(pid != NULL);
  return atoi(pid);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } parts[] = {
      {"errors", TestErrors},
      {"nulls", TestNulls},
      {"struct_sizes", TestStructSizes},
      {"client", TestClient},
      {"segments", TestSegments},
      {"raw_handles", TestRawHandles},
      {"events", TestEvents},
      {"lost_segments", TestLostSegments},
      {"daemon_gone", TestDaemonGone},
      {"waiting", TestWaiting},
      {"revocable", TestRevocable},
      {"publications", TestPublications},
      {"publication_list", TestPublicationList},
      {"publication_mistakes", TestPublicationMistakes},
      {"published_files", TestPublishedFiles},
      {"claims", TestClaims},
      {"pool", TestPool},
      {"trying_pool", TestTryingPool},
      {"shared_blocks", TestSharedBlocks},
      {"pool_limits", TestPoolLimits},
      {"pool_pressure", TestPoolPressure},
      {"pool_callbacks", TestPoolCallbacks},
      {"pool_suspension", TestPoolSuspension},
      {"suspension_requests", TestSuspensionRequests},
      {"suspension_requests_of_pools", TestSuspensionRequestsOfPools},
      {"suspended_publication", TestSuspendedPublication},
      {"tenants", TestTenants},
      {"frameworks", TestFrameworks},
      {"environment", TestEnvironment},
      {"fork", TestFork},
      {"exit", TestExit},
  };
  size_t i;
  if (argc != 2) FAIL("usage: gpumem_c_program PART");
  for (i = 0; i < sizeof(parts) / sizeof(parts[0]); ++i) {
    if (strcmp(parts[i].name, argv[1]) != 0) continue;
    parts[i].run();
    return 0;
  }
  FAIL("no part %s", argv[1]);
}
