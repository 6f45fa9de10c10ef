// SPDX-License-Identifier: Apache-2.0
#include "client/cli/process/examine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "client/cli/process/testing/fake_node.h"

namespace gpumem::cli {
namespace examine_process_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Status MayAct(const FakeNode& node) {
  return CheckMayAct(*node.target, node.lists.status, node.daemon_here, node.caller);
}

// Expects that a change of the node forbids it.
void ExpectForbids(absl::StatusCode code, const std::string& words,
                   const std::function<void(FakeNode&)>& change) {
  FakeNode node;
  ASSERT_EQ(MayAct(node), absl::OkStatus());
  change(node);
  const absl::Status status = MayAct(node);
  EXPECT_EQ(status.code(), code) << words;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(ExamineProcess, OnlyItsOwnerOrRootMayAct) {
  ExpectForbids(absl::StatusCode::kPermissionDenied, "another user",
                [](FakeNode& node) { node.caller.uid = 1001; });
  ExpectForbids(absl::StatusCode::kPermissionDenied, "another user",
                [](FakeNode& node) { node.target->uids[2] = 0; });
  FakeNode node;
  node.caller.uid = 0;
  EXPECT_EQ(MayAct(node), absl::OkStatus());
}

TEST(ExamineProcess, NeverTheDaemonItsProcessesOrItself) {
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  ExpectForbids(kRefused, "is the daemon", [](FakeNode& node) { node.target->pid = kDaemonPid; });
  ExpectForbids(kRefused, "daemon's processes",
                [](FakeNode& node) { node.target->parent = kDaemonPid; });
  ExpectForbids(kRefused, "daemon's processes", [](FakeNode& node) {
    node.lists.status.mutable_devices(0)->set_context_pid(kPid);
  });
  ExpectForbids(kRefused, "is this gpumemctl", [](FakeNode& node) { node.caller.pid = kPid; });
}

TEST(ExamineProcess, OnlyInOnePidNamespace) {
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  ExpectForbids(kRefused, "PID namespace",
                [](FakeNode& node) { node.target->same_namespace = false; });
  ExpectForbids(kRefused, "PID namespace", [](FakeNode& node) { node.daemon_here = false; });
}

TEST(ExamineProcess, OnlyOnGpus) {
  ExpectForbids(absl::StatusCode::kUnimplemented, "GPUs",
                [](FakeNode& node) { node.lists.status.set_backend(v1::BACKEND_HOST); });
}

TEST(ExamineProcess, FindsAllSessionsAndThoseThatMapMemory) {
  FakeNode node;
  node.AddSession(13);
  node.AddSession(14).set_pid(kPid + 1);
  node.AddSegment(1, v1::KIND_VMM, 13);
  node.AddSegment(2, v1::KIND_IPC, 14);  // another process's
  const Examination found = ExamineBefore(*node.target, node.lists);
  EXPECT_THAT(found.sessions, ElementsAre(12u, 13u));
  EXPECT_THAT(found.mapping, ElementsAre(13u));
  EXPECT_THAT(found.forbids, IsEmpty());
}

TEST(ExamineProcess, RefusesDemotedMemory) {
  FakeNode node;
  node.AddSegment(1, v1::KIND_HOST);
  node.lists.holders.mutable_leases(node.lists.holders.leases_size() - 1)->set_demoted(true);
  EXPECT_THAT(ExamineBefore(*node.target, node.lists).forbids,
              ElementsAre(HasSubstr("gpumemctl promote")));
}

TEST(ExamineProcess, NeedsASession) {
  FakeNode node;
  node.lists.sessions.clear_sessions();
  EXPECT_THAT(ExamineBefore(*node.target, node.lists).forbids,
              ElementsAre(HasSubstr("no session")));
}

TEST(ExamineProcess, RefusesSessionsThatAreNotConnected) {
  for (const auto state : {v1::SessionInfo::STATE_LINGERING, v1::SessionInfo::STATE_AWAY}) {
    FakeNode node;
    node.lists.sessions.mutable_sessions(0)->set_state(state);
    EXPECT_THAT(ExamineBefore(*node.target, node.lists).forbids,
                ElementsAre(HasSubstr("is not connected")));
  }
}

TEST(ExamineProcess, RefusesSessionsOfAnEarlierProcessWithThatPid) {
  FakeNode node;
  v1::SessionInfo& session = *node.lists.sessions.mutable_sessions(0);
  session.set_age_ms(3'600'000);
  EXPECT_THAT(ExamineBefore(*node.target, node.lists).forbids, IsEmpty());
  session.set_age_ms(3'602'000);
  EXPECT_THAT(ExamineBefore(*node.target, node.lists).forbids,
              ElementsAre(HasSubstr("another process")));
  session.set_age_ms(0);
  session.set_uid(1001);
  EXPECT_THAT(ExamineBefore(*node.target, node.lists).forbids,
              ElementsAre(HasSubstr("another process")));
}

TEST(ExamineProcess, RefusesLeasesThatCannotBeSuspended) {
  const auto reasons = [](const std::function<void(v1::SegmentInfo&)>& change) {
    FakeNode node;
    change(node.AddSegment(1, v1::KIND_VMM));
    return ExamineBefore(*node.target, node.lists).forbids;
  };
  EXPECT_THAT(reasons([](v1::SegmentInfo&) {}), IsEmpty());
  EXPECT_THAT(reasons([](v1::SegmentInfo& segment) { segment.set_revocable(true); }),
              ElementsAre(HasSubstr("is revocable")));
  EXPECT_THAT(reasons([](v1::SegmentInfo& segment) { segment.set_lost(true); }),
              ElementsAre(HasSubstr("is lost")));
  EXPECT_THAT(reasons([](v1::SegmentInfo& segment) { segment.set_tenant("other"); }),
              ElementsAre(HasSubstr("another tenant's")));
  // A kind that this program does not know.
  EXPECT_THAT(
      reasons([](v1::SegmentInfo& segment) { segment.set_kind(static_cast<v1::Kind>(99)); }),
      ElementsAre(HasSubstr("could not restore")));
}

TEST(ExamineProcess, RefusesSegmentsThatItMayMapWithoutALease) {
  FakeNode node;
  node.AddSegment(1, v1::KIND_VMM);
  node.lists.holders.mutable_leases(0)->set_suspended(true);
  EXPECT_THAT(ExamineLocked(*node.target, node.lists, {kSession}), IsEmpty());
  node.lists.holders.clear_leases();
  EXPECT_THAT(ExamineBefore(*node.target, node.lists).forbids,
              ElementsAre(HasSubstr("may still map segment 1 (kind vmm)")));
  EXPECT_THAT(ExamineLocked(*node.target, node.lists, {kSession}),
              ElementsAre(HasSubstr("may still map segment 1 (kind vmm)")));
}

TEST(ExamineProcess, TheLastLookFindsSessionsThatCameOrWent) {
  FakeNode node;
  EXPECT_THAT(ExamineLocked(*node.target, node.lists, {kSession}), IsEmpty());
  EXPECT_THAT(ExamineLocked(*node.target, node.lists, {}),
              ElementsAre("session 12 has begun meanwhile"));
  EXPECT_THAT(ExamineLocked(*node.target, node.lists, {kSession, 13}),
              ElementsAre("session 13 has ended meanwhile"));
}

}  // namespace examine_process_test
}  // namespace gpumem::cli
