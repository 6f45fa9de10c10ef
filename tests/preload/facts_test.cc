// SPDX-License-Identifier: Apache-2.0
// What a program sees is what it would see without the preload.
#include <string>
#include <utility>
#include <vector>

#include "tests/preload/run_preloaded.h"

namespace gpumem::preload {
namespace {

// By one way into the program.
class FactsTest : public PreloadTest, public ::testing::WithParamInterface<Via> {
 protected:
  void SetUp() override {
    PreloadTest::SetUp();
    if (GetParam() == Via::kInjection) SkipsInjection();
  }
  Finished Run(std::vector<std::string> arguments) {
    return PreloadTest::Run(std::move(arguments), GetParam());
  }
  // Runs `facts` alone and with the library, and expects the same.
  Finished Same(const std::string& fact) {
    Finished plain = PreloadTest::Run({Path("FACTS"), fact}, Via::kNone);
    Finished run = Run({Path("FACTS"), fact});
    EXPECT_EQ(plain.status, 0) << plain.errors;
    EXPECT_EQ(run.status, 0) << run.errors;
    EXPECT_EQ(run.output, plain.output);
    EXPECT_EQ(run.errors, plain.errors);
    return run;
  }
};

INSTANTIATE_TEST_SUITE_P(Via, FactsTest, ::testing::Values(Via::kPreload, Via::kInjection), NameOf);

TEST_P(FactsTest, EachDoorLeadsToTheSameStub) {
  Finished plain = PreloadTest::Run({Path("FACTS"), "addresses"}, Via::kNone);
  Finished run = Run({Path("FACTS"), "addresses"});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(plain.value("so.1"), "driver");
  // Injected, the driver's functions are the doors.
  const std::string stub = GetParam() == Via::kPreload ? "preload" : "driver";
  EXPECT_EQ(run.value("so.1"), stub);
  EXPECT_EQ(run.value("untouched"), "driver");
  EXPECT_EQ(run.value("in_driver"), "driver");
  EXPECT_EQ(run.value("dlvsym"), plain.value("dlvsym") == "none" ? "none" : stub);
  for (const char* fact : {"early", "so_same", "variants_differ", "missing", "error", "v1",
                           "proc_same", "old_same", "itself", "per_thread", "unknown", "too_old"}) {
    EXPECT_EQ(run.value(fact), plain.value(fact)) << fact;
    EXPECT_NE(run.value(fact), "") << fact;
  }
  EXPECT_EQ(run.value("early"), "0");
  EXPECT_EQ(run.value("so_same"), "1");
  EXPECT_EQ(run.value("variants_differ"), "1");
  EXPECT_EQ(run.value("proc_same"), "1");
  EXPECT_EQ(run.value("itself"), "1");
  EXPECT_EQ(run.value("per_thread"), "1");
}

TEST_P(FactsTest, TheDriversRefusalsAreKept) {
  Finished run = Same("refusals");
  EXPECT_EQ(run.value("before_init"), "3");
  EXPECT_EQ(run.value("no_context"), "201");
  EXPECT_EQ(run.value("zero"), "1");
  EXPECT_EQ(run.value("too_much"), "2");
  EXPECT_EQ(run.value("double_free"), "1");
  EXPECT_LE(used(), 4 * kMiB);
}

TEST_P(FactsTest, ACaptureStaysACapture) {
  environment["FAKE_CUDA_MEMORY"] = std::to_string(2048 * kMiB);
  Finished run = Same("capture");
  EXPECT_EQ(run.value("alloc"), "900");
  EXPECT_EQ(run.value("kept"), "0");
  EXPECT_EQ(run.values("end"), (std::vector<std::string>{"901", "0"}));
  // Two allocations of 200 MiB fit into 256 MiB, as one is freed before the other.
  EXPECT_EQ(run.value("second"), "0");
}

TEST_P(FactsTest, MemoryGoesWithItsContext) {
  Finished run = Run({Path("FACTS"), "contexts"});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("taken"),
            (std::vector<std::string>{std::to_string(128 * kMiB), std::to_string(64 * kMiB)}));
  EXPECT_EQ(run.values("kept"), (std::vector<std::string>(4, "0"))) << run.output;
  EXPECT_EQ(run.value("again"), std::to_string(64 * kMiB));
}

TEST_P(FactsTest, SparseArraysAreChargedForWhatIsMappedToThem) {
  Finished run = Run({Path("FACTS"), "sparse"});
  ASSERT_EQ(run.status, 0) << run.output << run.errors;
  EXPECT_EQ(run.values("taken"),
            (std::vector<std::string>{"0", "32", "32", "0", "32", "0", "32", "0"}))
      << run.output;
}

TEST_P(FactsTest, ImportedMemoryIsChargedOnce) {
  Same("imported");
  EXPECT_LE(used(), 4 * kMiB);
}

TEST_P(FactsTest, ChildrenStartAnew) {
  Finished run = Same("forked");
  EXPECT_EQ(run.value("fresh_child"), "0");
  EXPECT_EQ(run.value("child_alloc"), "3");
  EXPECT_EQ(run.value("parent_alloc"), "0");
  // The parent and the child that used CUDA.
  EXPECT_EQ(processes(), 2u);
}

// Only a preload has to do with other libraries.
class PreloadFactsTest : public PreloadTest {};

TEST_F(PreloadFactsTest, NeighboursFindTheNextDefinition) {
  preloads = Path("NEIGHBOUR");
  Finished before = Run({Path("FACTS"), "neighbour"});
  ASSERT_EQ(before.status, 0) << before.errors;
  EXPECT_EQ(before.value("next"), "preload");
  EXPECT_EQ(before.value("untouched"), "driver");
  EXPECT_EQ(before.value("libc"), "1");
  // The definition in the neighbour is not behind it: an answer there would be one for another
  // caller.
  EXPECT_EQ(before.value("itself"), "0");
  // Behind ours, it would find the driver's own function.
  preloads = Path("PRELOAD") + ":" + Path("NEIGHBOUR");
  Finished behind = Run({Path("FACTS"), "neighbour"});
  ASSERT_EQ(behind.status, 0) << behind.errors;
  EXPECT_EQ(behind.value("next"), "preload");
  EXPECT_EQ(behind.value("itself"), "0");
}

TEST_F(PreloadFactsTest, NvmlTellsTheLimit) {
  environment["FAKE_CUDA_DEVICES"] = "2";
  // Some is in use: the plug-in of the tests keeps what a process had when it ended.
  Run({Path("FACTS"), "devices"});
  ASSERT_GT(used_of(0), 0u);
  environment["GPUMEM_PRELOAD_NVML"] = "1";
  Finished run = Run({Path("FACTS"), "nvml"});
  ASSERT_EQ(run.status, 0) << run.errors;
  const std::string limit = std::to_string(256 * kMiB);
  EXPECT_EQ(run.values("result"), (std::vector<std::string>{"0", "0"}));
  EXPECT_EQ(run.values("total"), (std::vector<std::string>{limit, limit}));
  const std::string left = std::to_string(256 * kMiB - used_of(0));
  const std::string used = std::to_string(used_of(0));
  EXPECT_EQ(run.values("free"), (std::vector<std::string>{left, left}));
  EXPECT_EQ(run.values("used"), (std::vector<std::string>{used, used}));
}

TEST_P(FactsTest, EachDeviceIsChargedForItself) {
  environment["FAKE_CUDA_DEVICES"] = "2";
  Finished run = Run({Path("FACTS"), "devices"});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.value("alloc"), "0");
  EXPECT_EQ(run.value("async"), "0");
  EXPECT_EQ(run.values("free"),
            (std::vector<std::string>{std::to_string(224 * kMiB), std::to_string(160 * kMiB)}));
  // With the credit that the process still had when it ended.
  EXPECT_LE(used_of(0), 36 * kMiB);
  EXPECT_GE(used_of(1), 96 * kMiB);
}

}  // namespace
}  // namespace gpumem::preload
