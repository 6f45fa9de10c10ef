// SPDX-License-Identifier: Apache-2.0
// Programs in broker mode: their memory is gpumem's, and they do not see it.
//
// The daemon runs its CUDA backend on the fake driver, so all of the way is used: segments, pools,
// suspensions.
#include <signal.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "tests/preload/brokered_fixture.h"

namespace gpumem::preload {
namespace {

using testing::Child;
using testing::Eventually;

TEST_F(BrokeredTest, MemoryIsGpumemsAndTheLimitHolds) {
  for (const char* way : {"alloc", "pitch", "crossed", "async", "crossed_back"}) {
    SCOPED_TRACE(way);
    const Finished run = Run({Path("WAYS_DLSYM"), way, std::to_string(32 * kMiB)});
    ASSERT_EQ(run.status, 0) << run.errors;
    EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
    EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "2"})) << run.output;
    EXPECT_EQ(run.values("total"), (std::vector<std::string>(2, std::to_string(288 * kMiB))));
    EXPECT_EQ(run.values("free"), (std::vector<std::string>(2, std::to_string(16 * kMiB))));
    EXPECT_EQ(run.value("end_free"), std::to_string(272 * kMiB));
    // The driver of the process made a context, and no memory beside it.
    EXPECT_EQ(driver_peak(), 16 * kMiB);
    ExpectAllBack();
  }
  // The pool may have leased somewhat more than the 8 times 32 MiB.
  EXPECT_GE(Usage().peak_bytes, 272 * kMiB);
  EXPECT_LE(Usage().peak_bytes, 288 * kMiB);
}

// What cannot be gpumem's is charged beside it, and room that one of both does not need is given to
// the other.
TEST_F(BrokeredTest, OtherMemoryIsChargedBesideIt) {
  for (const char* way : {"managed", "vmm", "pool", "node", "capture", "array"}) {
    SCOPED_TRACE(way);
    const Finished run = Run({Path("WAYS_DLSYM"), way, std::to_string(32 * kMiB)});
    ASSERT_EQ(run.status, 0) << run.errors;
    EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
    EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "2"})) << run.output;
    ExpectAllBack();
  }
  EXPECT_LE(Usage().peak_bytes, 288 * kMiB);
}

TEST_F(BrokeredTest, PointersTellWhatWasAskedFor) { ExpectSame("pointers"); }
TEST_F(BrokeredTest, HandlesOpenInOtherProcesses) { ExpectSame("ipc"); }
TEST_F(BrokeredTest, CapturesForbidAndAllowTheSame) {
  ExpectSame("deferred");
  // The driver has made a context, and the 1,000 bytes of a capture.
  EXPECT_LT(driver_peak(), 17 * kMiB) << "no capture is under way any more";
}
TEST_F(BrokeredTest, MemoryGoesWithThePrimaryContext) { ExpectSame("reset"); }

// NVML does not count memory that a process has imported to it.
TEST_F(BrokeredTest, NvmlCountsThePoolToItsProcess) {
  environment["GPUMEM_PRELOAD_NVML"] = "1";
  const Finished run = Run({Path("BROKERED"), "nvml"});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.value("few"), "7") << "the array is too short";
  EXPECT_EQ(run.value("before"), "2000");
  EXPECT_EQ(run.value("after"), std::to_string(64 * kMiB + 2000));
  EXPECT_EQ(run.value("after_v2"), run.value("after"));
  EXPECT_EQ(run.values("other"), (std::vector<std::string>{"1000", std::to_string(~uint64_t{0})}));
}

// What the pool keeps without use, or the preload has reserved, is no reason to refuse the other.
TEST_F(BrokeredTest, FreedMemoryIsForBothSorts) {
  environment["GPUMEM_PRELOAD_CHUNK"] = std::to_string(64 * kMiB);
  ExpectSame("mixed");
}

TEST_F(BrokeredTest, ManyThreadsUseItAtOnce) {
  const Finished run = Run({Path("THREADS"), "8", "300"});
  EXPECT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.value("others"), "0") << run.output;
  EXPECT_LE(Usage().peak_bytes, 288 * kMiB);
  ExpectAllBack();
}

TEST_F(BrokeredTest, MemoryOfAKilledProcessComesBack) {
  for (int round = 0; round < 5; ++round) {
    Child holder(Preloaded({Path("HOLDER"), std::to_string(200 * kMiB)}));
    ASSERT_TRUE(Eventually([&] { return Usage().leased_bytes >= 216 * kMiB; }));
    EXPECT_GE(Held("vmm"), 200 * kMiB);
    holder.Signal(SIGKILL);
    holder.Wait();
    ExpectAllBack();
  }
}

// The pool of a program that has freed its memory is empty when others need that.
TEST_F(BrokeredTest, FreedMemoryIsForOthers) {
  Child holder(Preloaded({Path("HOLDER"), std::to_string(200 * kMiB), "freed"}));
  ASSERT_TRUE(Eventually([&] { return Held("vmm") >= 200 * kMiB; }));
  environment["GPUMEM_PRELOAD_WAIT_MS"] = "10000";
  const Finished run = Run({Path("BROKERED"), "once", std::to_string(200 * kMiB)});
  EXPECT_EQ(run.value("code"), "0") << run.errors;
}

// NVIDIA's MPS limits each process, too.
TEST_F(BrokeredTest, ARunIsLimitedByMpsAsWell) {
  const std::string folder = daemon_->state_dir() + "/mps";
  const std::string print = "echo limit=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
  environment["CUDA_MPS_PIPE_DIRECTORY"] = folder;
  const std::vector<std::string> command = {"run", "--quiet", "--limit", "100MiB",
                                            "--",  "/bin/sh", "-c",      print};
  EXPECT_EQ(Ctl(command).value("limit"), "");
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(mkfifo((folder + "/control").c_str(), 0600), 0);
  EXPECT_EQ(Ctl(command).output, "limit=0=100M\n");
  environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=1G";
  EXPECT_EQ(Ctl(command).output, "limit=0=1G\n");
}

TEST_F(BrokeredTest, ARunChoosesTheMode) {
  const std::vector<std::string> program = {"--quiet", "--", Path("WAYS_DLSYM"), "alloc",
                                            std::to_string(32 * kMiB)};
  for (const char* mode : {"account", "broker"}) {
    std::vector<std::string> command = {"run", "--mode", mode, "--limit", "144MiB"};
    command.insert(command.end(), program.begin(), program.end());
    const Finished run = Ctl(command);
    EXPECT_EQ(run.values("got"), (std::vector<std::string>{"4", "4"})) << run.output << run.errors;
    // The fake driver has made what the program had, or a context alone.
    EXPECT_EQ(driver_peak(), (mode == std::string("account") ? 144u : 16u) * kMiB);
    ExpectAllBack();
  }
}

class TwoGpusTest : public BrokeredTest {
 protected:
  TwoGpusTest() : BrokeredTest(/*devices=*/2) {}
};

// As after cuCtxEnablePeerAccess() in a program without gpumem.
TEST_F(TwoGpusTest, EachMayUseTheOthersMemory) {
  const Finished run = Run({Path("PEERS")});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.value("alloc"), "3/3");
  EXPECT_EQ(run.value("ordered"), "3/3");
  EXPECT_EQ(run.value("opened_on_second"), "0/3");
  EXPECT_EQ(run.value("opened_on_first"), "3/0");
  EXPECT_EQ(run.value("close"), "0/0");
  ExpectAllBack();
}

TEST_F(SuspendedTest, AnOperatorSuspendsAProgramThatKnowsNothingOfIt) {
  Begin("work");
  ExpectAnOperatorSuspendsIt("alloc", 45 * kMiB);
}

TEST_F(SuspendedTest, ItCanEndMeanwhile) {
  Begin("leave");
  ASSERT_EQ(Ctl({"suspend", session_, "--yes"}).status, 0);
  Stop();
  EXPECT_EQ(program_.Wait(), 0);
  ExpectAllBack();
  EXPECT_TRUE(Eventually([&] { return Held("tier") == 0; }));
}

TEST_F(SuspendedTest, ItCanBeKilledMeanwhile) {
  Begin("work");
  ASSERT_EQ(Ctl({"suspend", session_, "--yes"}).status, 0);
  program_.Signal(SIGTERM);
  EXPECT_EQ(program_.Wait(), 128 + SIGTERM);
  ExpectAllBack();
  EXPECT_TRUE(Eventually([&] { return Held("tier") == 0; }));
}

// Two programs that do not fit on the device together take turns, and know nothing of it.
TEST_F(SuspendedTest, AnotherProgramsRequestSuspendsIt) {
  Begin("work");
  environment["GPUMEM_TENANT"] = "first";
  environment["GPUMEM_PRELOAD_WAIT_MS"] = "20000";
  const Finished run = Run({Path("BROKERED"), "once", std::to_string(250 * kMiB)});
  EXPECT_EQ(run.value("code"), "0") << run.errors;
  EXPECT_NE(daemon_->Log().find("suspension-asked"), std::string::npos);
  // The program has resumed by itself.
  ExpectItEndsWell();
}

}  // namespace
}  // namespace gpumem::preload
