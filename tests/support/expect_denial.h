// SPDX-License-Identifier: Apache-2.0
// EXPECT_DENIED(status, kDeviceLimit): RESOURCE_EXHAUSTED, with a Denial of this cause.
#pragma once

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "gpumem/client.h"
#include "tests/support/expect_status.h"

namespace gpumem::testing {

// Returns the Denial that a status carries; one of an unknown cause if it carries none.
inline Denial DenialIn(const absl::Status& status) { return GetDenial(status).value_or(Denial()); }

}  // namespace gpumem::testing

#define EXPECT_DENIED(expression, wanted)                                                    \
  do {                                                                                       \
    const absl::Status is = ::gpumem::testing::StatusOf(expression);                         \
    EXPECT_EQ(is.code(), absl::StatusCode::kResourceExhausted) << is;                        \
    EXPECT_EQ(::gpumem::testing::DenialIn(is).cause, ::gpumem::Denial::Cause::wanted) << is; \
  } while (false)
