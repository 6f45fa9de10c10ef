// SPDX-License-Identifier: Apache-2.0
// Programs under the preload, with the plug-in that speaks to a real gpumemd. The daemon's host
// backend stands in for the fake driver's GPUs.
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/preload/with_daemon.h"

namespace gpumem::preload {
namespace {

using testing::Child;
using testing::Eventually;

class BrokerTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    if (IsSkipped()) return;
    environment["FAKE_CUDA_DEVICES"] = "2";
    StartDaemon(
        "[host]\ndevices = 2\ndevice_bytes = \"1GiB\"\n"
        "[tenant_defaults]\nlimit = \"288MiB\"\n");
  }
};

class BrokerViaTest : public BrokerTest, public ::testing::WithParamInterface<Via> {};
INSTANTIATE_TEST_SUITE_P(Via, BrokerViaTest, ::testing::Values(Via::kPreload, Via::kInjection),
                         NameOf);

TEST_P(BrokerViaTest, TheTenantsLimitHoldsForEachWayOfAllocating) {
  if (GetParam() == Via::kInjection && SkipsInjection()) return;
  for (const char* way : {"alloc", "managed", "vmm", "async", "pool", "node", "capture", "array"}) {
    SCOPED_TRACE(way);
    const Finished run = Run({Path("WAYS_DLSYM"), way, std::to_string(32 * kMiB)}, GetParam());
    ASSERT_EQ(run.status, 0) << run.errors;
    EXPECT_EQ(run.value("device_total"), std::to_string(288 * kMiB));
    EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
    EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "2"})) << run.output;
    EXPECT_EQ(run.values("total"), (std::vector<std::string>(2, std::to_string(288 * kMiB))));
    EXPECT_EQ(run.values("free"), (std::vector<std::string>(2, std::to_string(16 * kMiB))));
    EXPECT_LE(Usage().peak_bytes, 288 * kMiB);
    ExpectAllBack();
  }
  EXPECT_EQ(Usage().peak_bytes, 272 * kMiB) << "eight pieces and the context";
}

TEST_F(BrokerTest, ProcessesOfOneTenantNeverGetMoreThanItsLimitTogether) {
  std::string script;
  for (int i = 0; i < 6; ++i) {
    absl::StrAppend(&script, Path("WAYS_DLSYM"), " alloc ", 24 * kMiB, " & ");
  }
  for (int round = 0; round < 3; ++round) {
    const Finished run = Run({"/bin/sh", "-c", script + "wait"});
    EXPECT_EQ(run.status, 0) << run.errors;
  }
  EXPECT_LE(Usage().peak_bytes, 288 * kMiB);
  EXPECT_GE(Usage().peak_bytes, 240 * kMiB);
  ExpectAllBack();
}

TEST_F(BrokerTest, MemoryOfAKilledProcessComesBack) {
  for (int round = 0; round < 5; ++round) {
    Child holder(Preloaded({Path("HOLDER"), std::to_string(200 * kMiB)}));
    ASSERT_TRUE(Eventually([&] { return Usage().charged_bytes == 216 * kMiB; }));
    // Not enough for a second one.
    const Finished refused = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(64 * kMiB)});
    EXPECT_EQ(refused.values("got"), (std::vector<std::string>{"0", "0"})) << refused.output;
    holder.Signal(SIGKILL);
    holder.Wait();
    ExpectAllBack();
    // The next holder needs all of it.
    ASSERT_TRUE(Eventually([&] { return Usage().charged_bytes == 0; }));
  }
}

TEST_F(BrokerTest, WithoutADaemonAProgramGetsNoMemoryAndIsToldWhy) {
  environment["GPUMEM_RUNTIME_DIR"] = "/nonexistent";
  const Finished run = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(kMiB)});
  EXPECT_NE(run.status, 0);
  EXPECT_NE(run.errors.find("gpumem: "), std::string::npos) << run.errors;
}

TEST_F(BrokerTest, ASessionIsOfTheProgramsName) {
  Child holder(Preloaded({Path("HOLDER"), std::to_string(kMiB)}));
  ASSERT_TRUE(Eventually([&] { return Usage().charged_bytes > 16 * kMiB; }));
  EXPECT_EQ(client_->GetUsage()->sessions, 2u);
}

}  // namespace
}  // namespace gpumem::preload
