// SPDX-License-Identifier: Apache-2.0
// A pool in a child after fork(): it belongs to the parent, and each call says so or does nothing.
// The child may make another.
#include <memory>
#include <optional>
#include <utility>

#include "client/pool/testing/child.h"
#include "client/pool/testing/engine_fixture.h"
#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "gpumem/pool.h"
#include "gpumem/suspend.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace pool_fork_test {

bool Refused(const absl::Status& status) { return absl::IsFailedPrecondition(status); }
template <typename Value>
bool Refused(const absl::StatusOr<Value>& value) {
  return Refused(value.status());
}

using EngineForkTest = internal::EngineFixture;

TEST_F(EngineForkTest, CallsOfTheChildAreRefused) {
  Make();
  const Block block = Allocate(4096);
  EXPECT_TRUE(internal::HoldsInChild([&] {
    return Refused(engine_->Allocate(4096, nullptr)) && Refused(engine_->AllocateSynchronized(1)) &&
           Refused(engine_->Free(block.data, nullptr)) &&
           Refused(engine_->FreeSynchronized(block.data)) && Refused(engine_->Find(block.data)) &&
           !engine_->Share(block.data).ok() && Refused(engine_->Trim(0)) &&
           Refused(engine_->FreeAllBlocks(std::nullopt)) &&
           Refused(engine_->StreamWaits(nullptr, nullptr)) &&
           Refused(engine_->ForgetStream(nullptr)) && Refused(engine_->Suspend({})) &&
           Refused(engine_->Resume({})) && Refused(engine_->SetLimit(1)) &&
           Refused(engine_->TotalBytes()) && Refused(engine_->MemGetInfo()) &&
           engine_->TryAllocate(4096, nullptr).data == nullptr &&
           !engine_->TryFree(block.data, nullptr);
  }));
  Free(block);
}

TEST_F(EngineForkTest, SettingsOfTheChildChangeNothing) {
  Make();
  Free(Allocate(4 * kMiB));
  const uint64_t leased = source_->leased_bytes();
  EXPECT_TRUE(internal::HoldsInChild([&] {
    engine_->SetReleaseThreshold(0);
    engine_->SetReusePolicy({});
    engine_->ResetPeaks();
    engine_->SetHook([](const PoolEvent&) {});
    engine_->SetOutOfMemoryCallback([](uint64_t) { return true; });
    engine_->GiveBack(4 * kMiB);
    engine_->GiveAll();
    const bool nothing = source_->leased_bytes() == leased && engine_->limit() == 0 &&
                         !engine_->suspended() && !engine_->HasAny({1}) &&
                         engine_->Stats().reserved_bytes == 0;
    engine_.reset();
    return nothing;
  }));
}

// The thread's caches of the parent's pools stay untouched.
TEST_F(EngineForkTest, PoolOfTheChildWorks) {
  Make();
  const Block kept = Allocate(4096);
  Free(kept);
  EXPECT_TRUE(internal::HoldsInChild([] {
    internal::Engine own(
        std::make_unique<internal::FakeSegments>(internal::FakeSegments::Options{}),
        internal::MakeHostStreamApi(), {});
    const auto block = own.Allocate(4096, nullptr);
    return block.ok() && own.Free(block->data, nullptr).ok() &&
           own.TryAllocate(4096, nullptr).data == block->data && own.CheckInvariants().ok();
  }));
  EXPECT_EQ(engine_->TryAllocate(4096, nullptr).data, kept.data);
}

TEST(PoolForkTest, ChildLeavesThePoolToItsParent) {
  internal::FakeDaemon daemon;
  auto client = Client::Connect({.runtime_dir = daemon.runtime_dir()});
  ASSERT_TRUE(client.ok()) << client.status();
  auto pool = Pool::Create(std::shared_ptr<Client>(*std::move(client)), {}).value();
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_TRUE(internal::HoldsInChild([&] {
    pool->SetGivesUnderPressure(false);
    const bool refused = Refused(pool->Allocate(kMiB, nullptr));
    pool.reset();
    return refused;
  }));
  EXPECT_EQ(daemon.release_calls(), 0);
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
}

}  // namespace pool_fork_test
}  // namespace gpumem
