// SPDX-License-Identifier: Apache-2.0
#include "daemon/unbrokered/unbrokered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/bytes.h"

namespace gpumemd {
namespace unbrokered_test {

using ::testing::IsEmpty;

using gpumem::kMiB;
constexpr uint64_t kAllowance = 600 * kMiB;

DeviceProcess Process(pid_t pid, uint64_t start_time, std::optional<uint64_t> bytes,
                      std::string device = "GPU-1") {
  return {.device_uuid = std::move(device),
          .pid = pid,
          .start_time = start_time,
          .bytes = bytes,
          .command = "python3"};
}

SessionProcess Session(uint64_t id, std::string tenant, pid_t pid, uint64_t start_time) {
  return {SessionId{id}, std::move(tenant), pid, start_time};
}

Unbrokered Find(const std::vector<DeviceProcess>& processes,
                const std::vector<SessionProcess>& sessions) {
  return FindUnbrokered({.processes = processes, .sessions = sessions, .allowance = kAllowance});
}

TEST(FindUnbrokeredTest, WhatAContextTakesIsNobodysFault) {
  const std::vector<SessionProcess> sessions = {Session(1, "team", 10, 500)};
  EXPECT_THAT(Find({Process(10, 500, kAllowance)}, sessions).uses, IsEmpty());
  EXPECT_THAT(Find({Process(10, 500, std::nullopt)}, sessions).uses, IsEmpty());
  const Unbrokered more = Find({Process(10, 500, kAllowance + 1)}, sessions);
  ASSERT_EQ(more.uses.size(), 1u);
  EXPECT_EQ(more.uses[0].bytes, 1u);
  EXPECT_EQ(more.uses[0].tenant, "team");
  EXPECT_EQ(more.uses[0].session, SessionId{1});
  EXPECT_EQ(more.uses[0].command, "python3");
  EXPECT_THAT(more.foreign, IsEmpty());
}

TEST(FindUnbrokeredTest, ChargesOfItsOwnDriverAreTakenOffAndTheRestIsOverhead) {
  std::vector<SessionProcess> sessions = {Session(2, "team", 10, 500), Session(1, "team", 10, 500)};
  sessions[0].driver_bytes = {{"GPU-1", 300 * kMiB}};
  sessions[1].driver_bytes = {{"GPU-1", 100 * kMiB}, {"GPU-2", 50 * kMiB}};
  const Unbrokered found =
      Find({Process(10, 500, 970 * kMiB), Process(11, 500, 970 * kMiB)}, sessions);
  EXPECT_THAT(found.uses, IsEmpty()) << "570 MiB are within the allowance";
  ASSERT_EQ(found.overheads.size(), 2u);
  EXPECT_EQ(found.overheads[0].session, SessionId{1});
  EXPECT_EQ(found.overheads[0].device_uuid, "GPU-1");
  EXPECT_EQ(found.overheads[0].bytes, 570 * kMiB);
  EXPECT_EQ(found.overheads[1].device_uuid, "GPU-2");
  EXPECT_EQ(found.overheads[1].bytes, 0u) << "it does not use the device yet";
  const Unbrokered more = Find({Process(10, 500, 1001 * kMiB)}, sessions);
  ASSERT_EQ(more.uses.size(), 1u) << "beyond the allowance it is past the broker as well";
  EXPECT_EQ(more.uses[0].bytes, kMiB);
}

TEST(FindUnbrokeredTest, AnOverheadEndsWithTheChargesOfItsSession) {
  std::vector<SessionProcess> sessions = {Session(1, "team", 10, 500), Session(2, "team", 10, 500)};
  sessions[0].overhead_bytes = {{"GPU-1", 20 * kMiB}};
  sessions[1].driver_bytes = {{"GPU-1", 10 * kMiB}};
  const Unbrokered found = Find({Process(10, 500, 40 * kMiB)}, sessions);
  ASSERT_EQ(found.overheads.size(), 2u);
  EXPECT_EQ(found.overheads[0].session, SessionId{1});
  EXPECT_EQ(found.overheads[0].bytes, 0u);
  EXPECT_EQ(found.overheads[0].charged, 20 * kMiB);
  EXPECT_EQ(found.overheads[1].session, SessionId{2});
  EXPECT_EQ(found.overheads[1].bytes, 30 * kMiB);
  EXPECT_EQ(found.overheads[1].charged, 0u);
}

TEST(FindUnbrokeredTest, AChargedOverheadIsNotPastTheBroker) {
  std::vector<SessionProcess> sessions = {Session(1, "team", 10, 500)};
  sessions[0].driver_bytes = {{"GPU-1", 10 * kMiB}};
  sessions[0].overhead_bytes = {{"GPU-1", kAllowance}};
  EXPECT_THAT(Find({Process(10, 500, 2 * kAllowance)}, sessions).uses, IsEmpty());
}

TEST(SteadyOverheadsTest, TakesWhatTwoLooksAgreeOn) {
  SteadyOverheads steady;
  uint64_t charged = 0;
  const auto look = [&](uint64_t bytes, const std::set<std::string>& unanswered = {}) {
    std::vector<OverheadUse> overheads = {
        {.session = SessionId{1}, .device_uuid = "GPU-1", .bytes = bytes, .charged = charged}};
    steady.Settle(overheads, unanswered);
    if (!overheads.empty()) charged = overheads[0].bytes;
    return charged;
  };
  EXPECT_EQ(look(100), 0u);
  EXPECT_EQ(look(100), 100u);
  EXPECT_EQ(look(5000), 100u) << "it allocated between the two questions";
  EXPECT_EQ(look(110), 110u);
  EXPECT_EQ(look(0), 110u) << "it freed between them";
  EXPECT_EQ(look(0, {"GPU-1"}), 110u) << "no answer";
  EXPECT_EQ(look(120), 110u);
  EXPECT_EQ(look(130), 120u);
  EXPECT_EQ(look(20), 120u);
  EXPECT_EQ(look(10), 20u);
}

TEST(FindUnbrokeredTest, EachDeviceHasAContextOfItsOwn) {
  const Unbrokered found = Find({Process(10, 500, kAllowance + 1), Process(10, 500, 1, "GPU-2"),
                                 Process(10, 500, kAllowance + 3, "GPU-3")},
                                {Session(1, "team", 10, 500)});
  ASSERT_EQ(found.uses.size(), 2u);
  EXPECT_EQ(found.uses[0].device_uuid, "GPU-1");
  EXPECT_EQ(found.uses[1].device_uuid, "GPU-3");
  EXPECT_EQ(found.uses[1].bytes, 3u);
}

TEST(FindUnbrokeredTest, APidThatWasUsedAgainIsForeign) {
  const Unbrokered found = Find({Process(10, 501, 1000 * kMiB)}, {Session(1, "team", 10, 500)});
  EXPECT_THAT(found.uses, IsEmpty());
  ASSERT_EQ(found.foreign.size(), 1u);
  EXPECT_EQ(found.foreign[0].pid, 10);
  EXPECT_EQ(found.foreign[0].bytes, 1000 * kMiB) << "with its context: nobody knows of it";
}

TEST(FindUnbrokeredTest, WithoutAPidOrAStartTimeNobodyIsAccused) {
  const std::vector<SessionProcess> sessions = {Session(1, "team", 10, 0), Session(2, "team", 0, 0),
                                                Session(3, "x", 0, 7)};
  const Unbrokered found =
      Find({Process(10, 0, 1000 * kMiB), Process(0, 0, 1000 * kMiB), Process(0, 7, 1000 * kMiB)},
           sessions);
  EXPECT_THAT(found.uses, IsEmpty());
  EXPECT_EQ(found.foreign.size(), 3u);
}

TEST(FindUnbrokeredTest, SeveralSessionsOfATenantCountOnceThoseOfSeveralTenantsAtEach) {
  const Unbrokered found =
      Find({Process(10, 500, kAllowance + 9)},
           {Session(4, "team", 10, 500), Session(3, "team", 10, 500), Session(1, "team", 10, 400),
            Session(5, "other", 10, 500), Session(2, "team", 11, 500)});
  ASSERT_EQ(found.uses.size(), 2u);
  EXPECT_EQ(found.uses[0].tenant, "other");
  EXPECT_EQ(found.uses[0].session, SessionId{5});
  EXPECT_EQ(found.uses[1].tenant, "team");
  EXPECT_EQ(found.uses[1].session, SessionId{3});
  EXPECT_EQ(found.uses[1].bytes, 9u);
}

TEST(FindUnbrokeredTest, WhatIsMappedOfTheBrokersIsTakenOffWhereTheDriverCountsIt) {
  const std::vector<DeviceProcess> processes = {Process(10, 500, kAllowance + 100 * kMiB)};
  const std::vector<SessionProcess> sessions = {Session(1, "team", 10, 500)};
  UnbrokeredInputs inputs = {.processes = processes, .sessions = sessions, .allowance = kAllowance};
  inputs.mapped = {{{10, "GPU-1"}, 60 * kMiB}, {{10, "GPU-2"}, kMiB}, {{11, "GPU-1"}, kMiB}};
  EXPECT_EQ(FindUnbrokered(inputs).uses.at(0).bytes, 40 * kMiB);
  inputs.mapped[{10, "GPU-1"}] = 101 * kMiB;  // given, and not all of it mapped
  EXPECT_THAT(FindUnbrokered(inputs).uses, IsEmpty());
}

UnbrokeredUse Use(uint64_t session, uint64_t bytes, pid_t pid = 10, std::string device = "GPU-1") {
  return {.session = SessionId{session},
          .tenant = "team",
          .device_uuid = std::move(device),
          .pid = pid,
          .start_time = 500,
          .bytes = bytes};
}

TEST(UnbrokeredOffendersTest, OnlyTheSecondSampleInARowCounts) {
  UnbrokeredOffenders offenders;
  const auto observe = [&](std::vector<UnbrokeredUse> uses) {
    const auto change = offenders.Observe(uses, 100);
    return std::pair<size_t, size_t>(change.began.size(), change.ended.size());
  };
  EXPECT_EQ(observe({Use(1, 101)}), std::pair(0ul, 0ul));
  EXPECT_EQ(observe({Use(1, 100)}), std::pair(0ul, 0ul));  // within the tolerance
  EXPECT_EQ(observe({Use(1, 101)}), std::pair(0ul, 0ul));
  EXPECT_FALSE(offenders.Contains(Use(1, 101)));
  EXPECT_EQ(observe({Use(1, 101)}), std::pair(1ul, 0ul));
  EXPECT_TRUE(offenders.Contains(Use(1, 101)));
  EXPECT_EQ(observe({Use(1, 102)}), std::pair(0ul, 0ul));  // said once
  EXPECT_EQ(observe({Use(1, 100)}), std::pair(0ul, 1ul));
  EXPECT_FALSE(offenders.Contains(Use(1, 100)));
  EXPECT_EQ(observe({}), std::pair(0ul, 0ul));
}

TEST(UnbrokeredOffendersTest, AProcessThatConnectsAnewRemainsWhoItIs) {
  UnbrokeredOffenders offenders;
  offenders.Observe({{Use(1, 101)}}, 100);
  EXPECT_EQ(offenders.Observe({{Use(2, 101)}}, 100).began.size(), 1u);
  EXPECT_TRUE(offenders.Contains(Use(3, 101)));
  EXPECT_FALSE(offenders.Contains(Use(1, 101, 11)));
  EXPECT_FALSE(offenders.Contains(Use(1, 101, 10, "GPU-2")));
  const auto change = offenders.Observe({}, 100);
  ASSERT_EQ(change.ended.size(), 1u);
  EXPECT_EQ(change.ended[0].session, SessionId{2});
}

}  // namespace unbrokered_test
}  // namespace gpumemd
