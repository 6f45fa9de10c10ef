// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/wire.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

namespace gpumemd {
namespace {

TEST(ContextWireTest, AnswersHaveAnyStatus) {
  ContextAnswer answer;
  answer.set_status(absl::NotFoundError("no such pool"));
  EXPECT_EQ(answer.status(), absl::NotFoundError("no such pool"));
  answer.set_status(absl::OkStatus());
  EXPECT_EQ(answer.status(), absl::OkStatus());
  const std::string most(sizeof(answer.words) - 1, 'x');
  answer.set_status(absl::InternalError(most + "y"));
  EXPECT_EQ(answer.status(), absl::InternalError(most));
}

}  // namespace
}  // namespace gpumemd
