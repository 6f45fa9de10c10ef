// SPDX-License-Identifier: Apache-2.0
// Programs in broker mode whose memory is that of cuMemCreate(): it is gpumem's, and they do not
// see it.
#include <signal.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/preload/brokered_fixture.h"

namespace gpumem::preload {
namespace {

using testing::Child;
using testing::Eventually;

using PhysicalTest = BrokeredTest;

TEST_F(PhysicalTest, MemoryIsGpumemsAndTheLimitHolds) {
  for (const char* way : {"vmm", "early", "retained"}) {
    SCOPED_TRACE(way);
    const Finished run = Run({Path("WAYS_DLSYM"), way, std::to_string(32 * kMiB)});
    ASSERT_EQ(run.status, 0) << run.errors;
    EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
    EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "2"})) << run.output;
    EXPECT_EQ(run.values("free"), (std::vector<std::string>(2, std::to_string(16 * kMiB))));
    EXPECT_EQ(run.value("end_free"), std::to_string(272 * kMiB));
    // The driver of the process made a context, and no memory beside it.
    EXPECT_EQ(driver_peak(), 16 * kMiB);
    ExpectAllBack();
  }
  EXPECT_EQ(Usage().peak_bytes, 272 * kMiB);
}

TEST_F(PhysicalTest, TheDriverTellsAndRefusesTheSame) { ExpectSame("facts", "PHYSICAL"); }

TEST_F(PhysicalTest, ProgramsSeeTheSame) {
  // A child after fork() is refused; captures allow it; it outlives the primary context; other
  // processes import it.
  for (const char* matter : {"fork", "captured", "reset", "export"}) {
    SCOPED_TRACE(matter);
    ExpectSame(matter, "PHYSICAL");
    EXPECT_EQ(driver_peak(), 16 * kMiB) << "the driver has made a context alone";
  }
}

// The daemon gives this tenant eight segments. Two are reservations: of a context, and of 32 MiB,
// of which managed memory needs 2 MiB. So six pieces are gpumem's, and the others the driver's.
TEST_F(PhysicalTest, PiecesBeyondTheSegmentsAreTheDrivers) {
  environment["GPUMEM_TENANT"] = "few";
  environment["GPUMEM_PRELOAD_CHUNK"] = std::to_string(32 * kMiB);
  const Finished run = Run({Path("PHYSICAL"), "many", "20"});
  EXPECT_EQ(run.value("wrong"), "0") << run.errors;
  EXPECT_EQ(driver_peak(), (16 + 2 + 14 * 2) * kMiB);
  // None are left for a reservation.
  const Finished more = Run({Path("PHYSICAL"), "many", "22"});
  EXPECT_EQ(more.errors, "create: 2\n");
}

TEST_F(PhysicalTest, MemoryOfAKilledProcessComesBack) {
  const std::string never = daemon_->state_dir() + "/never";
  for (const char* what : {"work", "lend", "threads"}) {
    SCOPED_TRACE(what);
    Child program(Preloaded(
        {"/bin/sh", "-c",
         absl::StrCat("exec ", Path("PHYSICAL_WORK"), " ", what, " ", never, " >/dev/null")}));
    ASSERT_TRUE(Eventually([&] { return Held("vmm") >= 6 * kMiB; }));
    program.Signal(SIGKILL);
    program.Wait();
    ExpectAllBack();
  }
}

class SuspendedPhysicalTest : public SuspendedTest {
 protected:
  void Begin(const std::string& what) { SuspendedTest::Begin(what, "PHYSICAL_WORK"); }

  void Suspend() {
    const Finished suspended = Ctl({"suspend", session_, "--yes"});
    ASSERT_EQ(suspended.status, 0) << suspended.errors;
  }

  // Another program, which has so much memory that this one cannot resume.
  Child Holder(uint64_t bytes) {
    environment["GPUMEM_TENANT"] = "first";
    Child holder(Preloaded({Path("HOLDER"), std::to_string(bytes)}));
    EXPECT_TRUE(Eventually([&] { return Held("vmm") >= bytes; }));
    return holder;
  }

  void ExpectItResumesWithout(Child& holder) {
    holder.Signal(SIGKILL);
    holder.Wait();
    ASSERT_TRUE(Eventually([&] { return Held("vmm") == 0; }));
    const Finished resumed = Ctl({"resume", session_});
    EXPECT_EQ(resumed.status, 0) << resumed.errors;
    ExpectItEndsWell();
  }

  // Suspends and resumes, and expects that `left` bytes stay on the device.
  void TakeRounds(uint64_t left) {
    for (int round = 0; round < 3; ++round) {
      Suspend();
      EXPECT_EQ(Held("vmm"), left);
      EXPECT_GE(Held("tier"), 24 * kMiB);
      EXPECT_EQ(Usage().leased_bytes, 16 * kMiB + left) << "the context";
      const size_t before = Dots();
      const uint64_t rest = 272 * kMiB - left;
      const Finished other = Run({Path("PHYSICAL"), "once", std::to_string(rest)});
      EXPECT_EQ(other.value("code"), "2") << "the other process has a context, too";
      const Finished smaller = Run({Path("PHYSICAL"), "once", std::to_string(rest - 16 * kMiB)});
      EXPECT_EQ(smaller.value("code"), "0") << smaller.errors;
      EXPECT_LE(Dots(), before + 1);
      ASSERT_TRUE(Eventually([&] { return Usage().leased_bytes == 16 * kMiB + left; }));
      const Finished resumed = Ctl({"resume", session_});
      ASSERT_EQ(resumed.status, 0) << resumed.errors;
      EXPECT_TRUE(Eventually([&] { return Dots() > before + 1; }));
    }
    ExpectItEndsWell();
  }
};

TEST_F(SuspendedPhysicalTest, AnOperatorSuspendsAProgramThatKnowsNothingOfIt) {
  Begin("work");
  TakeRounds(0);
}

TEST_F(SuspendedPhysicalTest, MemoryOfOtherProcessesStays) {
  Begin("lend");
  TakeRounds(6 * kMiB);
}

TEST_F(SuspendedPhysicalTest, MemoryThatIsBoundStays) {
  Begin("pin");
  TakeRounds(12 * kMiB);
}

TEST_F(SuspendedPhysicalTest, ThreadsMapAndUnmapMeanwhile) {
  Begin("threads");
  for (int round = 0; round < 10; ++round) {
    Suspend();
    EXPECT_EQ(Held("vmm"), 0u);
    const size_t before = Dots();
    const Finished resumed = Ctl({"resume", session_});
    EXPECT_EQ(resumed.status, 0) << resumed.errors;
    ASSERT_TRUE(Eventually([&] { return Dots() > before + 8; }));
  }
  ExpectItEndsWell();
}

TEST_F(SuspendedPhysicalTest, ItCanEndMeanwhile) {
  Begin("leave");
  Suspend();
  Stop();
  EXPECT_EQ(program_.Wait(), 0);
  ExpectAllBack();
  EXPECT_TRUE(Eventually([&] { return Held("tier") == 0; }));
}

TEST_F(SuspendedPhysicalTest, ItCanBeKilledMeanwhile) {
  Begin("work");
  Suspend();
  program_.Signal(SIGKILL);
  EXPECT_EQ(program_.Wait(), 128 + SIGKILL);
  ExpectAllBack();
  EXPECT_TRUE(Eventually([&] { return Held("tier") == 0; }));
}

// Two programs that do not fit on the device together take turns, and know nothing of it.
TEST_F(SuspendedPhysicalTest, AnotherProgramsRequestSuspendsIt) {
  // It asks for memory again and again, also while the other one waits before it.
  environment["GPUMEM_PRELOAD_WAIT_MS"] = "20000";
  Begin("work");
  environment["GPUMEM_TENANT"] = "first";
  const Finished run = Run({Path("PHYSICAL"), "once", std::to_string(268 * kMiB)});
  EXPECT_EQ(run.value("code"), "0") << run.errors;
  EXPECT_NE(daemon_->Log().find("suspension-asked"), std::string::npos);
  // The program has resumed by itself.
  ExpectItEndsWell();
}

TEST_F(SuspendedPhysicalTest, WithoutRoomItIsResumedLater) {
  Begin("work");
  Suspend();
  Child holder = Holder(256 * kMiB);
  const size_t before = Dots();
  EXPECT_NE(Ctl({"resume", session_, "--timeout", "200ms"}).status, 0);
  EXPECT_LE(Dots(), before + 1);
  ExpectItResumesWithout(holder);
}

// Memory of cuMemCreate() fits, and the pool's does not. Two programs that each hold a part, and
// wait for the rest, would wait for ever.
TEST_F(SuspendedPhysicalTest, APartThatCameBackGoesAgain) {
  Begin("both");
  Suspend();
  Child holder = Holder(224 * kMiB);
  const uint64_t held = Held("vmm");
  const size_t before = Dots();
  Child resumes(Plain({Path("GPUMEMCTL"), "resume", session_, "--timeout", "5s"}));
  EXPECT_TRUE(Eventually([&] { return Held("vmm") >= held + 24 * kMiB; }));
  EXPECT_NE(resumes.Wait(), 0);
  EXPECT_TRUE(Eventually([&] { return Held("vmm") == held; }));
  EXPECT_LE(Dots(), before + 1);
  ExpectItResumesWithout(holder);
}

// The program waits, and does not go on with addresses that have no memory.
TEST_F(SuspendedPhysicalTest, AMappingThatTheDriverRefusesIsMadeLater) {
  const std::string refuse = daemon_->state_dir() + "/refuse";
  environment["FAKE_CUDA_REFUSE_RETAIN"] = refuse;
  Begin("work");
  Suspend();
  close(creat(refuse.c_str(), 0600));
  const size_t before = Dots();
  (void)Ctl({"resume", session_, "--timeout", "500ms"});
  ASSERT_TRUE(Eventually([&] { return !Text(errors_).empty(); }));
  EXPECT_NE(Text(errors_).find("does not map resumed memory"), std::string::npos);
  EXPECT_LE(Dots(), before + 1);
  ASSERT_EQ(std::remove(refuse.c_str()), 0);
  ExpectItEndsWell();
}

}  // namespace
}  // namespace gpumem::preload
