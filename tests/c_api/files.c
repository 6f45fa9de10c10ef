/* SPDX-License-Identifier: Apache-2.0 */
/* Publications of files. */
#include <string.h>
#include <unistd.h>

#include "tests/c_api/check.h"

struct Steps {
  int calls;
  uint64_t done, total;
  int answer;
};

static int Step(void* context, uint64_t done, uint64_t total) {
  struct Steps* const steps = context;
  ++steps->calls;
  steps->done = done;
  steps->total = total;
  return steps->answer;
}

static int Stop(void* context) {
  (void)context;
  return GPUMEM_CANCELLED;
}

void TestPublishedFiles(void) {
  char path[] = "/tmp/gpumem-c-XXXXXX";
  const int fd = mkstemp(path);
  const char* const paths[] = {path};
  const char* const missing[] = {"/tmp/gpumem-c-none"};
  struct Steps steps = {0};
  struct gpumem_publish_files_options options = {
      .struct_size = sizeof(options), .progress = Step, .context = &steps};
  struct gpumem_published_files published = {.struct_size = sizeof(published)};
  struct gpumem_attachment_info info = {.struct_size = sizeof(info)};
  gpumem_attachment* attachment = NULL;
  gpumem_claim* claim = NULL;
  gpumem_client* const client = Connect();
  unsigned char id[GPUMEM_CONTENT_ID_BYTES] = {0}, again[GPUMEM_CONTENT_ID_BYTES] = {0};

  CHECK(fd >= 0 && write(fd, "abc", 3) == 3);
  OK(gpumem_client_publish_files(client, "files", paths, 1, &options, &published));
  CHECK(published.version == 1 && published.files == 1 && published.arrays == 1);
  CHECK(published.bytes == 3);
  CHECK(steps.calls > 0 && steps.done == 3 && steps.total == 3);
  OK(gpumem_client_attach(client, "files", NULL, &attachment));
  OK(gpumem_attachment_get_info(attachment, &info));
  CHECK(memcmp(info.data, "abc", 3) == 0);
  CHECK(memmem(info.metadata, info.metadata_bytes, "xxh128", 6) != NULL);
  OK(gpumem_attachment_release(attachment));
  options.without_checksums = 1;
  OK(gpumem_client_publish_files(client, "files", paths, 1, &options, NULL));
  OK(gpumem_client_unpublish(client, "files", NULL));

  steps.answer = GPUMEM_CANCELLED;
  EXPECT(GPUMEM_CANCELLED, gpumem_client_publish_files(client, "files", paths, 1, &options, NULL));
  CHECK(strstr(gpumem_last_error(), "progress function returned 1") != NULL);
  options.format = GPUMEM_FILE_FORMAT_SAFETENSORS;
  EXPECT(GPUMEM_INVALID_ARGUMENT,
         gpumem_client_publish_files(client, "files", paths, 1, &options, NULL));
  options.format = 3;
  EXPECT(GPUMEM_INVALID_ARGUMENT,
         gpumem_client_publish_files(client, "files", paths, 1, &options, NULL));
  options.format = 0;
  options.access = 2;
  EXPECT(GPUMEM_INVALID_ARGUMENT,
         gpumem_client_publish_files(client, "files", paths, 1, &options, NULL));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_publish_files(client, "files", missing, 1, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT,
         gpumem_client_publish_files(client, "files", NULL, 1, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_publish_files(client, NULL, paths, 1, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_publish_files(NULL, "f", paths, 1, NULL, NULL));

  OK(gpumem_content_id_of(paths, 1, 0, NULL, NULL, id));
  OK(gpumem_content_id_of(paths, 1, 0, NULL, NULL, again));
  CHECK(memcmp(id, again, sizeof(id)) == 0);
  steps.answer = GPUMEM_OK;
  options.access = 0;
  options.files_id = id;
  options.content_id = "these";
  options.content_id_bytes = 5;
  OK(gpumem_client_publish_files(client, "files", paths, 1, &options, NULL));
  OK(gpumem_client_attach_or_claim(client, "files", "these", 5, NULL, &attachment, &claim));
  CHECK(attachment != NULL && claim == NULL);
  OK(gpumem_attachment_release(attachment));
  OK(gpumem_client_unpublish(client, "files", NULL));
  CHECK(write(fd, "d", 1) == 1);
  OK(gpumem_content_id_of(paths, 1, 0, NULL, NULL, again));
  CHECK(memcmp(id, again, sizeof(id)) != 0);
  EXPECT(GPUMEM_ABORTED, gpumem_client_publish_files(client, "files", paths, 1, &options, NULL));
  CHECK(strstr(gpumem_last_error(), "have changed since their content id was found") != NULL);
  EXPECT(GPUMEM_CANCELLED, gpumem_content_id_of(paths, 1, 0, Stop, NULL, id));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_content_id_of(missing, 1, 0, NULL, NULL, id));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_content_id_of(paths, 1, 3, NULL, NULL, id));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_content_id_of(paths, 1, 0, NULL, NULL, NULL));
  CHECK(close(fd) == 0 && unlink(path) == 0);
  OK(gpumem_client_destroy(client));
}
