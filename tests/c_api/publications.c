/* SPDX-License-Identifier: Apache-2.0 */
/* Publications: published, listed, attached to, replaced, ended. */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/c_api/check.h"

enum { kSegments = 3 };

static gpumem_client* ConnectAs(const char* tenant) {
  const struct gpumem_connect_options options = {.struct_size = sizeof(options), .tenant = tenant};
  gpumem_client* client = NULL;
  OK(gpumem_client_connect(&options, &client));
  return client;
}

/* Segments of 2 MiB each, filled with `first`, the next with one more, and so on. */
static void Fill(gpumem_client* client, int first, gpumem_segment** segments) {
  const struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = 2 * kMiB};
  struct gpumem_segment_info info = {.struct_size = sizeof(info)};
  int i;
  OK(gpumem_client_acquire_many(client, &acquire, kSegments, segments));
  for (i = 0; i < kSegments; ++i) {
    OK(gpumem_segment_get_info(segments[i], &info));
    memset(info.data, first + i, info.bytes);
  }
}

/* Runs in a separate process: the publication outlives it. */
static void PublishAndEnd(void) {
  static const char metadata[] = {'a', 0, 'b'};
  const struct gpumem_publish_options options = {.struct_size = sizeof(options),
                                                 .metadata = metadata,
                                                 .metadata_bytes = sizeof(metadata),
                                                 .access = GPUMEM_PUBLICATION_ACCESS_ANY};
  gpumem_client* const client = Connect();
  gpumem_segment* segments[kSegments];
  uint64_t version = 0;
  int i;
  Fill(client, 10, segments);
  OK(gpumem_client_publish(client, "weights", (const gpumem_segment* const*)segments, kSegments,
                           &options, &version));
  CHECK(version == 1);
  for (i = 0; i < kSegments; ++i) OK(gpumem_segment_release(segments[i]));
  OK(gpumem_client_destroy(client));
}

/* That all of an attachment is there, in order and without a gap. */
static void CheckAttached(const gpumem_attachment* attachment, uint64_t version, int first) {
  struct gpumem_attachment_info all = {.struct_size = sizeof(all)};
  struct gpumem_segment_info one = {.struct_size = sizeof(one)};
  const char* next;
  size_t i;
  OK(gpumem_attachment_get_info(attachment, &all));
  CHECK(all.version == version && strcmp(all.tenant, "blue") == 0);
  CHECK(all.segment_count == kSegments && all.bytes == kSegments * 2 * (uint64_t)kMiB);
  next = all.data;
  CHECK(next != NULL);
  for (i = 0; i < kSegments; ++i) {
    OK(gpumem_attachment_get_segment(attachment, i, &one));
    CHECK(one.data == next && one.bytes == 2 * (uint64_t)kMiB && one.kind == GPUMEM_KIND_VMM);
    CHECK(next[0] == first + (int)i && next[one.bytes - 1] == first + (int)i);
    next += one.bytes;
  }
  EXPECT(GPUMEM_OUT_OF_RANGE, gpumem_attachment_get_segment(attachment, kSegments, &one));
}

void TestPublications(void) {
  struct gpumem_attach_options attach = {.struct_size = sizeof(attach)};
  struct gpumem_publish_options publish = {.struct_size = sizeof(publish)};
  struct gpumem_attachment_info all = {.struct_size = sizeof(all)};
  struct gpumem_segment_info info = {.struct_size = sizeof(info)};
  gpumem_client *blue, *green;
  gpumem_segment* segments[kSegments];
  gpumem_segment* taken = NULL;
  gpumem_attachment *attachment = NULL, *other = NULL, *none = NULL;
  const char* ticket = NULL;
  uint64_t version = 0;
  int status = -1, i;
  const pid_t publisher = fork(); /* before either has connected */

  CHECK(publisher >= 0);
  if (publisher == 0) {
    PublishAndEnd();
    _exit(0);
  }
  CHECK(waitpid(publisher, &status, 0) == publisher && WIFEXITED(status) &&
        WEXITSTATUS(status) == 0);

  /* The publication outlives its publisher, and another tenant may attach. */
  blue = ConnectAs("blue");
  green = ConnectAs("green");
  CHECK(Leased(blue) == kSegments * 2 * (uint64_t)kMiB);
  OK(gpumem_client_attach(blue, "weights", NULL, &attachment));
  CheckAttached(attachment, 1, 10);
  OK(gpumem_attachment_get_info(attachment, &all));
  CHECK(all.metadata_bytes == 3 && memcmp(all.metadata, "a\0b", 3) == 0);
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_attach(green, "weights", NULL, &other));
  CHECK(other == NULL);
  OK(gpumem_client_attach(green, "blue/weights", NULL, &other));
  CheckAttached(other, 1, 10);
  CHECK(Leased(green) == 0); /* charged once, to blue */
  EXPECT(GPUMEM_PERMISSION_DENIED, gpumem_client_unpublish(green, "blue/weights", &version));

  /* The next version goes to those that wait for it. Those that hold the one before keep it. */
  Fill(blue, 20, segments);
  publish.access = GPUMEM_PUBLICATION_ACCESS_TENANT;
  publish.ephemeral = 1;
  OK(gpumem_client_publish(blue, "weights", (const gpumem_segment* const*)segments, kSegments,
                           &publish, &version));
  CHECK(version == 2);
  CheckAttached(other, 1, 10);
  OK(gpumem_attachment_release(other));
  other = NULL;
  attach.wait_for_version = 2;
  attach.writable = 1;
  OK(gpumem_client_attach(blue, "weights", &attach, &other));
  CheckAttached(other, 2, 20);
  OK(gpumem_attachment_get_segment(other, 1, &info));
  memset(info.data, 77, info.bytes);
  OK(gpumem_segment_get_info(segments[1], &info));
  CHECK(*(const char*)info.data == 77); /* the same memory */
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_attach(green, "blue/weights", NULL, &none));

  /* One of them for itself: shared as any segment, and released by itself. */
  OK(gpumem_attachment_take_segment(other, 1, &taken));
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_attachment_get_segment(other, 1, &info));
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_attachment_take_segment(other, 1, &taken));
  OK(gpumem_attachment_release(other));
  OK(gpumem_segment_get_info(taken, &info));
  CHECK(*(const char*)info.data == 77);
  OK(gpumem_segment_share(taken, GPUMEM_SCOPE_TENANT, &ticket));
  OK(gpumem_segment_release(taken));

  OK(gpumem_client_unpublish(blue, "weights", &version));
  CHECK(version == 2);
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_unpublish(blue, "weights", NULL));
  CheckAttached(attachment, 1, 10);
  OK(gpumem_attachment_release_async(attachment));
  for (i = 0; i < kSegments; ++i) OK(gpumem_segment_release(segments[i]));
  CHECK(Leased(blue) == 0);
  OK(gpumem_client_destroy(green));
  OK(gpumem_client_destroy(blue));
}

void TestPublicationList(void) {
  struct gpumem_publish_options publish = {
      .struct_size = sizeof(publish), .metadata = "four", .metadata_bytes = 4};
  struct gpumem_publication info = {.struct_size = sizeof(info)};
  struct gpumem_client_info session = {.struct_size = sizeof(session)};
  gpumem_client* const client = ConnectAs("blue");
  gpumem_client* const green = ConnectAs("green");
  gpumem_segment* segments[kSegments];
  gpumem_publication_list* list = NULL;
  size_t count = 7;
  int i;

  OK(gpumem_client_list_publications(client, NULL, &list, &count));
  CHECK(count == 0);
  OK(gpumem_publication_list_destroy(list));
  Fill(client, 1, segments);
  OK(gpumem_client_publish(client, "b", (const gpumem_segment* const*)segments, 1, &publish, NULL));
  publish.access = GPUMEM_PUBLICATION_ACCESS_ANY;
  publish.ephemeral = 1;
  publish.metadata = NULL;
  publish.metadata_bytes = 0;
  publish.expire_after_ms = 3600 * 1000;
  OK(gpumem_client_publish(client, "a", (const gpumem_segment* const*)segments, kSegments, &publish,
                           NULL));
  OK(gpumem_client_list_publications(client, "blue", &list, NULL));
  OK(gpumem_client_get_info(client, &session));
  OK(gpumem_publication_list_get(list, 0, &info));
  CHECK(strcmp(info.tenant, "blue") == 0 && strcmp(info.name, "a") == 0 && info.version == 1);
  CHECK(info.bytes == kSegments * 2 * (uint64_t)kMiB && info.segments == kSegments);
  CHECK(info.access == GPUMEM_PUBLICATION_ACCESS_ANY && info.ephemeral == 1);
  CHECK(info.metadata_bytes == 0 && info.attached_sessions == 0);
  CHECK(info.expire_after_ms == 3600 * 1000 && info.expires_in_ms <= info.expire_after_ms);
  CHECK(info.publisher_session_id == session.session_id && info.publisher_pid == getpid());
  CHECK(info.publisher_alive == 1 && info.publisher_name[0] != '\0');
  OK(gpumem_publication_list_get(list, 1, &info));
  CHECK(strcmp(info.name, "b") == 0 && info.metadata_bytes == 4 && info.ephemeral == 0);
  CHECK(info.expire_after_ms == GPUMEM_UNLIMITED && info.expires_in_ms == GPUMEM_UNLIMITED);
  EXPECT(GPUMEM_OUT_OF_RANGE, gpumem_publication_list_get(list, 2, &info));
  OK(gpumem_publication_list_destroy(list));

  /* Another tenant knows of the one that is for all, and not whose process made it. */
  OK(gpumem_client_list_publications(green, NULL, &list, &count));
  CHECK(count == 1);
  OK(gpumem_publication_list_get(list, 0, &info));
  CHECK(strcmp(info.name, "a") == 0 && info.publisher_pid == 0 && info.publisher_name[0] == '\0');
  OK(gpumem_publication_list_destroy(list));

  OK(gpumem_client_unpublish(client, "a", NULL));
  OK(gpumem_client_unpublish(client, "b", NULL));
  for (i = 0; i < kSegments; ++i) OK(gpumem_segment_release(segments[i]));
  OK(gpumem_client_destroy(green));
  OK(gpumem_client_destroy(client));
}

static void* Cancel(void* token) {
  OK(gpumem_cancel_token_cancel(token));
  return NULL;
}

void TestPublicationMistakes(void) {
  struct gpumem_publish_options publish = {.struct_size = sizeof(publish), .access = 7};
  struct gpumem_attach_options attach = {.struct_size = sizeof(attach)};
  struct {
    struct gpumem_attach_options known;
    uint64_t more;
  } newer = {.known = {.struct_size = sizeof(newer)}, .more = 1};
  gpumem_client* const client = Connect();
  gpumem_segment* segments[kSegments] = {NULL};
  const gpumem_segment* const nothing[] = {NULL};
  gpumem_attachment* attachment = NULL;
  gpumem_publication_list* list = NULL;
  gpumem_cancel_token* token = NULL;
  gpumem_segment* taken = NULL;
  pthread_t thread;
  int i;
#define PUBLISH(name, from, count, options) \
  gpumem_client_publish(client, name, (const gpumem_segment* const*)(from), count, options, NULL)

  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_publish(NULL, "x", nothing, 1, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, PUBLISH(NULL, nothing, 1, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, PUBLISH("x", NULL, 1, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, PUBLISH("x", nothing, 1, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, PUBLISH("x", NULL, 0, NULL));
  Fill(client, 1, segments);
  EXPECT(GPUMEM_INVALID_ARGUMENT, PUBLISH("x", segments, 1, &publish));
  publish.access = GPUMEM_PUBLICATION_ACCESS_TENANT;
  publish.metadata_bytes = 1;
  EXPECT(GPUMEM_INVALID_ARGUMENT, PUBLISH("x", segments, 1, &publish));
  EXPECT(GPUMEM_INVALID_ARGUMENT, PUBLISH("no name", segments, 1, NULL));

  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_attach(NULL, "x", NULL, &attachment));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_attach(client, NULL, NULL, &attachment));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_attach(client, "x", NULL, NULL));
  EXPECT(GPUMEM_UNIMPLEMENTED, gpumem_client_attach(client, "x", &newer.known, &attachment));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_attach(client, "x", NULL, &attachment));
  attach.wait_for_version = 1;
  attach.wait_ms = 10;
  EXPECT(GPUMEM_DEADLINE_EXCEEDED, gpumem_client_attach(client, "x", &attach, &attachment));
  OK(gpumem_cancel_token_create(&token));
  attach.wait_ms = 0; /* for as long as the session lives */
  attach.cancel = token;
  CHECK(pthread_create(&thread, NULL, Cancel, token) == 0);
  EXPECT(GPUMEM_CANCELLED, gpumem_client_attach(client, "x", &attach, &attachment));
  CHECK(pthread_join(thread, NULL) == 0);
  OK(gpumem_cancel_token_destroy(token));
  CHECK(attachment == NULL);

  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_unpublish(NULL, "x", NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_unpublish(client, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_list_publications(NULL, NULL, &list, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_list_publications(client, NULL, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_publication_list_get(NULL, 0, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_attachment_get_info(NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_attachment_get_segment(NULL, 0, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_attachment_take_segment(NULL, 0, &taken));
  OK(PUBLISH("x", segments, 1, NULL));
  OK(gpumem_client_attach(client, "x", NULL, &attachment));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_attachment_get_info(attachment, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_attachment_take_segment(attachment, 0, NULL));
  OK(gpumem_attachment_release(attachment));
  OK(gpumem_attachment_release(NULL));
  OK(gpumem_publication_list_destroy(NULL));
  OK(gpumem_client_unpublish(client, "x", NULL));
  for (i = 0; i < kSegments; ++i) OK(gpumem_segment_release(segments[i]));
  OK(gpumem_client_destroy(client));
}
