// SPDX-License-Identifier: Apache-2.0
#include "client/cli/process/whole_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/process/testing/fake_node.h"
#include "common/bytes.h"

namespace gpumem::cli {
namespace whole_process_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kTime = absl::Seconds(10);

class WholeProcessTest : public ::testing::Test {
 protected:
  WholeProcessTest() : folder_(MakeFolder()), records_(folder_ + "/records") {}
  ~WholeProcessTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  static std::string MakeFolder() {
    char path[] = "/tmp/gpumemctl-process-XXXXXX";
    return mkdtemp(path);
  }

  WholeProcess Process() { return {&node_, &node_, &node_, &records_}; }
  absl::StatusOr<SuspendedProcess> Suspend() { return Process().Suspend(kTime); }
  absl::StatusOr<ResumedProcess> Resume(std::optional<uint64_t> bytes = std::nullopt) {
    return Process().Resume(kTime, bytes);
  }
  // Expects that nothing at all was done.
  void ExpectRefused(absl::StatusCode code, const std::string& words) {
    const bool mapped = node_.IsMapped();
    const auto done = Suspend();
    EXPECT_EQ(done.status().code(), code) << done.status();
    EXPECT_THAT(std::string(done.status().message()), HasSubstr(words));
    EXPECT_THAT(node_.calls, IsEmpty());
    EXPECT_EQ(node_.state, CheckpointState::kRunning);
    EXPECT_EQ(node_.IsMapped(), mapped);
  }
  // Expects an error after which the process is as it was.
  void ExpectUndone(absl::StatusCode code, const std::string& words) {
    const bool mapped = node_.IsMapped();
    const auto done = Suspend();
    EXPECT_EQ(done.status().code(), code) << done.status();
    EXPECT_THAT(std::string(done.status().message()), HasSubstr(words));
    EXPECT_EQ(node_.state, CheckpointState::kRunning);
    EXPECT_EQ(node_.IsMapped(), mapped);
    EXPECT_TRUE(absl::IsNotFound(records_.Read(kPid, 99).status()));
  }

  FakeNode node_;
  const std::string folder_;
  const ProcessRecords records_;
};

TEST_F(WholeProcessTest, SuspendsTheSessionsFirstAndResumesThemLast) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.AddSegment(2, v1::KIND_VMM);
  const auto done = Suspend();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(node_.calls, ElementsAre("suspend 12", "lock", "checkpoint"));
  EXPECT_EQ(node_.state, CheckpointState::kCheckpointed);
  EXPECT_EQ(done->leases.suspended_leases(), 2u);
  EXPECT_EQ(done->leases.moved_bytes(), 2 * kGiB);
  EXPECT_EQ(done->moved.at(kGpu), 526 * kMiB);

  node_.calls.clear();
  const auto back = Resume();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(node_.calls, ElementsAre("restore", "unlock", "resume 12"));
  EXPECT_EQ(node_.state, CheckpointState::kRunning);
  EXPECT_EQ(back->leases.resumed_leases(), 2u);
  EXPECT_EQ(back->moved.at(kGpu), 526 * kMiB);
  EXPECT_TRUE(absl::IsNotFound(records_.Read(kPid, 99).status()));
}

TEST_F(WholeProcessTest, LeavesSessionsAloneThatWereSuspendedBefore) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.AddSession(13);
  node_.AddSegment(2, v1::KIND_VMM, 13);
  node_.lists.holders.mutable_leases(1)->set_suspended(true);
  ASSERT_TRUE(Suspend().ok());
  ASSERT_TRUE(Resume().ok());
  EXPECT_THAT(node_.calls,
              ElementsAre("suspend 12", "lock", "checkpoint", "restore", "unlock", "resume 12"));
  EXPECT_TRUE(node_.lists.holders.leases(1).suspended());
}

// Each row of the facts.

TEST_F(WholeProcessTest, TakesWhatTheDriverCanRestore) {
  // Plain memory alone; then registered host memory (kind pinned) beside it.
  ASSERT_TRUE(Suspend().ok());
  ASSERT_TRUE(Resume().ok());
  node_.AddSegment(50, v1::KIND_PINNED);
  node_.calls.clear();
  ASSERT_TRUE(Suspend().ok());
  ASSERT_TRUE(Resume().ok());
  EXPECT_THAT(node_.calls, ElementsAre("lock", "checkpoint", "restore", "unlock"));
}

TEST_F(WholeProcessTest, RefusesAMappingThatStays) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.suspends = absl::DeadlineExceededError("session 12 has not suspended all its leases");
  ExpectUndone(absl::StatusCode::kDeadlineExceeded, "has not suspended");
  EXPECT_THAT(node_.calls, ElementsAre("suspend 12", "resume 12"));
  // It says that it has, and maps more until it is locked.
  node_.suspends = absl::OkStatus();
  node_.locked = [this] { node_.AddSegment(3, v1::KIND_VMM); };
  ExpectUndone(absl::StatusCode::kFailedPrecondition, "lease 103 of session 12 is not suspended");
}

TEST_F(WholeProcessTest, RefusesLegacyIpc) {
  node_.AddSegment(1, v1::KIND_IPC);
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "is of kind ipc");
}

TEST_F(WholeProcessTest, RefusesPools) {
  node_.AddSegment(1, v1::KIND_MEMPOOL);
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "kind mempool");
}

TEST_F(WholeProcessTest, RefusesAPoolThatIsStillOpenWithoutALease) {
  v1::SegmentInfo& segment = *node_.lists.segments.add_segments();
  segment.set_kind(v1::KIND_MEMPOOL);
  segment.set_tenant("team");
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "which the process may have open");
  segment.set_tenant("other");
  EXPECT_TRUE(Suspend().ok());
}

TEST_F(WholeProcessTest, RefusesAProcessWithoutAContext) {
  node_.memory.clear();
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "no CUDA context");
}

TEST_F(WholeProcessTest, UndoesAllIfTheDriverRefusesManagedMemory) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.checkpoints = absl::UnimplementedError("CUDA_ERROR_NOT_SUPPORTED");
  ExpectUndone(absl::StatusCode::kUnimplemented, "NOT_SUPPORTED");
  EXPECT_THAT(node_.calls, ElementsAre("suspend 12", "lock", "checkpoint", "unlock", "resume 12"));
}

TEST_F(WholeProcessTest, WaitsForRoomAndElseLeavesTheProcessSuspended) {
  node_.AddSegment(1, v1::KIND_VMM);
  ASSERT_TRUE(Suspend().ok());
  node_.calls.clear();
  // Enough for the process, and not for the margin.
  v1::Device& gpu = *node_.lists.status.mutable_devices(0);
  gpu.set_driver_free_bytes(526 * kMiB + kRestoreMargin - 1);
  const auto full = Resume();
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted) << full.status();
  EXPECT_EQ(node_.now, absl::UnixEpoch() + kTime);
  EXPECT_THAT(node_.calls, IsEmpty());
  EXPECT_EQ(node_.state, CheckpointState::kCheckpointed);
  gpu.set_driver_free_bytes(0);  // the daemon does not know
  EXPECT_EQ(Resume().status().code(), absl::StatusCode::kResourceExhausted);
  node_.slept = [&] { gpu.set_driver_free_bytes(526 * kMiB + kRestoreMargin); };
  EXPECT_TRUE(Resume().ok());
}

TEST_F(WholeProcessTest, SaysThatAFailedRestoreHasLostTheProcess) {
  ASSERT_TRUE(Suspend().ok());
  node_.restorable = false;
  node_.calls.clear();
  const auto lost = Resume();
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kDataLoss) << lost.status();
  EXPECT_THAT(std::string(lost.status().message()), HasSubstr("End it"));
  EXPECT_THAT(node_.calls, ElementsAre("restore"));
  EXPECT_EQ(Resume().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(node_.calls, ElementsAre("restore")) << "there is no second try";
}

TEST_F(WholeProcessTest, UndoesAllIfGpuWorkDoesNotEndInTime) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.locks = absl::DeadlineExceededError("the GPU work of process 4711 has not ended in time");
  ExpectUndone(absl::StatusCode::kDeadlineExceeded, "GPU work");
  EXPECT_THAT(node_.calls, ElementsAre("suspend 12", "lock", "resume 12"));
}

TEST_F(WholeProcessTest, RefusesAStoppedProcessBeforeTheDriverWaitsForIt) {
  node_.target->state = 'T';
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "SIGCONT");
  node_.target->state = 'S';
  ASSERT_TRUE(Suspend().ok());
  node_.target->state = 't';
  EXPECT_EQ(Resume().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(node_.state, CheckpointState::kCheckpointed);
}

TEST_F(WholeProcessTest, AnEndedProcessIsNotFound) {
  ASSERT_TRUE(Suspend().ok());
  node_.target = absl::NotFoundError("no process 4711");
  EXPECT_EQ(Resume().status().code(), absl::StatusCode::kNotFound);
}

// What may happen between the steps.

TEST_F(WholeProcessTest, UndoesAllForASessionThatBeginsMeanwhile) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.locked = [this] { node_.AddSession(13); };
  ExpectUndone(absl::StatusCode::kFailedPrecondition, "session 13 has begun meanwhile");
  EXPECT_THAT(node_.calls, ElementsAre("suspend 12", "lock", "unlock", "resume 12"));
}

TEST_F(WholeProcessTest, UndoesAllIfTheListsDisagree) {
  node_.AddSegment(1, v1::KIND_VMM);
  // The lease has moved to a segment that the list of segments does not have yet.
  node_.locked = [this] { node_.lists.segments.clear_segments(); };
  ExpectUndone(absl::StatusCode::kFailedPrecondition, "lease 101 of session 12 is not suspended");
}

TEST_F(WholeProcessTest, TouchesNoOtherProcessOfThatNumber) {
  node_.locked = [this] { node_.target = absl::NotFoundError("no process 4711"); };
  EXPECT_EQ(Suspend().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(node_.calls, ElementsAre("lock"));
}

TEST_F(WholeProcessTest, NeedsHostMemoryForTheContents) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.host_bytes = 526 * kMiB + kCheckpointHostBytes - 1;
  ExpectUndone(absl::StatusCode::kResourceExhausted, "of host memory");
  node_.host_bytes += 1;
  EXPECT_TRUE(Suspend().ok());
}

TEST_F(WholeProcessTest, SaysWhatItCouldNotUndo) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.checkpoints = absl::InternalError("CUDA_ERROR_UNKNOWN");
  node_.resumes = absl::DeadlineExceededError("others have the memory");
  auto done = Suspend();
  EXPECT_THAT(std::string(done.status().message()),
              AllOf(HasSubstr("CUDA_ERROR_UNKNOWN"), HasSubstr("12 (others have the memory)"),
                    HasSubstr("gpumemctl resume --process 4711")));
  EXPECT_EQ(node_.state, CheckpointState::kRunning);
  // The command that the message names helps.
  node_.resumes = absl::OkStatus();
  EXPECT_TRUE(Resume().ok());
  EXPECT_TRUE(node_.IsMapped());

  node_.unlocks = absl::DeadlineExceededError("no answer");
  done = Suspend();
  EXPECT_THAT(std::string(done.status().message()), HasSubstr("it may be locked (no answer)"));
  EXPECT_EQ(node_.state, CheckpointState::kLocked);
  node_.unlocks = absl::OkStatus();
  EXPECT_TRUE(Resume().ok());
  EXPECT_EQ(node_.state, CheckpointState::kRunning);
  EXPECT_TRUE(node_.IsMapped());
}

TEST_F(WholeProcessTest, TheLockOfAnotherCommandStays) {
  node_.AddSegment(1, v1::KIND_VMM);
  // It locks the process while the sessions suspend.
  node_.asked_to_suspend = [&] { node_.state = CheckpointState::kLocked; };
  EXPECT_EQ(Suspend().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(node_.calls, ElementsAre("suspend 12", "lock"));
  EXPECT_EQ(node_.state, CheckpointState::kLocked);
}

TEST_F(WholeProcessTest, AResumeMayBeRepeatedForTheSessions) {
  node_.AddSegment(1, v1::KIND_VMM);
  ASSERT_TRUE(Suspend().ok());
  node_.calls.clear();
  node_.resumes = absl::UnavailableError("the daemon is draining");
  const auto half = Resume();
  EXPECT_EQ(half.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(half.status().message()), HasSubstr("repeat the command"));
  node_.resumes = absl::OkStatus();
  const auto rest = Resume();
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(rest->moved, IsEmpty());
  EXPECT_THAT(node_.calls, ElementsAre("restore", "unlock", "resume 12", "resume 12"));
}

TEST_F(WholeProcessTest, WithoutARecordTheUserHasToNameTheNeed) {
  ASSERT_TRUE(Suspend().ok());
  records_.Remove(kPid, 99);
  node_.calls.clear();
  const auto unknown = Resume();
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("--bytes"));
  EXPECT_THAT(node_.calls, IsEmpty());
  EXPECT_EQ(Resume(9 * kGiB).status().code(), absl::StatusCode::kResourceExhausted);
  const auto back = Resume(kGiB);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->moved, (DeviceBytesMap{{kGpu, kGiB}}));
}

// Users who take turns leave records of each suspension: an older one may name too little.
TEST_F(WholeProcessTest, TheUsersBytesAddToTheRecord) {
  ASSERT_TRUE(Suspend().ok());
  node_.lists.status.mutable_devices(0)->set_driver_free_bytes(2 * kGiB);
  EXPECT_EQ(Resume(UINT64_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Resume(2 * kGiB).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Resume(kGiB).ok());
}

TEST_F(WholeProcessTest, ASecondSuspensionForgetsNoSessionThatIsOwed) {
  node_.AddSegment(1, v1::KIND_VMM);
  ASSERT_TRUE(Suspend().ok());
  node_.resumes = absl::ResourceExhaustedError("others have the memory");
  EXPECT_FALSE(Resume().ok());
  ASSERT_TRUE(Suspend().ok());
  node_.resumes = absl::OkStatus();
  node_.calls.clear();
  ASSERT_TRUE(Resume().ok());
  EXPECT_THAT(node_.calls, ElementsAre("restore", "unlock", "resume 12"));
}

TEST_F(WholeProcessTest, LostMemoryIsOwedToNobody) {
  v1::SegmentInfo& segment = node_.AddSegment(1, v1::KIND_VMM);
  ASSERT_TRUE(Suspend().ok());
  segment.set_lost(true);
  node_.calls.clear();
  ASSERT_TRUE(Resume().ok());
  EXPECT_THAT(node_.calls, ElementsAre("restore", "unlock"));
}

TEST_F(WholeProcessTest, ATimeoutSaysThatTheSessionMayStillFollow) {
  node_.AddSegment(1, v1::KIND_VMM);
  node_.suspends = absl::DeadlineExceededError("1 lease is not suspended yet");
  EXPECT_THAT(std::string(Suspend().status().message()),
              HasSubstr("session 12 may still suspend it later"));
}

TEST_F(WholeProcessTest, ASecondCommandDoesNotInterfere) {
  node_.state = CheckpointState::kLocked;
  EXPECT_THAT(std::string(Suspend().status().message()), HasSubstr("another command"));
  node_.state = CheckpointState::kCheckpointed;
  EXPECT_THAT(std::string(Suspend().status().message()), HasSubstr("already"));
  EXPECT_THAT(node_.calls, IsEmpty());
}

TEST_F(WholeProcessTest, ADryRunNamesTheStepsOrEachReason) {
  node_.AddSegment(1, v1::KIND_VMM);
  auto effects = Process().SuspendEffects(false);
  ASSERT_TRUE(effects.ok()) << effects.status();
  EXPECT_THAT(effects->lines,
              ElementsAre("session 12 is asked to suspend its leases",
                          "process 4711 moves up to 526.00 MiB of its own on GPU-1 to its host "
                          "memory, its context included",
                          "its CUDA calls block until gpumemctl resume --process 4711"));
  EXPECT_TRUE(effects->takes);
  node_.AddSegment(2, v1::KIND_IPC);
  node_.AddSegment(3, v1::KIND_MEMPOOL);
  effects = Process().SuspendEffects(false);
  EXPECT_THAT(effects->lines, IsEmpty());
  EXPECT_THAT(effects->notices, Not(ElementsAre()));
  for (const std::string& notice : effects->notices) EXPECT_THAT(notice, HasSubstr("forbidden: "));
  EXPECT_THAT(node_.calls, IsEmpty());
}

TEST_F(WholeProcessTest, ADryRunOfResumeNamesWhatIsMissing) {
  ASSERT_TRUE(Suspend().ok());
  node_.calls.clear();
  node_.lists.status.mutable_devices(0)->set_driver_free_bytes(kMiB);
  const auto effects = Process().ResumeEffects(std::nullopt, false);
  ASSERT_TRUE(effects.ok()) << effects.status();
  EXPECT_THAT(effects->lines, ElementsAre("process 4711 moves up to 526.00 MiB back to GPU-1",
                                          "process 4711 goes on with its CUDA calls"));
  EXPECT_THAT(effects->notices, ElementsAre(HasSubstr("forbidden: device GPU-1 has 1.00 MiB free"),
                                            HasSubstr("gpumemctl drain")));
  EXPECT_THAT(node_.calls, IsEmpty());
}

}  // namespace whole_process_test
}  // namespace gpumem::cli
