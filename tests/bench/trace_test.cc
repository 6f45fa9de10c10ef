// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/trace.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "common/bytes.h"
#include "gtest/gtest.h"
#include "tests/support/expect_status.h"

namespace gpumem::bench {
namespace {

class TraceTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TraceTest, AllocatesEachBlockOnceAndFreesItOnce) {
  const Trace trace = *MakeTrace(GetParam());
  EXPECT_EQ(trace.name, GetParam());
  std::vector<bool> live(trace.ids);
  for (const TraceEvent& event : trace.events) {
    ASSERT_LT(event.id, trace.ids);
    ASSERT_LT(event.stream, trace.streams);
    ASSERT_NE(live[event.id], event.bytes > 0);
    live[event.id] = event.bytes > 0;
  }
  for (const bool one : live) ASSERT_FALSE(one);
}

TEST_P(TraceTest, IsTheSameEachTime) {
  const Trace one = *MakeTrace(GetParam()), other = *MakeTrace(GetParam());
  ASSERT_EQ(one.events.size(), other.events.size());
  for (size_t i = 0; i < one.events.size(); ++i) {
    ASSERT_EQ(one.events[i].id, other.events[i].id);
    ASSERT_EQ(one.events[i].bytes, other.events[i].bytes);
    ASSERT_EQ(one.events[i].stream, other.events[i].stream);
  }
}

// Fits the GPUs that it is replayed on.
TEST_P(TraceTest, NeedsLessThan64GiB) {
  const uint64_t peak = LivePeakBytes(*MakeTrace(GetParam()));
  EXPECT_GT(peak, 0u);
  EXPECT_LT(peak, 64 * kGiB);
}

INSTANTIATE_TEST_SUITE_P(All, TraceTest, ::testing::ValuesIn(TraceNames()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Traces, ATrainingStepHoldsWhatItsShapesSay) {
  // 1.31e9 parameters: 2 bytes each, and 12 of the optimizer.
  const uint64_t peak = LivePeakBytes(*MakeTrace("training"));
  EXPECT_GT(peak, 1'310'000'000ull * 14);
}

TEST(Traces, ServingHoldsTheWeightsAndAtMostItsKeyValueBlocks) {
  const Trace trace = *MakeTrace("serving");
  uint64_t blocks = 0, most = 0;
  std::vector<uint64_t> bytes(trace.ids);
  for (const TraceEvent& event : trace.events) {
    const uint64_t size = event.bytes > 0 ? event.bytes : bytes[event.id];
    if (size == 2 << 20) blocks += event.bytes > 0 ? 1 : -1;
    bytes[event.id] = event.bytes;
    most = std::max(most, blocks);
  }
  EXPECT_GT(most, 3000u);
  EXPECT_GT(LivePeakBytes(trace), 8'000'000'000ull * 2);
}

TEST(Traces, RandomStaysBelowItsCap) {
  const Trace trace = MakeRandomTrace("r", 1000, 100, 1000, 1);
  EXPECT_EQ(trace.events.size(), 2000u);
  EXPECT_LE(LivePeakBytes(trace), 1000u);
  EXPECT_GT(LivePeakBytes(trace), 900u);
}

TEST(Traces, OthersAreNotFound) { EXPECT_STATUS(MakeTrace("none"), kNotFound, "random-1GiB"); }

TEST(Traces, AreWrittenALineAnEvent) {
  TraceBuilder builder("two");
  const uint32_t one = builder.Allocate(512), two = builder.Allocate(1024, 1);
  builder.Free(one, 1);
  EXPECT_EQ(builder.Allocate(7), one);
  builder.Free(two);
  const std::string path = ::testing::TempDir() + "/two.trace";
  EXPECT_OK(WriteTrace(std::move(builder).Build(), path));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::remove(path.c_str());
  EXPECT_EQ(text.str(),
            "# gpumem_bench's trace two: 6 events, 2 ids, 2 streams\n"
            "+ 0 512 0\n+ 1 1024 1\n- 0 1\n+ 0 7 0\n- 1 0\n- 0 0\n");
  EXPECT_FALSE(WriteTrace({}, "/nonexistent/trace").ok());
}

}  // namespace
}  // namespace gpumem::bench
