/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of gpumem_c_program uses: checks that end it, and its parts. */
#ifndef TESTS_C_API_CHECK_H_
#define TESTS_C_API_CHECK_H_

#include <stdio.h>
#include <stdlib.h>

#include "gpumem/gpumem.h"

/* Without exit handlers, which check things of their own. */
#define FAIL(...)                                   \
  do {                                              \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
    fprintf(stderr, __VA_ARGS__);                   \
    fprintf(stderr, "\n");                          \
    _Exit(1);                                       \
  } while (0)

#define CHECK(condition)                      \
  do {                                        \
    if (!(condition)) FAIL("%s", #condition); \
  } while (0)

/* That a call has this status; a failure has words. */
#define EXPECT(wanted, call)                                                                     \
  do {                                                                                           \
    const int status_ = (call);                                                                  \
    if (status_ != (wanted)) {                                                                   \
      FAIL("%s: %s, not %s: %s", #call, gpumem_status_name(status_), gpumem_status_name(wanted), \
           gpumem_last_error());                                                                 \
    }                                                                                            \
    if (status_ != GPUMEM_OK && gpumem_last_error()[0] == '\0') FAIL("%s: no words", #call);     \
  } while (0)
#define OK(call) EXPECT(GPUMEM_OK, call)

enum { kMiB = 1 << 20 };

/* A session by the environment. */
gpumem_client* Connect(void);
/* What its tenant has leased. */
uint64_t Leased(gpumem_client* client);
/* The process that the test has started as the daemon. */
int DaemonPid(void);

void TestErrors(void);
void TestNulls(void);
void TestStructSizes(void);
void TestClient(void);
void TestSegments(void);
void TestRawHandles(void);
void TestEvents(void);
void TestLostSegments(void);
void TestDaemonGone(void);
void TestWaiting(void);
void TestRevocable(void);
void TestPublications(void);
void TestPublicationList(void);
void TestPublicationMistakes(void);
void TestPublishedFiles(void);
void TestClaims(void);
void TestPool(void);
void TestTryingPool(void);
void TestSharedBlocks(void);
void TestPoolLimits(void);
void TestPoolPressure(void);
void TestPoolCallbacks(void);
void TestPoolSuspension(void);
void TestSuspensionRequests(void);
void TestSuspensionRequestsOfPools(void);
void TestSuspendedPublication(void);
void TestTenants(void);
void TestFrameworks(void);
void TestEnvironment(void);
void TestFork(void);
void TestExit(void);

#endif /* TESTS_C_API_CHECK_H_ */
