// SPDX-License-Identifier: Apache-2.0
// The order of streams: no block is allocated while work may still use its memory. A GPU that runs
// its streams in any order that CUDA allows would detect it. engine_stream_reuse_test.cc has
// examples.
#include <memory>
#include <random>
#include <vector>

#include "client/pool/engine.h"
#include "client/pool/testing/fake_gpu.h"
#include "client/pool/testing/fake_segments.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace engine_streams_test {

Stream Named(uintptr_t name) { return reinterpret_cast<Stream>(name); }

// Two blocking streams, the legacy one, and two non-blocking ones.
const Stream kStreams[] = {nullptr, Named(16), Named(32), Named(48), Named(64)};

struct Case {
  ReusePolicy policy;
  bool caches = true;
  bool lie = false;
};

// The GPU's record of a random sequence of allocations, work and frees.
struct Seen {
  uint64_t violations = 0;
  PoolStats stats;
};

Seen Play(uint64_t seed, const Case& options) {
  FakeGpu gpu(seed);
  gpu.MakeNonBlocking(kStreams[3]);
  gpu.MakeNonBlocking(kStreams[4]);
  auto source = std::make_unique<FakeSegments>(FakeSegments::Options{
      .capacity = 24 * kMiB,
      .unmapped = [&gpu](uintptr_t at, uint64_t bytes) { gpu.Unmap(at, bytes); }});
  FakeSegments& segments = *source;
  Engine engine(std::move(source), std::make_unique<FakeStreams>(&gpu, options.lie),
                {.reuse = options.policy,
                 .release_threshold_bytes = seed % 3 == 0 ? 4 * kMiB : UINT64_MAX,
                 .grow_bytes = 2 * kMiB,
                 .thread_caches = options.caches});
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  struct Held {
    Block block;
    Stream stream;
    bool synchronized;  // as cudaMalloc and cudaFree
  };
  std::vector<Held> held;
  for (int i = 0; i < 3000; ++i) {
    void* const stream = kStreams[below(5)];
    const uint64_t die = below(100);
    if (die < 35) {
      const uint64_t sizes[] = {1 + below(4096), 64 << 10, 1 + below(300 << 10),
                                kMiB + below(4 * kMiB)};
      const uint64_t size = sizes[below(4)];
      const bool synchronized = below(8) == 0;
      auto block = synchronized ? engine.AllocateSynchronized(size) : engine.Allocate(size, stream);
      if (!block.ok()) {
        EXPECT_EQ(block.status().code(), absl::StatusCode::kResourceExhausted) << block.status();
        continue;
      }
      gpu.Use(*block, stream);
      held.push_back({*block, stream, synchronized});
    } else if (die < 68 && !held.empty()) {
      const size_t chosen = below(held.size());
      Held one = held[chosen];
      held.erase(held.begin() + static_cast<ptrdiff_t>(chosen));
      if (below(4) == 0) {  // also used on another stream, which the user orders
        gpu.UserWait(stream, one.stream);
        if (below(2) == 0) {
          EXPECT_TRUE(engine.StreamWaits(stream, one.stream).ok());
        }
        gpu.Use(one.block, stream);
        one.stream = stream;
      }
      EXPECT_TRUE((one.synchronized ? engine.FreeSynchronized(one.block.data)
                                    : engine.Free(one.block.data, one.stream))
                      .ok());
    } else if (die < 70) {
      void* const other = kStreams[below(5)];
      gpu.UserWait(stream, other);
      EXPECT_TRUE(engine.StreamWaits(stream, other).ok());
    } else if (die < 71) {
      EXPECT_TRUE(engine.Trim(below(8) * kMiB).ok());
      segments.SetMovesLeft(seed % 5 == 0 ? below(3) : UINT64_MAX);
    } else if (die < 72) {
      gpu.Finish();
    } else {
      gpu.Step();
    }
    if (i % 50 == 0) {
      const absl::Status right = engine.CheckInvariants();
      EXPECT_TRUE(right.ok()) << right;
    }
  }
  gpu.Finish();
  EXPECT_TRUE(gpu.Idle());
  const absl::Status right = engine.CheckInvariants();
  EXPECT_TRUE(right.ok()) << right;
  return {gpu.violations(), engine.Stats()};
}

TEST(EngineStreamsTest, NoBlockIsHandedOutWhileWorkOnItIsPending) {
  PoolStats sum;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Case options = {.policy = {.follow_event_dependencies = (seed & 1) != 0,
                                     .allow_opportunistic = (seed & 2) != 0,
                                     .allow_internal_dependencies = (seed & 4) != 0},
                          .caches = (seed & 8) != 0};
    const Seen seen = Play(seed, options);
    ASSERT_EQ(seen.violations, 0u) << "seed " << seed;
    sum.dependencies += seen.stats.dependencies;
    sum.reused_after_event += seen.stats.reused_after_event;
    sum.growths += seen.stats.growths;
    sum.moves += seen.stats.moves;
    sum.out_of_memory += seen.stats.out_of_memory;
  }
  // The sequence was not trivial.
  EXPECT_GT(sum.dependencies, 100u);
  EXPECT_GT(sum.reused_after_event, 100u);
  EXPECT_GT(sum.growths, 100u);
  EXPECT_GT(sum.moves, 100u);
  EXPECT_GT(sum.out_of_memory, 100u);
}

TEST(EngineStreamsTest, TheModelDetectsReuseBeforePendingWorkIsDone) {
  uint64_t violations = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) violations += Play(seed, {.lie = true}).violations;
  EXPECT_GT(violations, 10u);
}

TEST(StreamOrderTest, NullIsTheLegacyStream) {
  FakeGpu gpu(1);
  FakeStreams streams(&gpu);
  StreamOrder order(&streams);
  EXPECT_EQ(order.Find(nullptr), nullptr);
  const Timeline* const legacy = order.Get(nullptr).value();
  EXPECT_EQ(legacy->stream(), LegacyStream());
  EXPECT_EQ(order.Get(LegacyStream()).value(), legacy);
  EXPECT_EQ(order.Find(nullptr), legacy);
}

TEST(HostStreamApiTest, WorkIsDoneOnceItIsSubmitted) {
  const std::unique_ptr<StreamApi> api = MakeHostStreamApi();
  EXPECT_TRUE(api->IsFree(kStreams[1]));
  EXPECT_EQ(api->CheckFree(kStreams[1]), absl::OkStatus());
  const absl::StatusOr<StreamApi::EventHandle> event = api->Record(kStreams[1]);
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_TRUE(api->Done(*event).value());
  EXPECT_EQ(api->Synchronize(*event), absl::OkStatus());
  EXPECT_EQ(api->Wait(kStreams[2], *event), absl::OkStatus());
  api->Drop(*event);
}

}  // namespace engine_streams_test
}  // namespace gpumem::internal
