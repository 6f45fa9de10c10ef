// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpumem {
namespace {

TEST(Checkpointer, NeedsADriverAndSaysWhichVersion) {
  const auto checkpointer = Checkpointer::ForCuda();
  if (checkpointer.ok()) GTEST_SKIP() << "the driver has these calls";
  EXPECT_EQ(checkpointer.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(checkpointer.status().message()), testing::HasSubstr("CUDA 12.8"));
}

}  // namespace
}  // namespace gpumem
