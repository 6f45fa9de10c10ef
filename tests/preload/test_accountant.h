/* SPDX-License-Identifier: Apache-2.0 */
/* What the plug-in of the tests (test_accountant.c) keeps in the file GPUMEM_TEST_STATE. All
 * processes of a test share it. */
#pragma once

#include <stdint.h>

struct TestAccount {
  uint64_t used;
  uint64_t peak;
  uint64_t acquired; /* calls that granted */
  uint64_t refused;
  uint64_t contexts;   /* held now */
  uint64_t opened;     /* processes */
  uint64_t used_of[8]; /* by device; the ordinal is the last letter of its UUID */
  uint64_t waiting;    /* requests now */
  uint64_t opening;    /* 1 while the plug-in is held up */
};
