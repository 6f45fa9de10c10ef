// SPDX-License-Identifier: Apache-2.0
// Threads that share a pool, each with separate streams. A checker verifies that no block is ever
// allocated while work on it is pending.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/pool_on_gpu.h"

#if GPUMEM_WITH_CUDA

namespace gpumem {
namespace pool_stress_test {

using testing::GpuWork;
using testing::Hold;
using testing::kBlock;
using testing::kSameStreamOnly;
using testing::PerThreadStream;

// Each owner of a block writes a stamp all over it, and reads three words of it at the end. An
// owner that has it too early overwrites these, or is overwritten. Use it in one thread.
class Checker {
 public:
  struct Use {
    Block block;
    uint32_t stamp = 0;
  };

  // Checks at most `uses` uses.
  Checker(GpuWork& gpu, size_t uses) : gpu_(gpu), words_(gpu.NewWords(kWords * uses)) {}

  // The owner's first work.
  Use Begin(const Block& block, Stream stream) {
    static std::atomic<uint32_t> last{0};
    const Use use = {block, ++last};
    gpu_.Set(block.data, use.stamp, block.bytes, stream);
    return use;
  }
  // The owner's last.
  void End(const Use& use, Stream stream) {
    const auto* const first = static_cast<const uint32_t*>(use.block.data);
    const uint64_t count = use.block.bytes / sizeof(*first);
    for (const uint64_t at : {uint64_t{0}, count / 2, count - 1}) {
      gpu_.CopyWord(words_ + expected_.size(), first + at, stream);
      expected_.push_back(use.stamp);
    }
  }
  // Returns the number of words that differ from their owner's. Requires that all work is done.
  uint64_t Violations() const {
    uint64_t violations = 0;
    for (size_t i = 0; i < expected_.size(); ++i) violations += words_[i] != expected_[i];
    return violations;
  }
  size_t uses() const { return expected_.size() / kWords; }

 private:
  static constexpr size_t kWords = 3;
  GpuWork& gpu_;
  uint32_t* const words_;  // pinned
  std::vector<uint32_t> expected_;
};

class PoolChecker : public testing::PoolOnGpu {};

TEST_F(PoolChecker, SeesABlockOfTwoOwners) {
  const auto pool = MakePool(1, {});
  ASSERT_NE(pool, nullptr);
  void* const one = gpu_->NewStream();
  void* const other = gpu_->NewStream();
  Checker ones(*gpu_, 1), others(*gpu_, 1);
  const auto block = pool->Allocate(kBlock, one);
  ASSERT_OK(block);
  // The upper half of it is another's before the first has read it.
  const Block half = {.data = static_cast<char*>(block->data) + kBlock / 2, .bytes = kBlock / 2};
  const Checker::Use first = ones.Begin(*block, one);
  gpu_->Synchronize(one);
  Hold hold(*gpu_, one);
  others.End(others.Begin(half, other), other);
  gpu_->Synchronize(other);
  ones.End(first, one);
  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_EQ(ones.Violations(), 2u) << "the middle and the last";
  EXPECT_EQ(others.Violations(), 0u);

  // Or the first writes late.
  Checker late(*gpu_, 1), early(*gpu_, 1);
  Hold again(*gpu_, one);
  const Checker::Use second = late.Begin(*block, one);
  const Checker::Use in_between = early.Begin(half, other);
  gpu_->Synchronize(other);
  again.Release();
  late.End(second, one);
  gpu_->Synchronize(one);
  early.End(in_between, other);
  gpu_->SynchronizeAll();
  EXPECT_EQ(late.Violations(), 0u);
  EXPECT_EQ(early.Violations(), 3u);
  EXPECT_OK(pool->Free(*block, one));
}

struct Policy {
  const char* name;
  ReusePolicy reuse;
};
void PrintTo(const Policy& policy, std::ostream* out) { *out << policy.name; }

class PoolStress : public testing::PoolOnGpu, public ::testing::WithParamInterface<Policy> {
 protected:
  static constexpr int kThreads = 4;
  static constexpr int kRounds = 1500;  // of a thread
  static constexpr uint64_t kScratch = 128 * kMiB;

  // A thread's objects. Make it before any work is pending.
  struct Player {
    explicit Player(GpuWork& gpu)
        : checker(gpu, kRounds),
          // All players share the legacy stream.
          streams{gpu.NewStream(), gpu.NewStream(), gpu.NewStream(CU_STREAM_DEFAULT), nullptr,
                  PerThreadStream()},
          scratch(gpu.NewMemory(kScratch)) {}
    Checker checker;
    std::vector<Stream> streams;
    void* scratch;
    uint64_t refusals = 0;
  };
  static constexpr size_t kOwn = 3;  // of a player's streams, the first

  void Play(Pool& pool, Player& player, uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    // Up to some 30 us on an H200.
    const auto dally = [&](Stream stream) {
      if (below(2) == 0) gpu_->Set(player.scratch, 0, 4 + below(kScratch / 4) * 4, stream);
    };
    struct Held {
      Checker::Use use;
      size_t stream;
    };
    std::vector<Held> held;
    const auto let_go = [&](size_t chosen) {
      Held one = held[chosen];
      held.erase(held.begin() + static_cast<ptrdiff_t>(chosen));
      if (one.stream < kOwn && below(3) == 0) {  // handed over to another stream
        const size_t next = below(kOwn);
        void* const from = player.streams[one.stream];
        void* const to = player.streams[next];
        if (from != to) gpu_->MakeWait(to, from);
        if (below(2) == 0) {
          EXPECT_OK(pool.StreamWaits(to, from));
        }
        one.stream = next;
      }
      void* const stream = player.streams[one.stream];
      dally(stream);
      player.checker.End(one.use, stream);
      EXPECT_OK(pool.Free(one.use.block, stream));
    };
    for (int round = 0; round < kRounds; ++round) {
      const size_t stream = below(player.streams.size());
      const uint64_t sizes[] = {1 + below(4096), 1 + below(64 << 10), 1 + below(kMiB),
                                kMiB + below(7 * kMiB)};
      const auto block = pool.Allocate(sizes[below(4)], player.streams[stream]);
      if (block.ok()) {
        dally(player.streams[stream]);
        held.push_back({player.checker.Begin(*block, player.streams[stream]), stream});
        while (held.size() > 5 || (!held.empty() && below(3) == 0)) let_go(below(held.size()));
        continue;
      }
      // All free memory is pending, or kept by a thread. As a program would, it waits for some of
      // it.
      EXPECT_STATUS(block, kResourceExhausted, "");
      ++player.refusals;
      if (!held.empty()) let_go(below(held.size()));
      gpu_->Synchronize(player.streams[stream]);
    }
    while (!held.empty()) let_go(0);
    gpu_->Synchronize(PerThreadStream());  // it ends with the thread
  }
};
INSTANTIATE_TEST_SUITE_P(
    Policies, PoolStress,
    ::testing::Values(Policy{"SameStreamOnly", kSameStreamOnly},
                      Policy{"FollowEventDependencies",
                             {.allow_opportunistic = false, .allow_internal_dependencies = false}},
                      Policy{"Opportunistic",
                             {.follow_event_dependencies = false,
                              .allow_internal_dependencies = false}},
                      Policy{"InternalDependencies",
                             {.follow_event_dependencies = false, .allow_opportunistic = false}},
                      Policy{"All", {}}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(PoolStress, NoBlockIsHandedOutWhileWorkOnItIsPending) {
  // A little more than the threads hold at once.
  const auto pool = MakePool(12, GetParam().reuse);
  ASSERT_NE(pool, nullptr);
  std::vector<std::unique_ptr<Player>> players;
  for (int i = 0; i < kThreads; ++i) players.push_back(std::make_unique<Player>(*gpu_));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < players.size(); ++i) {
    threads.emplace_back([&, i] { Play(*pool, *players[i], i + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  gpu_->SynchronizeAll();

  uint64_t violations = 0, uses = 0, refusals = 0;
  for (const auto& player : players) {
    violations += player->checker.Violations();
    uses += player->checker.uses();
    refusals += player->refusals;
  }
  const PoolStats stats = pool->Stats();
  EXPECT_EQ(violations, 0u);
  EXPECT_EQ(stats.used_bytes, 0u);
  // It was played for something.
  EXPECT_EQ(uses + refusals, static_cast<uint64_t>(kThreads) * kRounds);
  EXPECT_GT(uses, static_cast<uint64_t>(kRounds));
  if (GetParam().reuse.allow_opportunistic) {
    EXPECT_GT(stats.reused_after_event, 0u);
  }
  if (GetParam().reuse.allow_internal_dependencies) {
    EXPECT_GT(stats.dependencies, 0u);
  }
}

}  // namespace pool_stress_test
}  // namespace gpumem

#endif
