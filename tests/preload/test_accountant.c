/* SPDX-License-Identifier: Apache-2.0 */
/* A plug-in of the preload with one limit for each device, GPUMEM_TEST_LIMIT bytes, and no daemon.
 * A context is charged GPUMEM_TEST_CONTEXT bytes. If GPUMEM_TEST_ANSWER is not 0, all requests for
 * memory are answered with it. A request that may wait does so for GPUMEM_TEST_WAIT_MS. With
 * GPUMEM_TEST_HOLD_OPEN it opens once `opening` is set to 0. */
#include "tests/preload/test_accountant.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/preload/accountant.h"

/* An id of the preload is a size here. The highest bit marks contexts; the device is below it. */
#define CONTEXT (UINT64_C(1) << 63)
#define DEVICE 56
#define SIZE ((UINT64_C(1) << DEVICE) - 1)

static struct TestAccount* account;
static uint64_t limit;
static uint64_t context_bytes;
static int answer_all;
static uint64_t wait_ms;

static unsigned int ordinal(const struct GpumemDeviceId* device) { return device->bytes[15] & 7; }

static int charge(unsigned int device, uint64_t bytes) {
  if (answer_all != 0) return answer_all;
  uint64_t* account_of = &account->used_of[device];
  uint64_t used = __atomic_load_n(account_of, __ATOMIC_SEQ_CST);
  do {
    if (bytes > limit || used > limit - bytes) {
      __atomic_fetch_add(&account->refused, 1, __ATOMIC_SEQ_CST);
      return GPUMEM_ACCOUNTANT_NO_MEMORY;
    }
  } while (!__atomic_compare_exchange_n(account_of, &used, used + bytes, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST));
  used = __atomic_fetch_add(&account->used, bytes, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&account->acquired, 1, __ATOMIC_SEQ_CST);
  uint64_t peak = __atomic_load_n(&account->peak, __ATOMIC_SEQ_CST);
  while (peak < used + bytes && !__atomic_compare_exchange_n(&account->peak, &peak, used + bytes, 0,
                                                             __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return GPUMEM_ACCOUNTANT_OK;
}

static int acquire(const struct GpumemDeviceId* device, uint64_t bytes, int may_wait,
                   uint64_t* id) {
  *id = bytes | (uint64_t)ordinal(device) << DEVICE;
  int answer = charge(ordinal(device), bytes);
  if (!may_wait || wait_ms == 0 || answer != GPUMEM_ACCOUNTANT_NO_MEMORY) return answer;
  __atomic_fetch_add(&account->waiting, 1, __ATOMIC_SEQ_CST);
  for (uint64_t i = 0; i < wait_ms && answer == GPUMEM_ACCOUNTANT_NO_MEMORY; ++i) {
    usleep(1000);
    answer = charge(ordinal(device), bytes);
  }
  __atomic_fetch_sub(&account->waiting, 1, __ATOMIC_SEQ_CST);
  return answer;
}

static int acquire_context(const struct GpumemDeviceId* device, uint64_t* id) {
  *id = CONTEXT | context_bytes | (uint64_t)ordinal(device) << DEVICE;
  int answer = charge(ordinal(device), context_bytes);
  if (answer == GPUMEM_ACCOUNTANT_OK) __atomic_fetch_add(&account->contexts, 1, __ATOMIC_SEQ_CST);
  return answer;
}

static void release_id(uint64_t id) {
  if ((id & CONTEXT) != 0) __atomic_fetch_sub(&account->contexts, 1, __ATOMIC_SEQ_CST);
  __atomic_fetch_sub(&account->used_of[id >> DEVICE & 7], id & SIZE, __ATOMIC_SEQ_CST);
  __atomic_fetch_sub(&account->used, id & SIZE, __ATOMIC_SEQ_CST);
}

static int info(const struct GpumemDeviceId* device, uint64_t* told_limit, uint64_t* told_free) {
  *told_limit = limit;
  *told_free = limit - __atomic_load_n(&account->used_of[ordinal(device)], __ATOMIC_SEQ_CST);
  return GPUMEM_ACCOUNTANT_OK;
}

static uint64_t number(const char* name) {
  const char* text = getenv(name);
  return text == NULL ? 0 : strtoull(text, NULL, 10);
}

const struct GpumemAccountant* gpumem_accountant_open(uint32_t version) {
  static const struct GpumemAccountant table = {
      GPUMEM_ACCOUNTANT_VERSION, sizeof(table), acquire, release_id, acquire_context, info, NULL};
  const char* path = getenv("GPUMEM_TEST_STATE");
  if (version != GPUMEM_ACCOUNTANT_VERSION || path == NULL) return NULL;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(struct TestAccount)) != 0) return NULL;
  void* state = mmap(NULL, sizeof(struct TestAccount), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (state == MAP_FAILED) return NULL;
  account = state;
  limit = number("GPUMEM_TEST_LIMIT");
  context_bytes = number("GPUMEM_TEST_CONTEXT");
  answer_all = (int)number("GPUMEM_TEST_ANSWER");
  wait_ms = number("GPUMEM_TEST_WAIT_MS");
  if (number("GPUMEM_TEST_HOLD_OPEN") != 0) {
    __atomic_store_n(&account->opening, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&account->opening, __ATOMIC_SEQ_CST) != 0) usleep(1000);
  }
  __atomic_fetch_add(&account->opened, 1, __ATOMIC_SEQ_CST);
  return &table;
}
