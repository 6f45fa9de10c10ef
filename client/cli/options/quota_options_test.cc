// SPDX-License-Identifier: Apache-2.0
// The options of gpumemctl quota.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/options/testing/parsed_command.h"

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;

TEST(CommandLineTest, QuotaAloneIsQuotaGetOfOnesOwn) {
  EXPECT_EQ(Parsed<QuotaGetCommand>({"quota"}).tenant, "");
  EXPECT_EQ(Parsed<QuotaGetCommand>({"quota", "get"}).tenant, "");
}

TEST(CommandLineTest, QuotaSetFillsWhatIsGivenAndNothingElse) {
  v1::SetQuotaRequest request =
      Parsed<QuotaSetCommand>({"quota", "set", "training", "--limit", "40GiB", "--max-sessions",
                               "16", "--device", "0=1GiB", "--device", "GPU-1=2G", "--clear",
                               "total-limit", "--clear", "max_retained_bytes"})
          .request;
  EXPECT_EQ(request.tenant(), "training");
  EXPECT_EQ(request.quota().limit_bytes(), uint64_t{40} << 30);
  EXPECT_EQ(request.quota().max_sessions(), 16u);
  EXPECT_FALSE(request.quota().has_total_limit_bytes());
  EXPECT_FALSE(request.quota().has_max_segments());
  EXPECT_FALSE(request.quota().has_max_in_flight());
  EXPECT_FALSE(request.quota().has_max_retained_bytes());
  EXPECT_FALSE(request.quota().has_pinned_limit_bytes());
  ASSERT_EQ(request.quota().devices_size(), 2);
  EXPECT_EQ(request.quota().devices(0).device_uuid(), "0");
  EXPECT_EQ(request.quota().devices(0).limit_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(request.quota().devices(1).device_uuid(), "GPU-1");
  EXPECT_EQ(request.quota().devices(1).limit_bytes(), uint64_t{2} << 30);
  EXPECT_THAT(request.clear(), ElementsAre("total_limit_bytes", "max_retained_bytes"));

  request =
      Parsed<QuotaSetCommand>({"quota", "set", "--max-segments=0", "--total-limit=1TiB",
                               "--max-in-flight=3", "--max-retained=0", "--pinned-limit", "3GiB",
                               "--tier-limit", "5GiB", "--clear", "pinned-limit", "t"})
          .request;
  EXPECT_EQ(request.tenant(), "t");
  EXPECT_TRUE(request.quota().has_max_segments());
  EXPECT_EQ(request.quota().max_segments(), 0u);
  EXPECT_EQ(request.quota().total_limit_bytes(), uint64_t{1} << 40);
  EXPECT_EQ(request.quota().max_in_flight(), 3u);
  EXPECT_TRUE(request.quota().has_max_retained_bytes());
  EXPECT_EQ(request.quota().pinned_limit_bytes(), uint64_t{3} << 30);
  EXPECT_EQ(request.quota().tier_limit_bytes(), uint64_t{5} << 30);
  EXPECT_THAT(request.clear(), ElementsAre("pinned_limit_bytes"));
}

TEST(CommandLineTest, QuotaSetKnowsGuaranteesAndSettings) {
  const v1::Quota quota = Parsed<QuotaSetCommand>({"quota",
                                                   "set",
                                                   "t",
                                                   "--guarantee",
                                                   "4GiB",
                                                   "--device-guarantee",
                                                   "0=1GiB",
                                                   "--device-guarantee=GPU-1=2GiB",
                                                   "--priority",
                                                   "-5",
                                                   "--max-waiting",
                                                   "0",
                                                   "--max-publications",
                                                   "9",
                                                   "--scrub",
                                                   "--no-revocable",
                                                   "--kind",
                                                   "ipc",
                                                   "--release",
                                                   "on-exit"})
                              .request.quota();
  EXPECT_EQ(quota.guarantee_bytes(), uint64_t{4} << 30);
  ASSERT_EQ(quota.guarantees_size(), 2);
  EXPECT_EQ(quota.guarantees(0).device_uuid(), "0");
  EXPECT_EQ(quota.guarantees(1).device_uuid(), "GPU-1");
  EXPECT_EQ(quota.guarantees(1).guarantee_bytes(), uint64_t{2} << 30);
  EXPECT_EQ(quota.priority(), -5);
  EXPECT_TRUE(quota.has_max_waiting());
  EXPECT_EQ(quota.max_waiting(), 0u);
  EXPECT_EQ(quota.max_publications(), 9u);
  EXPECT_TRUE(quota.scrub());
  EXPECT_TRUE(quota.has_revocable());
  EXPECT_FALSE(quota.revocable());
  EXPECT_EQ(quota.kind(), v1::KIND_IPC);
  EXPECT_EQ(quota.release(), v1::RELEASE_POLICY_ON_EXIT);
  EXPECT_FALSE(quota.has_limit_bytes());
  // Settings that are off are changes, too.
  EXPECT_TRUE(
      Parsed<QuotaSetCommand>({"quota", "set", "t", "--no-scrub"}).request.quota().has_scrub());
  EXPECT_THAT(Parsed<QuotaSetCommand>(
                  {"quota", "set", "t", "--clear", "guarantee", "--clear", "device-guarantee"})
                  .request.clear(),
              ElementsAre("guarantee_bytes", "guarantees"));
}

TEST(CommandLineTest, QuotaUnsetNamesFieldsOrNone) {
  v1::UnsetQuotaRequest all = Parsed<QuotaUnsetCommand>({"quota", "unset", "t"}).request;
  EXPECT_EQ(all.tenant(), "t");
  EXPECT_EQ(all.fields_size(), 0);
  EXPECT_THAT(
      Parsed<QuotaUnsetCommand>({"quota", "unset", "t", "--limit", "--device-guarantee", "--scrub"})
          .request.fields(),
      testing::UnorderedElementsAre("limit_bytes", "guarantees", "scrub"));
}

}  // namespace
}  // namespace gpumem::cli
