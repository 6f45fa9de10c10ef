// SPDX-License-Identifier: Apache-2.0
// EXPECT_STATUS(status, kNotFound, "no lease"): its code, and words that it must have.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gpumem::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

}  // namespace gpumem::testing

#define EXPECT_STATUS(expression, wanted, words)                         \
  do {                                                                   \
    const absl::Status is = ::gpumem::testing::StatusOf(expression);     \
    EXPECT_EQ(is.code(), absl::StatusCode::wanted) << is;                \
    EXPECT_THAT(std::string(is.message()), ::testing::HasSubstr(words)); \
  } while (false)

#define EXPECT_OK(expression) EXPECT_EQ(::gpumem::testing::StatusOf(expression).ToString(), "OK")
#define ASSERT_OK(expression) ASSERT_EQ(::gpumem::testing::StatusOf(expression).ToString(), "OK")
