// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory in broker mode: that of the default pool is gpumem's, and programs do not
// see it.
#include <string>
#include <vector>

#include "tests/preload/brokered_fixture.h"

namespace gpumem::preload {
namespace {

using testing::Eventually;

class AsyncTest : public BrokeredTest {
 protected:
  Finished Async(const std::string& matter) { return Run({Path("ASYNC"), matter}); }
};

TEST_F(AsyncTest, ThePoolTellsWhatItHolds) {
  ExpectSame("figures", "ASYNC");
  // The driver has made a context alone.
  EXPECT_EQ(driver_peak(), 16 * kMiB);
}

TEST_F(AsyncTest, PointersTellThatTheyAreThePools) { ExpectSame("pointers", "ASYNC"); }

TEST_F(AsyncTest, FreesAndCapturesAnswerTheSame) {
  ExpectSame("codes", "ASYNC");
  // As CUDA answers on an H100, driver 580.159.
  const Finished run = Run({Path("ASYNC"), "codes"});
  EXPECT_EQ(run.value("elsewhere"), "900");
  EXPECT_EQ(run.value("alloc_elsewhere"), "900");
  EXPECT_EQ(run.values("end"), (std::vector<std::string>{"901", "901", "0"}));
}

// The driver's streams wait for a word of memory meanwhile.
TEST_F(AsyncTest, NoMemoryIsHandedOutThatPendingWorkMayUse) {
  ExpectSame("order", "ASYNC_WORK");
  const Finished run = Run({Path("ASYNC_WORK"), "order"});
  EXPECT_EQ(run.values("apart"), (std::vector<std::string>{"1/1", "1", "1/1"})) << run.output;
  EXPECT_EQ(run.values("right"), (std::vector<std::string>{"1/1", "1", "1/1"})) << run.output;
  ExpectSame("crossed", "ASYNC_WORK");
  EXPECT_EQ(driver_peak(), 16 * kMiB);
}

TEST_F(AsyncTest, FreedMemoryIsForAllSorts) {
  environment["GPUMEM_PRELOAD_CHUNK"] = std::to_string(64 * kMiB);
  ExpectSame("mixed", "ASYNC");
}

TEST_F(AsyncTest, MemoryThatOtherDevicesMayUse) {
  environment["FAKE_CUDA_DEVICES"] = "2";
  ExpectSame("peers", "ASYNC");
  EXPECT_EQ(driver_peak(), 16 * kMiB);
}

TEST_F(AsyncTest, NoBlockBelongsToTwo) {
  for (int round = 0; round < 3; ++round) {
    const Finished run = Run({Path("ASYNC_WORK"), "race"});
    EXPECT_EQ(run.status, 0) << run.errors;
    EXPECT_EQ(run.value("wrong"), "0") << run.output;
    EXPECT_EQ(run.value("used"), "0") << run.output;
    EXPECT_EQ(driver_peak(), 16 * kMiB);
    ExpectAllBack();
  }
}

class SuspendedAsyncTest : public SuspendedTest {};

TEST_F(SuspendedAsyncTest, AnOperatorSuspendsIt) {
  Begin("work", "ASYNC_WORK");
  ExpectAnOperatorSuspendsIt("async", (45 + 8) * kMiB);
}

// The program has two pools. If it held one of them while it waits for the other, two such programs
// could wait for each other.
TEST_F(SuspendedAsyncTest, ItComesBackAsAWholeOrNotAtAll) {
  Begin("work", "ASYNC_WORK");
  ASSERT_EQ(Ctl({"suspend", session_, "--yes"}).status, 0);
  const uint64_t away = Held("tier");
  {
    // Leaves room for the larger of the two alone.
    AcquireOptions options;
    options.bytes = 288 * kMiB - 16 * kMiB - (away - 4 * kMiB);
    options.kind = Kind::kDriver;
    options.device = Usage().device_uuid;
    const auto held = client_->Acquire(options);
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_NE(Ctl({"resume", session_, "--timeout", "300ms"}).status, 0);
    EXPECT_TRUE(Eventually([&] { return Held("vmm") == 0; })) << Held("vmm");
    EXPECT_EQ(Held("tier"), away);
  }
  const Finished resumed = Ctl({"resume", session_});
  EXPECT_EQ(resumed.status, 0) << resumed.errors;
  EXPECT_EQ(Held("tier"), 0u);
  ExpectItEndsWell();
}

// Two programs that do not fit on the device together take turns, each with two pools.
TEST_F(SuspendedAsyncTest, ProgramsTakeTurns) {
  // It asks for memory again and again, also while the other one waits before it.
  environment["GPUMEM_PRELOAD_WAIT_MS"] = "20000";
  Begin("work", "ASYNC_WORK");
  environment["GPUMEM_TENANT"] = "first";
  const Finished run = Run({Path("BROKERED"), "once", std::to_string(250 * kMiB)});
  EXPECT_EQ(run.value("code"), "0") << run.errors;
  EXPECT_NE(daemon_->Log().find("suspension-asked"), std::string::npos);
  ExpectItEndsWell();
}

}  // namespace
}  // namespace gpumem::preload
