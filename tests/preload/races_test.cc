// SPDX-License-Identifier: Apache-2.0
// Charges while several threads are at work.
#include <string>
#include <vector>

#include "tests/preload/run_preloaded.h"

namespace gpumem::preload {
namespace {

class RacesTest : public PreloadTest {};

TEST_F(RacesTest, AThreadThatWaitsHoldsNoOtherUp) {
  environment["GPUMEM_TEST_WAIT_MS"] = "60000";
  Finished run = Run({Path("RACES"), "waiting"});
  ASSERT_EQ(run.status, 0) << run.output << run.errors;
  for (const char* fact : {"alloc", "free", "launch", "info", "got"}) {
    EXPECT_EQ(run.values(fact), (std::vector<std::string>{"0", "0", "0"})) << run.output;
  }
  EXPECT_EQ(run.values("still"), (std::vector<std::string>{"1", "1", "1"})) << run.output;
  EXPECT_LE(peak(), 256 * kMiB);
}

// Also if another thread gets a graph's handle before the one that destroys it is back.
TEST_F(RacesTest, AGraphIsChargedAsLongAsItExists) {
  Finished run = Run({Path("RACES"), "graphs"});
  ASSERT_EQ(run.status, 0) << run.output << run.errors;
  EXPECT_EQ(run.values("same"), (std::vector<std::string>{"1", "1"}));
  EXPECT_EQ(run.value("child"), "801");
  EXPECT_EQ(run.values("taken"), (std::vector<std::string>{"128", "128", "128", "64"}));
}

// Also if another thread makes the next context of the device before the one that ends the last is
// back.
TEST_F(RacesTest, AContextIsChargedAsLongAsItExists) {
  environment["GPUMEM_TEST_CONTEXT"] = std::to_string(16 * kMiB);
  for (const char* race : {"released", "looked_at"}) {
    Finished run = Run({Path("RACES"), race});
    ASSERT_EQ(run.status, 0) << run.output << run.errors;
    EXPECT_EQ(run.value("taken"), "80") << race;
    EXPECT_EQ(contexts(), 0u) << race;
    EXPECT_LE(used(), 4 * kMiB) << race;
  }
}

// The child has the parent's locks, and no thread that would open them.
TEST_F(RacesTest, AChildIsToldThatItCannotUseCuda) {
  environment["GPUMEM_TEST_HOLD_OPEN"] = "1";
  environment["GPUMEM_PRELOAD_NVML"] = "1";
  Finished run = Run({Path("RACES"), "forked"});
  ASSERT_EQ(run.status, 0) << run.output << run.errors;
  EXPECT_EQ(run.value("child"), "3");
}

TEST_F(RacesTest, OnlyWhatTheProgramItselfDoesAndTheDriverGrantsCounts) {
  Finished run = Run({Path("RACES"), "within"});
  ASSERT_EQ(run.status, 0) << run.output << run.errors;
  EXPECT_EQ(run.values("taken"), (std::vector<std::string>{"0", "64", "0"})) << run.output;
  EXPECT_EQ(run.values("free"), (std::vector<std::string>{"0", "900", "0"})) << run.output;
}

TEST_F(RacesTest, AFreeOnAStreamCountsOnceTheStreamHasComeToIt) {
  Finished run = Run({Path("RACES"), "late"});
  ASSERT_EQ(run.status, 0) << run.output << run.errors;
  EXPECT_EQ(run.value("wait"), "0");
  EXPECT_EQ(run.value("free"), "0");
  EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "0"})) << run.output;
  EXPECT_EQ(run.values("taken"), (std::vector<std::string>{"128", "200"})) << run.output;
  EXPECT_LE(peak(), 256 * kMiB);
}

TEST_F(RacesTest, AFreeOnAStreamEndsWithItsContext) {
  Finished run = Run({Path("RACES"), "late_context"});
  ASSERT_EQ(run.status, 0) << run.output << run.errors;
  EXPECT_EQ(run.value("destroy"), "0");
  EXPECT_EQ(run.value("taken"), "0") << run.output;
  EXPECT_EQ(run.value("code"), "0") << run.output;
}

TEST_F(RacesTest, WhatAHandleStoodForIsForgotten) {
  environment["FAKE_CUDA_DEVICES"] = "2";
  Finished run = Run({Path("RACES"), "again"});
  ASSERT_EQ(run.status, 0) << run.output << run.errors;
  EXPECT_EQ(run.value("same"), "1");
  EXPECT_EQ(run.values("taken"), (std::vector<std::string>{"64", "0"})) << run.output;
  EXPECT_EQ(run.value("code"), "2") << run.output;
}

TEST_F(RacesTest, ThreadsShareTheLimit) {
  Finished run = Run({Path("THREADS"), "16", "3000"});
  EXPECT_EQ(run.status, 0) << run.output << run.errors;
  EXPECT_EQ(run.value("others"), "0");
  EXPECT_EQ(run.value("free"), std::to_string(256 * kMiB));
  // The driver's pool may grow by a step of 32 MiB for a smaller request. What exceeds the limit
  // then goes back at once, with the block.
  EXPECT_LE(peak(), (256 + 30) * kMiB);
  // Two free chunks may stay, and the last block of two chunks that was freed.
  EXPECT_LE(used(), 8 * kMiB);
}

}  // namespace
}  // namespace gpumem::preload
