// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota/guarantees.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/bytes.h"

namespace gpumemd {
namespace {

using What = GuaranteeProblem::What;
using Tenants = std::map<std::string, Quota>;

using gpumem::kGiB;

const std::vector<DeviceInfo>& Devices() {
  static const auto& devices = *new std::vector<DeviceInfo>{
      {.uuid = "GPU-1", .capacity_bytes = 80 * kGiB, .kinds = {Kind::kVmm}},
      {.uuid = "GPU-2", .capacity_bytes = 40 * kGiB, .kinds = {Kind::kVmm}},
      {.uuid = "PINNED-0", .capacity_bytes = kGiB, .kinds = {Kind::kPinned}}};
  return devices;
}

std::string ProblemOf(const Tenants& tenants) {
  std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(tenants, Devices());
  return problem ? Tell(*problem) : "none";
}

TEST(Guarantees, FitExactly) {
  EXPECT_EQ(ProblemOf({}), "none");
  EXPECT_EQ(
      ProblemOf({{"a", {.guarantee_bytes = 30 * kGiB}}, {"b", {.guarantee_bytes = 10 * kGiB}}}),
      "none");
  // One device may have another guarantee; pinned memory has none.
  EXPECT_EQ(
      ProblemOf(
          {{"a", {.guarantee_bytes = 40 * kGiB, .device_guarantees = {{"GPU-1", 80 * kGiB}}}}}),
      "none");
}

TEST(Guarantees, AllTogetherAreWithinTheCapacity) {
  EXPECT_EQ(ProblemOf({{"a", {.guarantee_bytes = 30 * kGiB}},
                       {"b", {.guarantee_bytes = 10 * kGiB + 1}},
                       {"idle", {}}}),
            "the guarantees of all tenants add up to 40.00 GiB on GPU-2, which is more than the "
            "device's 40.00 GiB (a 30.00 GiB, b 10.00 GiB); lower one of them");
  EXPECT_EQ(FindGuaranteeProblem({{"a", {.guarantee_bytes = std::numeric_limits<uint64_t>::max()}},
                                  {"b", {.guarantee_bytes = 1}}},
                                 Devices())
                ->needed,
            std::numeric_limits<uint64_t>::max());
}

TEST(Guarantees, ATenantsOwnIsWithinItsLimit) {
  EXPECT_EQ(ProblemOf({{"a", {.limit_bytes = kGiB, .guarantee_bytes = 2 * kGiB}}}),
            "the guarantee of tenant \"a\" on GPU-1, 2.00 GiB, is above its limit of 1.00 GiB; "
            "lower the guarantee or raise the limit");
  EXPECT_EQ(FindGuaranteeProblem({{"a",
                                   {.limit_bytes = 2 * kGiB,
                                    .device_limits = {{"GPU-2", kGiB}},
                                    .guarantee_bytes = 2 * kGiB}}},
                                 Devices())
                ->device,
            "GPU-2");
}

TEST(Guarantees, MembersDrawOnThatOfTheTenantTheyAreUnder) {
  Tenants tenants = {{"team", {.limit_bytes = 40 * kGiB, .guarantee_bytes = 20 * kGiB}},
                     {"a", {.guarantee_bytes = 15 * kGiB, .parent = "team"}},
                     {"b", {.guarantee_bytes = 5 * kGiB, .parent = "team"}},
                     {"other", {.guarantee_bytes = 20 * kGiB}}};
  EXPECT_EQ(ProblemOf(tenants), "none");
  // Members count with their sum if it is more than the guarantee above them.
  tenants["b"].guarantee_bytes = 6 * kGiB;
  EXPECT_EQ(FindGuaranteeProblem(tenants, Devices())->what, What::kAboveCapacity);
  tenants["other"].guarantee_bytes = 0;
  EXPECT_EQ(ProblemOf(tenants), "none");
  tenants["team"].limit_bytes = 20 * kGiB;
  EXPECT_EQ(ProblemOf(tenants),
            "the guarantees of the members of tenant \"team\" add up to 21.00 GiB on GPU-1, above "
            "its limit of 20.00 GiB (a 15.00 GiB, b 6.00 GiB); lower one of them or raise the "
            "limit");
}

TEST(Guarantees, OfSeveralProblemsTheFirstTenantsIsTold) {
  const Tenants tenants = {{"a", {.limit_bytes = 10 * kGiB}},
                           {"a1", {.guarantee_bytes = 11 * kGiB, .parent = "a"}},
                           {"b", {.limit_bytes = 10 * kGiB}},
                           {"b1", {.guarantee_bytes = 12 * kGiB, .parent = "b"}}};
  const std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(tenants, Devices());
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->what, What::kMembersAboveLimit);
  EXPECT_EQ(problem->tenant, "a");
  EXPECT_EQ(problem->needed, 11 * kGiB);
}

TEST(Guarantees, ThoseOnAllDevicesAreWithinTheTotalLimit) {
  Tenants tenants = {{"team", {.total_limit_bytes = 30 * kGiB}},
                     {"a", {.guarantee_bytes = 15 * kGiB, .parent = "team"}}};
  EXPECT_EQ(ProblemOf(tenants), "none");
  tenants["team"].total_limit_bytes = 30 * kGiB - 1;
  std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(tenants, Devices());
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->what, What::kAboveTotalLimit);
  EXPECT_EQ(problem->tenant, "team");
}

TEST(Guarantees, ManyAreNotAllNamed) {
  Tenants tenants;
  for (char c = 'a'; c <= 'h'; ++c) tenants[std::string(1, c)].guarantee_bytes = 10 * kGiB;
  tenants["h"].guarantee_bytes = 11 * kGiB;
  EXPECT_EQ(ProblemOf(tenants),
            "the guarantees of all tenants add up to 81.00 GiB on GPU-1, which is more than the "
            "device's 80.00 GiB (h 11.00 GiB, a 10.00 GiB, b 10.00 GiB, c 10.00 GiB, d 10.00 GiB "
            "and 3 more); lower one of them");
}

}  // namespace
}  // namespace gpumemd
