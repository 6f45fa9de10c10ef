// SPDX-License-Identifier: Apache-2.0
// Each call of a pool, and what a pool cannot be made of; against a scripted daemon.
#include <memory>
#include <utility>
#include <vector>

#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "gmock/gmock.h"
#include "gpumem/pool.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace pool_calls_test {

using internal::FakeDaemon;

class PoolCallsTest : public testing::Test {
 protected:
  explicit PoolCallsTest(FakeDaemon::Script script = {}) : daemon_(std::move(script)) {
    auto client =
        Client::Connect({.runtime_dir = daemon_.runtime_dir(), .timeout = absl::Seconds(20)});
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  std::unique_ptr<Pool> Make(const PoolOptions& options = {}) {
    auto pool = Pool::Create(client_, options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }
  absl::StatusCode Refused(const PoolOptions& options) {
    return Pool::Create(client_, options).status().code();
  }

  FakeDaemon daemon_;
  std::shared_ptr<Client> client_;
};

TEST_F(PoolCallsTest, BlocksAreFoundUntilTheyAreFreed) {
  auto pool = Make();
  EXPECT_EQ(pool->kind(), Kind::kVmm);
  EXPECT_EQ(pool->backend(), Backend::kHost);
  const Block block = pool->AllocateSynchronized(kMiB).value();
  EXPECT_EQ(pool->Find(block.data)->bytes, block.bytes);
  EXPECT_TRUE(pool->FreeSynchronized(block.data).ok());
  EXPECT_EQ(pool->Find(block.data).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(pool->FreeSynchronized(block.data).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Free(block, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Share(block).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->AllocateSynchronized(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Allocate(0, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PoolCallsTest, TryingServesFromThisThreadsCacheAlone) {
  auto pool = Make();
  EXPECT_EQ(pool->TryAllocate(kMiB, nullptr).data, nullptr);
  EXPECT_FALSE(pool->TryFree(pool.get(), nullptr));
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_TRUE(pool->Free(block.data, nullptr).ok());
  const Block again = pool->TryAllocate(kMiB, nullptr);
  EXPECT_EQ(again.data, block.data);
  EXPECT_EQ(pool->TryAllocate(0, nullptr).data, nullptr);
  EXPECT_TRUE(pool->TryFree(again.data, nullptr));
  EXPECT_FALSE(pool->TryFree(again.data, nullptr));
  // A hook sees each block: caches are off.
  pool->SetHook([](const PoolEvent&) {});
  EXPECT_EQ(pool->TryAllocate(kMiB, nullptr).data, nullptr);
  EXPECT_FALSE(pool->TryFree(again.data, nullptr));
}

TEST_F(PoolCallsTest, StreamsAreOrderedAndForgotten) {
  auto pool = Make();
  int names[2] = {};
  EXPECT_TRUE(pool->StreamWaits(&names[0], &names[1]).ok());
  EXPECT_TRUE(pool->StreamWaits(&names[0], &names[0]).ok());
  const Block block = pool->Allocate(kMiB, &names[0]).value();
  EXPECT_TRUE(pool->Free(block, &names[0]).ok());
  EXPECT_TRUE(pool->ForgetStream(&names[0]).ok());
  EXPECT_TRUE(pool->ForgetStream(&names[0]).ok());
  EXPECT_GT(pool->FreeAllBlocks().value(), 0u);
  EXPECT_EQ(pool->FreeAllBlocks(&names[1]).value(), 0u);
  EXPECT_EQ(pool->Stats().segments, 0u);
}

TEST_F(PoolCallsTest, PerThreadDefaultStreamIsAnother) {
  auto pool = Make({.per_thread_default_stream = true});
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  EXPECT_EQ(pool->TryAllocate(kMiB, nullptr).data, block.data);
}

TEST_F(PoolCallsTest, LimitIsOfReservedMemory) {
  auto pool = Make({.grow_bytes = 2 * kMiB});
  for (const double fraction : {0.0, -1.0, 1.5}) {
    EXPECT_EQ(pool->SetLimitFraction(fraction).code(), absl::StatusCode::kInvalidArgument);
  }
  const uint64_t total = pool->MemGetInfo()->total_bytes;
  EXPECT_TRUE(pool->SetLimitFraction(0.5).ok());
  EXPECT_EQ(pool->limit(), total / 2);
  EXPECT_TRUE(pool->SetLimit(2 * kMiB).ok());
  EXPECT_EQ(pool->limit(), 2 * kMiB);
  int asked = 0;
  pool->SetOutOfMemoryCallback([&](uint64_t) { return ++asked, false; });
  EXPECT_EQ(pool->Allocate(4 * kMiB, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(pool->Stats().out_of_memory, 1u);
}

TEST_F(PoolCallsTest, HookSeesEachCall) {
  auto pool = Make();
  std::vector<PoolEvent::What> seen;
  pool->SetHook([&](const PoolEvent& event) { seen.push_back(event.what); });
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  EXPECT_TRUE(pool->Trim(0).ok());
  EXPECT_THAT(seen, testing::ElementsAre(PoolEvent::What::kGrow, PoolEvent::What::kAllocate,
                                         PoolEvent::What::kFree, PoolEvent::What::kShrink));
  pool->SetHook(nullptr);
  EXPECT_TRUE(pool->Allocate(kMiB, nullptr).ok());
  EXPECT_EQ(seen.size(), 4u);
}

TEST_F(PoolCallsTest, ThresholdReleasesFreeMemory) {
  auto pool = Make({.grow_bytes = 2 * kMiB});
  pool->SetReusePolicy({.allow_internal_dependencies = false});
  pool->SetReleaseThreshold(0);
  const Block block = pool->Allocate(4 * kMiB, nullptr).value();
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  EXPECT_GT(pool->Stats().reserved_peak_bytes, pool->Stats().reserved_bytes);
  pool->ResetPeaks();
  EXPECT_EQ(pool->Stats().reserved_peak_bytes, pool->Stats().reserved_bytes);
}

TEST_F(PoolCallsTest, IsNotMadeOfWhatIsNotThere) {
  EXPECT_EQ(Pool::Create(nullptr, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refused({.wait = -absl::Seconds(1)}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refused({.device = "GPU-1"}), absl::StatusCode::kNotFound);
  EXPECT_EQ(Refused({.device = FakeDaemon::kPinnedDevice, .kind = Kind::kVmm}),
            absl::StatusCode::kUnimplemented);
}

class NoUsageTest : public PoolCallsTest {
 protected:
  NoUsageTest()
      : PoolCallsTest({.usage = [] { return grpc::Status(grpc::StatusCode::INTERNAL, "no"); }}) {}
};

TEST_F(NoUsageTest, ErrorsOfTheDaemonAreReturned) {
  EXPECT_EQ(Refused({.device = "most-free"}), absl::StatusCode::kInternal);
  auto pool = Make();
  EXPECT_EQ(pool->MemGetInfo().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(pool->SetLimitFraction(0.5).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Make({.revocable = true})->MemGetInfo().status().code(), absl::StatusCode::kInternal);
}

class NoShareTest : public PoolCallsTest {
 protected:
  NoShareTest()
      : PoolCallsTest({.share = [](const v1::ShareRequest&) {
          return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no");
        }}) {}
};

TEST_F(NoShareTest, ErrorsOfTheDaemonAreReturned) {
  auto pool = Make();
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_EQ(pool->Share(block).status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace pool_calls_test
}  // namespace gpumem
