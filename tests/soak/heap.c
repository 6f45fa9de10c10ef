// SPDX-License-Identifier: Apache-2.0
// Preloaded into gpumemd: tells each second how many bytes of its heap are in use, in the file
// $GPUMEM_SOAK_HEAP.PID.
//
// Resident memory alone does not show a leak soon. After a peak of the load malloc(3) has free
// memory inside, and leaks fill that first.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[256];

static void* Tell(void* unused) {
  (void)unused;
  while (1) {
    const struct mallinfo2 info = mallinfo2();
    char text[32];
    // Of one length, so that a reader never sees a part.
    const int size = snprintf(text, sizeof(text), "%020zu\n", info.uordblks + info.hblkhd);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
      if (pwrite(fd, text, (size_t)size, 0) < 0) unlink(path);
      close(fd);
    }
    sleep(1);
  }
  return NULL;
}

__attribute__((constructor)) static void Begin(void) {
  const char* const prefix = getenv("GPUMEM_SOAK_HEAP");
  if (prefix == NULL || strcmp(program_invocation_short_name, "gpumemd") != 0) return;
  snprintf(path, sizeof(path), "%s.%d", prefix, (int)getpid());
  // The program's signals are for its threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, NULL, Tell, NULL) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
