// SPDX-License-Identifier: Apache-2.0
// The client's pool over every kind: blocks are memory, are shared, are limited, and come back.
#include "gpumem/pool.h"

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/contract.h"
#include "tests/support/pattern.h"

namespace gpumem::contract {
namespace {

using testing::Check;
using testing::Fill;
using testing::Memory;

// Returns the memory of a pool's block.
Memory MemoryOf(const Pool& pool, void* data, uint64_t bytes) {
  return {
      .backend = pool.backend(), .device_uuid = pool.device_uuid(), .data = data, .size = bytes};
}

TEST_P(PoolContract, BlocksAreMemory) {
  auto pool = MakePool();
  ASSERT_NE(pool, nullptr);
  EXPECT_EQ(Charged(), 0u) << "nothing is leased before it is needed";
  std::vector<Block> blocks;
  for (const uint64_t bytes : {uint64_t{1000}, uint64_t{70000}, 3 * kMiB, 40 * kMiB}) {
    auto block = pool->Allocate(bytes, nullptr);
    ASSERT_OK(block);
    ASSERT_OK(Fill(MemoryOf(*pool, block->data, block->bytes), blocks.size()));
    blocks.push_back(*block);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_OK(Check(MemoryOf(*pool, blocks[i].data, blocks[i].bytes), i));
    EXPECT_OK(pool->Free(blocks[i], nullptr));
  }
  EXPECT_EQ(pool->Stats().used_bytes, 0u);
  EXPECT_EQ(Charged(), pool->Stats().reserved_bytes);
  const auto freed = pool->FreeAllBlocks();
  ASSERT_OK(freed);
  EXPECT_EQ(pool->Stats().reserved_bytes, 0u);
  EXPECT_TRUE(EventuallyCharged(kept_by_pool() ? *freed : 0)) << Charged();
}

TEST_P(PoolContract, ABlockMaySpanSegmentsWhereTheyLieTogether) {
  const uint64_t piece = granule_ > 4 * kMiB ? granule_ : 4 * kMiB;
  auto pool = MakePool({.grow_bytes = piece});
  ASSERT_NE(pool, nullptr);
  auto first = pool->Allocate(piece, nullptr), second = pool->Allocate(piece, nullptr);
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_EQ(pool->Stats().segments, 2u);
  ASSERT_OK(pool->Free(*first, nullptr));
  ASSERT_OK(pool->Free(*second, nullptr));
  auto both = pool->Allocate(2 * piece, nullptr);
  ASSERT_OK(both);
  if (kind() == Kind::kVmm) {
    EXPECT_EQ(both->data, first->data);
    EXPECT_EQ(pool->Stats().segments, 2u);
  }
  EXPECT_OK(Fill(MemoryOf(*pool, both->data, both->bytes), 5));
  EXPECT_OK(Check(MemoryOf(*pool, both->data, both->bytes), 5));
  EXPECT_OK(pool->Free(*both, nullptr));
}

TEST_P(PoolContract, WhatIsFreeInPiecesIsMovedIntoOne) {
  if (kind() != Kind::kVmm) GTEST_SKIP() << "segments of other kinds stay where they are";
  const uint64_t piece = granule_ > 2 * kMiB ? granule_ : 2 * kMiB;
  auto pool = MakePool({.grow_bytes = piece, .thread_caches = false});
  ASSERT_NE(pool, nullptr);
  const auto other = Connect();
  std::vector<Block> pieces;
  for (uint64_t i = 0; i < 8; ++i) {
    auto block = pool->Allocate(piece, nullptr);
    ASSERT_OK(block);
    ASSERT_OK(Fill(MemoryOf(*pool, block->data, block->bytes), i));
    pieces.push_back(*block);
  }
  const auto ticket = pool->Share(pieces[1]);
  ASSERT_OK(ticket);
  for (uint64_t i = 0; i < 8; i += 2) ASSERT_OK(pool->Free(pieces[i], nullptr));
  const uint64_t charged = Charged();

  auto large = pool->Allocate(4 * piece, nullptr);
  ASSERT_OK(large);
  EXPECT_EQ(pool->Stats().moves, 4u);
  EXPECT_EQ(pool->Stats().segments, 8u);
  EXPECT_EQ(Charged(), charged);
  ASSERT_OK(Fill(MemoryOf(*pool, large->data, large->bytes), 9));
  for (uint64_t i = 1; i < 8; i += 2) {
    EXPECT_OK(Check(MemoryOf(*pool, pieces[i].data, pieces[i].bytes), i));
  }
  EXPECT_OK(Check(MemoryOf(*pool, large->data, large->bytes), 9));
  // Tickets are right: those of pieces that stayed, and of moved ones.
  const auto stayed = OpenBlock(*other, ticket->value);
  ASSERT_OK(stayed);
  EXPECT_OK(Check(MemoryOf(*pool, stayed->data(), stayed->bytes()), 1));
  const auto moved_ticket = pool->Share(*large);
  ASSERT_OK(moved_ticket);
  const auto moved = OpenBlock(*other, moved_ticket->value);
  ASSERT_OK(moved);
  EXPECT_OK(Check(MemoryOf(*pool, moved->data(), moved->bytes()), 9));

  EXPECT_OK(pool->Free(*large, nullptr));
  for (uint64_t i = 1; i < 8; i += 2) EXPECT_OK(pool->Free(pieces[i], nullptr));
  // The contiguous rest, plus memory leased anew for the holes.
  large = pool->Allocate(12 * piece, nullptr);
  ASSERT_OK(large);
  EXPECT_OK(Fill(MemoryOf(*pool, large->data, large->bytes), 10));
  EXPECT_OK(Check(MemoryOf(*pool, large->data, large->bytes), 10));
  EXPECT_OK(pool->Free(*large, nullptr));
  ASSERT_OK(pool->FreeAllBlocks());
  EXPECT_EQ(pool->Stats().reserved_bytes, 0u);
}

TEST_P(PoolContract, SharedBlocksAreTheSameMemoryAndMapTheirSegmentOnce) {
  auto pool = MakePool();
  ASSERT_NE(pool, nullptr);
  const auto other = Connect();
  std::vector<SharedBlock> opened;
  for (uint64_t i = 0; i < 3; ++i) {
    auto block = pool->Allocate(300000, nullptr);
    ASSERT_OK(block);
    ASSERT_OK(Fill(MemoryOf(*pool, block->data, block->bytes), i));
    const auto ticket = pool->Share(*block);
    ASSERT_OK(ticket);
    auto shared = OpenBlock(*other, ticket->value);
    ASSERT_OK(shared);
    EXPECT_EQ(shared->bytes(), block->bytes);
    EXPECT_OK(Check(MemoryOf(*pool, shared->data(), shared->bytes()), i));
    opened.push_back(*std::move(shared));
    const auto stranger = OpenBlock(*Connect(kOther), ticket->value);
    EXPECT_STATUS(stranger, kPermissionDenied, "tenant");
  }
  EXPECT_EQ(Charged(), pool->Stats().reserved_bytes) << "shared bytes are charged once";
  // They have the same distances as in the pool: one mapping.
  const auto at = [](const SharedBlock& block) { return static_cast<char*>(block.data()); };
  EXPECT_EQ(at(opened[1]) - at(opened[0]), static_cast<ptrdiff_t>(opened[0].bytes()));
  EXPECT_EQ(at(opened[2]) - at(opened[1]), static_cast<ptrdiff_t>(opened[1].bytes()));
  EXPECT_STATUS(OpenBlock(*other, "gmb_0_512.gmt_x"), kInvalidArgument, "ticket");
  EXPECT_STATUS(OpenBlock(*other, "gmt_x"), kInvalidArgument, "gmb_");
}

TEST_P(PoolContract, TheQuotaLimitsThePoolAndMemGetInfoShowsIt) {
  auto pool = MakePool({.grow_bytes = granule_}, kSmall);
  ASSERT_NE(pool, nullptr);
  const uint64_t limit = kind() == Kind::kPinned ? kSmallPinnedLimit : SmallLimit(backend());
  auto info = pool->MemGetInfo();
  ASSERT_OK(info);
  EXPECT_EQ(info->total_bytes, limit);
  EXPECT_EQ(info->free_bytes, limit);
  std::vector<Block> blocks;
  absl::StatusOr<Block> block;
  while ((block = pool->Allocate(granule_, nullptr)).ok()) blocks.push_back(*block);
  EXPECT_EQ(blocks.size(), limit / granule_);
  EXPECT_DENIED(block, kDeviceLimit);
  EXPECT_EQ(testing::DenialIn(block.status()).tenant, kSmall);
  EXPECT_EQ(pool->MemGetInfo()->free_bytes, 0u);
  for (const Block& one : blocks) EXPECT_OK(pool->Free(one, nullptr));
  EXPECT_EQ(pool->MemGetInfo()->free_bytes, limit);
  // In one piece it is there where segments lie together, or can be given back.
  if (!kept_by_pool()) {
    EXPECT_OK(pool->Allocate(limit, nullptr));
  }
}

TEST_P(PoolContract, UnderPressureAPoolGivesFreeMemoryToAnotherSession) {
  if (kept_by_pool()) GTEST_SKIP() << "what CUDA keeps of a memory pool helps nobody";
  auto gives = MakePool({.grow_bytes = granule_}, kSmall);
  ASSERT_NE(gives, nullptr);
  std::vector<Block> blocks;
  absl::StatusOr<Block> block;
  while ((block = gives->Allocate(granule_, nullptr)).ok()) blocks.push_back(*block);
  EXPECT_DENIED(block, kDeviceLimit);
  for (const Block& one : blocks) EXPECT_OK(gives->Free(one, nullptr));
  const uint64_t had = gives->Stats().reserved_bytes;
  auto wants = MakePool({.wait = absl::Seconds(30)}, kSmall);
  ASSERT_NE(wants, nullptr);
  block = wants->Allocate(granule_, nullptr);
  ASSERT_OK(block);
  EXPECT_OK(Fill(MemoryOf(*wants, block->data, block->bytes), 9));
  const PoolStats after = gives->Stats();
  EXPECT_GE(after.given_under_pressure_bytes, granule_);
  EXPECT_EQ(after.reserved_bytes, had - after.given_under_pressure_bytes);
  EXPECT_OK(wants->Free(*block, nullptr));
}

TEST_P(PoolContract, APoolCanBeToldToGiveNothingUnderPressure) {
  auto keeps = MakePool({.grow_bytes = granule_, .gives_under_pressure = false}, kSmall);
  ASSERT_NE(keeps, nullptr);
  std::vector<Block> blocks;
  absl::StatusOr<Block> block;
  while ((block = keeps->Allocate(granule_, nullptr)).ok()) blocks.push_back(*block);
  for (const Block& one : blocks) EXPECT_OK(keeps->Free(one, nullptr));
  auto wants = MakePool({.grow_bytes = granule_, .wait = absl::Milliseconds(200)}, kSmall);
  ASSERT_NE(wants, nullptr);
  EXPECT_STATUS(wants->Allocate(granule_, nullptr), kResourceExhausted, "limit");
  EXPECT_EQ(keeps->Stats().reserved_bytes, blocks.size() * granule_);
}

TEST_P(PoolContract, APoolWorksOnWithItsLeasesWithoutADaemon) {
  auto mortal = testing::DaemonProcess::Start({.backend = GetParam().backend});
  ASSERT_OK(mortal);
  auto client = Client::Connect(
      {.runtime_dir = (*mortal)->runtime_dir(), .timeout = absl::Seconds(10), .reconnect = false});
  ASSERT_OK(client);
  auto pool = Pool::Create(*std::move(client), {.kind = kind()});
  ASSERT_OK(pool);
  auto block = (*pool)->Allocate(granule_, nullptr);
  ASSERT_OK(block);
  (*mortal)->child().Signal(SIGKILL);
  (*mortal)->child().Wait();
  EXPECT_OK(Fill(MemoryOf(**pool, block->data, block->bytes), 3));
  EXPECT_OK(Check(MemoryOf(**pool, block->data, block->bytes), 3));
  EXPECT_OK((*pool)->Free(*block, nullptr));
  block = (*pool)->Allocate(granule_, nullptr);
  EXPECT_OK(block);
  EXPECT_STATUS((*pool)->Allocate(uint64_t{1} << 30, nullptr), kUnavailable, "");
}

}  // namespace
}  // namespace gpumem::contract
