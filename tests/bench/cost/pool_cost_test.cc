// SPDX-License-Identifier: Apache-2.0
// Replays traces on a pool over segments that are mere addresses, and adds up what the pool's calls
// to the daemon and the driver would cost (segments.h). The bounds are those of the present
// policy of growth and moves, with some room.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/engine.h"
#include "client/pool/stream_api.h"
#include "gpumem/pool.h"
#include "gtest/gtest.h"
#include "tests/bench/cost/segments.h"
#include "tests/bench/trace.h"

namespace gpumem::bench {
namespace {

constexpr int kReplays = 4;

struct Result {
  double first_us = 0, last_us = 0;  // calls of the first and the last replay, for each operation
  double reserved_per_live = 0;
};

Result Replay(const std::string& name) {
  const absl::StatusOr<Trace> trace = MakeTrace(name);
  EXPECT_TRUE(trace.ok()) << trace.status();
  auto source = std::make_unique<CostSegments>();
  const CostSegments& segments = *source;
  internal::Engine engine(std::move(source), internal::MakeHostStreamApi(), PoolOptions());
  std::vector<char> streams(trace->streams);
  Result result;
  for (int replay = 0; replay < kReplays; ++replay) {
    const CostSegments::Cost before = segments.cost();
    std::vector<void*> blocks(trace->ids);
    for (const TraceEvent& event : trace->events) {
      void* const stream = &streams[event.stream];
      if (event.bytes == 0) {
        EXPECT_TRUE(engine.Free(blocks[event.id], stream).ok());
        continue;
      }
      const absl::StatusOr<Block> block = engine.Allocate(event.bytes, stream);
      EXPECT_TRUE(block.ok()) << block.status();
      blocks[event.id] = block.value_or(Block{}).data;
    }
    const CostSegments::Cost after = segments.cost();
    result.last_us = (after.us - before.us) / static_cast<double>(trace->events.size());
    if (replay == 0) result.first_us = result.last_us;
    std::printf(
        "%s, replay %d: %.3f us an operation; %llu calls for %llu segments, %llu moves of "
        "%llu, %llu unmappings\n",
        name.c_str(), replay + 1, result.last_us,
        static_cast<unsigned long long>(after.acquires - before.acquires),
        static_cast<unsigned long long>(after.segments - before.segments),
        static_cast<unsigned long long>(after.moves - before.moves),
        static_cast<unsigned long long>(after.moved - before.moved),
        static_cast<unsigned long long>(after.unmaps - before.unmaps));
  }
  result.reserved_per_live = static_cast<double>(engine.Stats().reserved_peak_bytes) /
                             static_cast<double>(LivePeakBytes(*trace));
  std::printf("%s: %.3f reserved by live\n", name.c_str(), result.reserved_per_live);
  const absl::Status right = engine.CheckInvariants();
  EXPECT_TRUE(right.ok()) << right;
  return result;
}

TEST(PoolCostTest, TrainingGrowsInFewSteps) {
  const Result result = Replay("training");
  EXPECT_LT(result.first_us, 0.95);
  EXPECT_LT(result.last_us, 0.05);
  EXPECT_LT(result.reserved_per_live, 1.065);
}

TEST(PoolCostTest, LargeBlocksOfRandomSizesMoveLittle) {
  const Result result = Replay("random-1GiB");
  EXPECT_LT(result.first_us, 1.0);
  EXPECT_LT(result.last_us, 0.7);
  EXPECT_LT(result.reserved_per_live, 1.15);
}

TEST(PoolCostTest, BlocksUpTo64MiBNeedLittleMemory) {
  const Result result = Replay("random-64MiB");
  EXPECT_LT(result.first_us, 0.7);
  EXPECT_LT(result.last_us, 0.05);
  EXPECT_LT(result.reserved_per_live, 1.13);
}

}  // namespace
}  // namespace gpumem::bench
