// SPDX-License-Identifier: Apache-2.0
// Programs in broker mode that are suspended at awkward moments, or came in by another way.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "tests/preload/brokered_fixture.h"

namespace gpumem::preload {
namespace {

using testing::Child;
using testing::Eventually;

class HeldTest : public SuspendedTest {
 protected:
  static void Touch(const std::string& path) { close(creat(path.c_str(), 0600)); }
  // Runs a program that has 48 MiB, and needs so much more.
  void BeginToWait(const std::string& way, uint64_t bytes) {
    Begin("wait " + way, "HELD", std::to_string(bytes));
  }
  Finished Suspend(const std::string& timeout = "30s") {
    return Ctl({"suspend", session_, "--yes", "--timeout", timeout});
  }
  void Resume() {
    const Finished resumed = Ctl({"resume", session_});
    EXPECT_EQ(resumed.status, 0) << resumed.errors;
  }
};

// A request that waits is no reason to keep what the program has already.
TEST_F(HeldTest, AProgramThatWaitsForMemoryIsSuspended) {
  for (const char* way : {"alloc", "async", "vmm"}) {
    SCOPED_TRACE(way);
    std::remove(stop_.c_str());
    environment["GPUMEM_TENANT"] = "first";
    Child holder(Preloaded({Path("HOLDER"), std::to_string(160 * kMiB)}));
    ASSERT_TRUE(Eventually([&] { return Held("vmm") >= 160 * kMiB; }));
    environment["GPUMEM_PRELOAD_WAIT_MS"] = "60000";
    environment.erase("GPUMEM_TENANT");
    Touch(stop_ + ".more");
    BeginToWait(way, 160 * kMiB);
    ASSERT_TRUE(Eventually([&] { return Usage().waiting > 0; }));
    for (int round = 0; round < 3; ++round) {
      const Finished suspended = Suspend("5s");
      ASSERT_EQ(suspended.status, 0) << suspended.errors;
      EXPECT_EQ(Held("vmm"), 160 * kMiB) << "the holder";
      EXPECT_GE(Held("tier"), 48 * kMiB);
      Resume();
    }
    EXPECT_EQ(Text(progress_).find("got="), std::string::npos);
    holder.Signal(SIGKILL);
    holder.Wait();
    ExpectItEndsWell();
    EXPECT_NE(Text(progress_).find("got="), std::string::npos);
  }
}

// Two programs that have almost half of the memory each, and both wait for more.
TEST_F(HeldTest, TwoThatWaitForMoreTakeTurns) {
  for (const char* way : {"alloc", "async", "vmm"}) {
    SCOPED_TRACE(way);
    std::remove(stop_.c_str());
    std::remove((stop_ + ".more").c_str());
    environment["GPUMEM_PRELOAD_WAIT_MS"] = "60000";
    environment["GPUMEM_TENANT"] = "second";
    const std::string other_stop = stop_ + ".other";
    Child other(Preloaded({Path("HELD"), "wait", way, other_stop, std::to_string(200 * kMiB)}));
    ASSERT_TRUE(Eventually([&] { return Held("vmm") >= 48 * kMiB; }));
    BeginToWait(way, 200 * kMiB);
    EXPECT_EQ(Held("vmm"), 96 * kMiB);
    Touch(stop_ + ".more");
    Touch(other_stop + ".more");
    ASSERT_TRUE(Eventually([&] { return Text(progress_).find("got=") != std::string::npos; }))
        << Text(errors_) << daemon_->Log();
    Touch(other_stop);
    EXPECT_EQ(other.Wait(), 0);
    ExpectItEndsWell();
    std::remove(other_stop.c_str());
    std::remove((other_stop + ".more").c_str());
  }
}

TEST_F(HeldTest, WorkThatIsUnderWayEndsFirst) {
  Begin("pending", "HELD");
  for (int round = 0; round < 8; ++round) {
    const Finished suspended = Suspend();
    ASSERT_EQ(suspended.status, 0) << suspended.errors;
    EXPECT_EQ(Held("vmm"), 0u);
    const size_t before = Dots();
    Resume();
    EXPECT_TRUE(Eventually([&] { return Dots() > before + 1; }));
  }
  ExpectItEndsWell();
}

// The GPU waits for a thread that waits at the gate. Neither would ever go on.
TEST_F(HeldTest, WorkThatCannotEndIsNoReasonToStop) {
  Begin("tangled", "HELD");
  EXPECT_NE(Suspend("1s").status, 0);
  ASSERT_TRUE(Eventually([&] { return !Text(errors_).empty(); }));
  EXPECT_NE(Text(errors_).find("not suspended: the program's GPU work has not ended"),
            std::string::npos);
  const size_t before = Dots();
  Touch(stop_ + ".go");
  EXPECT_TRUE(Eventually([&] { return Dots() > before; }));
  const Finished suspended = Suspend();
  EXPECT_EQ(suspended.status, 0) << suspended.errors;
  Resume();
  ExpectItEndsWell();
}

TEST_F(HeldTest, MemoryWithADmaBufIsGivenToNoOther) {
  const Finished run = Run({Path("HELD"), "given"});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.value("wrong"), "0");
  EXPECT_EQ(run.value("buffer"), "801") << "of memory that can move";
  EXPECT_EQ(run.value("retained"), "1") << "as of memory of cuMemAlloc()";
  ExpectAllBack();
}

// libgpumem's own calls reach the library, too.
class InjectedTest : public HeldTest {
 protected:
  void SetUp() override {
    if (SkipsInjection()) return;
    HeldTest::SetUp();
    via_ = Via::kInjection;
  }
};

TEST_F(InjectedTest, AnOperatorSuspendsIt) {
  Begin("work");
  ExpectAnOperatorSuspendsIt("alloc", 45 * kMiB);
}

TEST_F(InjectedTest, AnOperatorSuspendsItsStreamOrderedMemory) {
  Begin("work", "ASYNC_WORK");
  ExpectAnOperatorSuspendsIt("async", (45 + 8) * kMiB);
}

TEST_F(InjectedTest, AnOperatorSuspendsItsPhysicalMemory) {
  Begin("work", "PHYSICAL_WORK");
  ExpectAnOperatorSuspendsIt("alloc", 24 * kMiB);
}

TEST_F(InjectedTest, AnotherProgramsRequestSuspendsIt) {
  // It asks for memory again and again, also while the other one waits before it.
  environment["GPUMEM_PRELOAD_WAIT_MS"] = "20000";
  Begin("both", "PHYSICAL_WORK");
  environment["GPUMEM_TENANT"] = "first";
  const Finished run = Run({Path("BROKERED"), "once", std::to_string(250 * kMiB)});
  EXPECT_EQ(run.value("code"), "0") << run.errors;
  ExpectItEndsWell();
}

}  // namespace
}  // namespace gpumem::preload
