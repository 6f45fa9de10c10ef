// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/gres.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumem::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Texts of slurmctld 22.05.
TEST(SlurmGresTest, CountsAreRead) {
  const JobGres gres = ParseGres("gpumem(CNT:2048)", "gpumem");
  EXPECT_EQ(gres.mib, 2048u);
  EXPECT_THAT(gres.gpus, IsEmpty());
  EXPECT_EQ(ParseGres("gpumem:2048", "gpumem").mib, 2048u);
  EXPECT_EQ(ParseGres("gpumem:h100(CNT:7),gpumem:l4(CNT:3)", "gpumem").mib, 10u) << "types";
}

TEST(SlurmGresTest, GpusThatSlurmHasChosenAreRead) {
  const JobGres shard = ParseGres("shard:2500(IDX:1)", "shard");
  EXPECT_EQ(shard.mib, 2500u);
  EXPECT_THAT(shard.gpus, ElementsAre(1u));
  const JobGres whole = ParseGres("gpu:h100:3(IDX:0-1,3),gpumem(CNT:9)", "gpumem");
  EXPECT_EQ(whole.mib, 9u);
  EXPECT_THAT(whole.gpus, ElementsAre(0u, 1u, 3u));
}

TEST(SlurmGresTest, OthersAreNotCounted) {
  EXPECT_EQ(ParseGres("", "gpumem").mib, 0u);
  EXPECT_EQ(ParseGres("nic:2(IDX:0-1),gpumemory(CNT:5),shard:5(IDX:2)", "gpumem").mib, 0u);
  EXPECT_THAT(ParseGres("nic:2(IDX:0-1),shard:5(IDX:2)", "gpumem").gpus, IsEmpty());
}

TEST(SlurmGresTest, DamagedTextGivesNothing) {
  for (const char* text :
       {"gpumem", "gpumem:", "gpumem(CNT:)", "gpumem(CNT:x)", "gpumem:-1", "(", ")", "gpumem(",
        "gpumem:x(IDX:", ",,,", "gpumem(CNT:99999999999999999999999)"}) {
    EXPECT_EQ(ParseGres(text, "gpumem").mib, 0u) << text;
  }
  EXPECT_EQ(ParseGres("gpu:1(IDX:0-4000000000)", "gpumem").gpus.size(), 1024u) << "bounded";
}

}  // namespace
}  // namespace gpumem::slurm
