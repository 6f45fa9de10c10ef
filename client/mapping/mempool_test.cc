// SPDX-License-Identifier: Apache-2.0
// The memory pools that segments of kind mempool come from: when a session imports and drops them.
#include <string.h>

#include <memory>
#include <utility>
#include <vector>

#include "client/mapping/testing/kinds_fixture.h"
#include "common/mapping/mapping.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem::kinds_testing {
namespace mempool_test {

TEST_F(KindsTest, APoolIsImportedOnceInASession) {
  StartOwner();
  absl::StatusOr<std::vector<Segment>> two =
      client_->AcquireMany({.bytes = kBytes, .kind = Kind::kMempool}, 2);
  ASSERT_TRUE(two.ok()) << two.status();
  const size_t before = PoolFds();
  Segment third = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_EQ(PoolFds(), before);
  EXPECT_EQ(third.pool_fd().value(), two->front().pool_fd().value());
  EXPECT_NE(third.export_data().value(), two->front().export_data().value());
  EXPECT_NE(third.data(), two->front().data());
  // Another session has the same memory by another descriptor of the pool.
  auto other = Connect();
  Segment theirs = other->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_NE(theirs.pool_fd().value(), third.pool_fd().value());
  strcpy(static_cast<char*>(third.data()), "pooled");
  auto imported = ImportHostPool(daemon_.runtime_dir(), theirs.pool_fd().value());
  ASSERT_TRUE(imported.ok()) << imported.status();
  const auto same = (*imported)->Open(third.export_data().value(), kBytes, {});
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_STREQ(static_cast<char*>((*same)->data()), "pooled");
}

// The daemon makes a second pool beside a living one when the tenant's limit has grown.
TEST_F(KindsTest, TwoPoolsOfADeviceAreOpenAtOneTime) {
  StartOwner();
  Segment one = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const std::unique_ptr<Pool> first = ReplacePool(2);
  Segment two = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_NE(one.pool_fd().value(), two.pool_fd().value());
  const std::unique_ptr<Pool> second = std::exchange(pool_, nullptr);
  for (const std::unique_ptr<Pool>* from : {&first, &second, &first}) {
    next_pool_ = from->get();
    absl::StatusOr<Segment> more = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool});
    ASSERT_TRUE(more.ok()) << more.status();
    const Segment& sibling = from == &first ? one : two;
    EXPECT_EQ(more->pool_fd().value(), sibling.pool_fd().value());
    memset(more->data(), 1, kBytes);
  }
}

TEST_F(KindsTest, APoolOfAnEndedOwnerIsClosedWithItsLastSegment) {
  StartOwner();
  daemon_.SetContextPid(100);
  const size_t before = PoolFds();
  Segment old_one = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const size_t of_a_pool = PoolFds() - before;
  EXPECT_GT(of_a_pool, 0u);
  const std::unique_ptr<Pool> old_pool = ReplacePool(2);
  daemon_.SetContextPid(200);
  const size_t with_old = PoolFds();
  Segment new_one = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_EQ(PoolFds(), with_old + of_a_pool);
  memset(old_one.data(), 1, kBytes);
  EXPECT_TRUE(old_one.Release().ok());
  EXPECT_EQ(PoolFds(), with_old);
  // Unused, but alive: its descriptor does not come again.
  EXPECT_TRUE(new_one.Release().ok());
  EXPECT_EQ(PoolFds(), with_old);
  EXPECT_TRUE(client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).ok());
}

TEST_F(KindsTest, AnUnusedPoolOfAnEndedOwnerIsClosedWhenThereIsAnother) {
  StartOwner();
  daemon_.SetContextPid(100);
  client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const size_t with_one = PoolFds();
  const std::unique_ptr<Pool> old_pool = ReplacePool(2);
  daemon_.SetContextPid(200);
  client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_EQ(PoolFds(), with_one + 1);  // the new pool of this test
}

TEST_F(KindsTest, APoolThatLivesBesideANewerOneIsKept) {
  StartOwner();
  daemon_.SetContextPid(100);
  client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const std::unique_ptr<Pool> first = ReplacePool(2);
  client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  next_pool_ = first.get();
  EXPECT_TRUE(client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).ok());
}

TEST_F(KindsTest, OfManyPoolsThatCameAndWentAFewAreKept) {
  StartOwner();
  const size_t before = PoolFds();
  for (uint64_t id = 2; id < 50; ++id) {
    client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
    pool_ = std::make_unique<Pool>(id, &memory_);
  }
  EXPECT_LT(PoolFds(), before + 2 * 10);
}

TEST_F(KindsTest, WhatComesOfAPoolThatIsThereIsClosed) {
  StartOwner();
  Segment one = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const size_t before = PoolFds();
  for (int i = 0; i < 3; ++i) {
    sent_pools_.clear();
    Segment more = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
    EXPECT_EQ(more.pool_fd().value(), one.pool_fd().value());
    EXPECT_EQ(PoolFds(), before);
  }
}

}  // namespace mempool_test
}  // namespace gpumem::kinds_testing
