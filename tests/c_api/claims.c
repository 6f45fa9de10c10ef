/* SPDX-License-Identifier: Apache-2.0 */
/* Claims: contents that one client loads, and others attach to. */
#include <string.h>

#include "tests/c_api/check.h"

static const char kId[] = {'i', 0, 'd'};

/* The status of a request by another client, which keeps nothing. */
static int Ask(gpumem_client* client, const char* name, const char* id, size_t bytes) {
  gpumem_attachment* attachment = NULL;
  gpumem_claim* claim = NULL;
  const int status =
      gpumem_client_attach_or_claim(client, name, id, bytes, NULL, &attachment, &claim);
  CHECK((attachment != NULL) + (claim != NULL) == (status == GPUMEM_OK));
  OK(gpumem_attachment_release(attachment));
  OK(gpumem_claim_release(claim));
  return status;
}

void TestClaims(void) {
  struct gpumem_attach_options wait = {.struct_size = sizeof(wait), .wait_ms = GPUMEM_UNLIMITED};
  struct gpumem_publish_options publish = {
      .struct_size = sizeof(publish), .content_id = kId, .content_id_bytes = sizeof(kId)};
  const struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = kMiB};
  struct gpumem_claim_info info = {.struct_size = sizeof(info)};
  struct gpumem_attachment_info attached = {.struct_size = sizeof(attached)};
  struct gpumem_publication listed = {.struct_size = sizeof(listed)};
  gpumem_client *client = Connect(), *other = Connect();
  gpumem_publication_list* list = NULL;
  gpumem_attachment* attachment = NULL;
  gpumem_claim* claim = NULL;
  gpumem_segment* segment = NULL;

  OK(gpumem_client_attach_or_claim(client, "contents", kId, sizeof(kId), &wait, &attachment,
                                   &claim));
  CHECK(claim != NULL && attachment == NULL);
  OK(gpumem_claim_get_info(claim, &info));
  CHECK(strcmp(info.name, "contents") == 0 && info.content_id_bytes == sizeof(kId));
  CHECK(memcmp(info.content_id, kId, sizeof(kId)) == 0);
  EXPECT(GPUMEM_DEADLINE_EXCEEDED, Ask(other, "contents", kId, sizeof(kId)));
  OK(Ask(other, "contents", kId, 1));
  OK(gpumem_claim_release(claim));
  OK(Ask(other, "contents", kId, sizeof(kId)));

  OK(gpumem_client_attach_or_claim(client, "contents", kId, sizeof(kId), &wait, &attachment,
                                   &claim));
  OK(gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_client_publish(client, "contents", (const gpumem_segment* const*)&segment, 1, &publish,
                           NULL));
  OK(gpumem_claim_release(claim));
  claim = NULL;
  OK(gpumem_client_attach_or_claim(other, "contents", kId, sizeof(kId), &wait, &attachment,
                                   &claim));
  CHECK(claim == NULL && attachment != NULL);
  OK(gpumem_attachment_get_info(attachment, &attached));
  CHECK(attached.content_id_bytes == sizeof(kId));
  CHECK(memcmp(attached.content_id, kId, sizeof(kId)) == 0);
  OK(gpumem_attachment_release(attachment));
  OK(gpumem_client_list_publications(client, NULL, &list, NULL));
  OK(gpumem_publication_list_get(list, 0, &listed));
  CHECK(listed.content_id_bytes == sizeof(kId));
  CHECK(memcmp(listed.content_id, kId, sizeof(kId)) == 0);
  OK(gpumem_publication_list_destroy(list));

  EXPECT(GPUMEM_INVALID_ARGUMENT, Ask(client, "contents", kId, 0));
  EXPECT(GPUMEM_INVALID_ARGUMENT, Ask(client, "contents", NULL, 1));
  EXPECT(GPUMEM_INVALID_ARGUMENT, Ask(client, NULL, kId, 1));
  EXPECT(GPUMEM_INVALID_ARGUMENT, Ask(NULL, "contents", kId, 1));
  EXPECT(GPUMEM_INVALID_ARGUMENT,
         gpumem_client_attach_or_claim(client, "contents", kId, 1, NULL, &attachment, NULL));
  wait.wait_for_version = 1;
  EXPECT(GPUMEM_INVALID_ARGUMENT,
         gpumem_client_attach_or_claim(client, "contents", kId, 1, &wait, &attachment, &claim));
  publish.content_id = NULL;
  EXPECT(GPUMEM_INVALID_ARGUMENT,
         gpumem_client_publish(client, "contents", (const gpumem_segment* const*)&segment, 1,
                               &publish, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_claim_get_info(NULL, &info));
  OK(gpumem_claim_release(NULL));
  OK(gpumem_client_unpublish(client, "contents", NULL));
  OK(gpumem_segment_release(segment));
  OK(gpumem_client_destroy(other));
  OK(gpumem_client_destroy(client));
}
