// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota/quota_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(QuotaChanges, NamesEachFieldThatDiffers) {
  Quota from{.limit_bytes = 1024, .max_sessions = 3};
  from.device_limits["GPU-1"] = 7;
  from.guarantee_bytes = 5;
  Quota to{.limit_bytes = 2048};
  to.device_limits["GPU-2"] = 8;
  to.guarantee_bytes = 5;
  to.priority = -2;
  to.kind = Kind::kIpc;
  to.revocable = true;
  to.release = ReleasePolicy::kOnExit;
  to.parent = "team";
  EXPECT_THAT(QuotaChanges(from, to),
              ElementsAre("limit_bytes: 1024 -> 2048", "devices GPU-1: 7 -> none",
                          "devices GPU-2: none -> 8", "max_sessions: 3 -> none",
                          "priority: 0 -> -2", "kind: none -> ipc", "revocable: false -> true",
                          "release: trust -> on-exit", "parent: none -> team"));
  EXPECT_THAT(QuotaChanges(to, to), IsEmpty());
}

}  // namespace
}  // namespace gpumemd
