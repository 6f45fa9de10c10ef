// SPDX-License-Identifier: Apache-2.0
// The options of gpumemctl pool.
#include <gtest/gtest.h>

#include "client/cli/options/testing/parsed_command.h"

namespace gpumem::cli {
namespace {

TEST(CommandLineTest, PoolAloneIsPoolList) {
  EXPECT_EQ(Parsed<PoolListCommand>({"pool"}).tenant, "");
  PoolListCommand list =
      Parsed<PoolListCommand>({"pool", "list", "--tenant", "t", "--device", "1"});
  EXPECT_EQ(list.tenant, "t");
  EXPECT_EQ(list.device, "1");
}

TEST(CommandLineTest, PoolSetFillsWhatIsGivenAndNothingElse) {
  v1::SetPoolRequest request =
      Parsed<PoolSetCommand>({"pool", "set", "t", "--release-threshold", "0"}).request;
  EXPECT_EQ(request.tenant(), "t");
  EXPECT_EQ(request.device_uuid(), "");
  EXPECT_TRUE(request.has_release_threshold_bytes());
  EXPECT_FALSE(request.has_reuse_follow_event_dependencies());
  EXPECT_FALSE(request.has_reuse_allow_opportunistic());
  EXPECT_FALSE(request.has_reuse_allow_internal_dependencies());
  EXPECT_FALSE(request.reset_peaks());

  request =
      Parsed<PoolSetCommand>({"pool", "set", "--device", "GPU-1", "t", "--reset-peaks",
                              "--reuse-follow-event-dependencies", "on",
                              "--reuse-opportunistic=off", "--reuse-internal-dependencies", "off"})
          .request;
  EXPECT_EQ(request.device_uuid(), "GPU-1");
  EXPECT_FALSE(request.has_release_threshold_bytes());
  EXPECT_TRUE(request.reuse_follow_event_dependencies());
  EXPECT_TRUE(request.has_reuse_allow_opportunistic());
  EXPECT_FALSE(request.reuse_allow_opportunistic());
  EXPECT_TRUE(request.has_reuse_allow_internal_dependencies());
  EXPECT_FALSE(request.reuse_allow_internal_dependencies());
  EXPECT_TRUE(request.reset_peaks());
  EXPECT_TRUE(Parsed<PoolSetCommand>({"pool", "set", "t", "--reset-peaks"}).request.reset_peaks());
}

TEST(CommandLineTest, PoolTrim) {
  v1::TrimPoolRequest request = Parsed<PoolTrimCommand>({"pool", "trim", "t"}).request;
  EXPECT_EQ(request.tenant(), "t");
  EXPECT_EQ(request.device_uuid(), "");
  EXPECT_EQ(request.keep_bytes(), 0u);
  request = Parsed<PoolTrimCommand>({"pool", "trim", "t", "--to", "2K", "--device", "1"}).request;
  EXPECT_EQ(request.device_uuid(), "1");
  EXPECT_EQ(request.keep_bytes(), 2048u);
}

}  // namespace
}  // namespace gpumem::cli
