// SPDX-License-Identifier: Apache-2.0
// Each way of allocating, by each door: the limit holds, a refusal is the driver's own code for out
// of memory, and everything comes back.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/preload/run_preloaded.h"

namespace gpumem::preload {
namespace {

class WaysTest : public PreloadTest,
                 public ::testing::WithParamInterface<std::tuple<Via, const char*, const char*>> {};

TEST_P(WaysTest, HoldsTheLimit) {
  auto [via, door, way] = GetParam();
  if (via == Via::kInjection && SkipsInjection()) return;
  Finished run = Run({Path(std::string("WAYS_") + door), way, std::to_string(32 * kMiB)}, via);
  ASSERT_EQ(run.status, 0) << run.errors;
  const std::string limit = std::to_string(256 * kMiB);
  EXPECT_EQ(run.value("device_total"), limit);
  // Twice: the second time, all that the first one had has come back.
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
  EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "2"})) << run.output;
  EXPECT_EQ(run.values("free"), (std::vector<std::string>{"0", "0"})) << run.output;
  EXPECT_EQ(run.values("total"), (std::vector<std::string>{limit, limit})) << run.output;
  EXPECT_EQ(run.value("end_free"), limit);
  EXPECT_EQ(peak(), 256 * kMiB);
  EXPECT_LE(driver_peak(), (256 + 16) * kMiB);
  // Two chunks may stay with the process as its credit.
  EXPECT_LE(used(), 4 * kMiB);
  EXPECT_EQ(contexts(), 0u);
}

// Without the preload the same program gets all of the device: the limit above is the preload's.
TEST_P(WaysTest, IsNotWhatTheDriverDoes) {
  auto [via, door, way] = GetParam();
  if (via == Via::kInjection) GTEST_SKIP() << "the same";
  environment["FAKE_CUDA_MEMORY"] = std::to_string(512 * kMiB);
  Finished run =
      Run({Path(std::string("WAYS_") + door), way, std::to_string(32 * kMiB)}, Via::kNone);
  // Graphs that are too large fail when they are launched.
  ASSERT_FALSE(run.values("got").empty()) << run.errors;
  EXPECT_NE(run.values("got").front(), "8");
  if (run.status == 0) {
    EXPECT_GT(driver_peak(), (256 + 16) * kMiB);
  }
  EXPECT_EQ(processes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, WaysTest,
                         ::testing::Combine(::testing::Values(Via::kPreload, Via::kInjection),
                                            ::testing::Values("LINKED", "DLSYM", "PROC"),
                                            ::testing::Values("alloc", "managed", "pitch", "vmm",
                                                              "early", "retained", "async", "pool",
#if CUDA_VERSION >= 13000
                                                              "managed_pool",
#endif
                                                              "node", "any_node", "capture",
                                                              "array", "array3d", "mipmap",
                                                              "crossed", "crossed_back")),
                         [](const auto& instance) {
                           std::string name =
                               std::get<0>(instance.param) == Via::kInjection ? "injected_" : "";
                           name += std::get<1>(instance.param);
                           return name + "_" + std::get<2>(instance.param);
                         });

// The same by both ways into the program.
class SmallTest : public PreloadTest, public ::testing::WithParamInterface<Via> {
 protected:
  void SetUp() override {
    PreloadTest::SetUp();
    if (GetParam() == Via::kInjection) SkipsInjection();
  }
  Finished Run(std::vector<std::string> arguments) {
    return PreloadTest::Run(std::move(arguments), GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Via, SmallTest, ::testing::Values(Via::kPreload, Via::kInjection), NameOf);

// 512 KiB at a time, out of chunks: the last pieces are granted although no whole chunk is left.
TEST_P(SmallTest, GetsTheWholeLimitInSmallPieces) {
  environment["GPUMEM_PRELOAD_CHUNK"] = std::to_string(32 * kMiB);
  environment["GPUMEM_TEST_LIMIT"] = std::to_string(101 * kMiB);
  Finished run = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(kMiB / 2)});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"202", "202"})) << run.output;
  EXPECT_EQ(peak(), 101 * kMiB);
}

// The pool grows by steps of 32 MiB, and is charged for them, whatever the pieces are.
TEST_P(SmallTest, ChargesWhatAPoolHolds) {
  Finished run = Run({Path("WAYS_DLSYM"), "pool", std::to_string(3 * kMiB)});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"85", "85"})) << run.output;
  EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "2"}));
  EXPECT_EQ(peak(), 256 * kMiB);
}

// The step after 32 MiB does not fit: it is undone, and the pool goes on with what it has.
TEST_P(SmallTest, UndoesGrowthBeyondTheLimit) {
  environment["GPUMEM_TEST_LIMIT"] = std::to_string(48 * kMiB);
  Finished run = Run({Path("WAYS_PROC"), "pool", std::to_string(3 * kMiB)});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"10", "10"})) << run.output;
  EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "2"}));
  EXPECT_EQ(run.value("end_free"), std::to_string(48 * kMiB));
  EXPECT_LE(peak(), 48 * kMiB);
}

TEST_P(SmallTest, ChargesTheContext) {
  environment["GPUMEM_TEST_CONTEXT"] = std::to_string(64 * kMiB);
  Finished run = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"6", "6"})) << run.output;
  EXPECT_EQ(run.value("end_free"), std::to_string(192 * kMiB));
  EXPECT_LE(used(), 4 * kMiB);
  EXPECT_EQ(contexts(), 0u);
}

TEST_P(SmallTest, RefusesAContextThatDoesNotFit) {
  environment["GPUMEM_TEST_CONTEXT"] = std::to_string(300 * kMiB);
  Finished run = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)});
  EXPECT_EQ(run.status, 4);
  EXPECT_EQ(run.errors, "context: 2\n");
}

#if CUDA_VERSION >= 13000
TEST_P(SmallTest, LeavesHostMemoryOfPoolsAlone) {
  Finished run = Run({Path("WAYS_DLSYM"), "host_pool", std::to_string(kMiB)});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"4096", "4096"})) << run.output;
  EXPECT_EQ(peak(), 0u);
}
#endif

TEST_P(SmallTest, LeavesDevicesAloneThatAreNotAccounted) {
  environment["GPUMEM_TEST_ANSWER"] = "3";
  environment["FAKE_CUDA_MEMORY"] = std::to_string((512 + 16) * kMiB);
  for (const char* way : {"alloc", "early", "pool", "node", "array"}) {
    Finished run = Run({Path("WAYS_DLSYM"), way, std::to_string(32 * kMiB)});
    ASSERT_FALSE(run.values("got").empty()) << run.errors;
    // The driver refuses graphs when they are launched.
    EXPECT_EQ(run.values("got").front(), std::string(way) == "node" ? "4096" : "16") << way;
  }
  EXPECT_EQ(peak(), 0u);
  EXPECT_EQ(used(), 0u);
}

// The plug-in decides how long it waits for the daemon. After that, the program sees a code of
// CUDA.
TEST_P(SmallTest, RefusesWhileTheDaemonIsGone) {
  environment["GPUMEM_TEST_ANSWER"] = "2";
  Finished run = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)});
  EXPECT_EQ(run.errors, "context: 2\n");
}

// Without the plug-in nothing is granted, in the driver's own words, and a line says why.
TEST_P(SmallTest, RefusesWithoutThePlugin) {
  environment["GPUMEM_PRELOAD_ACCOUNTANT"] = "/no/such/plugin.so";
  Finished run = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)});
  EXPECT_EQ(run.status, 4);
  EXPECT_NE(run.errors.find("libgpumem-preload: no connection"), std::string::npos) << run.errors;
  EXPECT_NE(run.errors.find("context: 2\n"), std::string::npos) << run.errors;
}

}  // namespace
}  // namespace gpumem::preload
