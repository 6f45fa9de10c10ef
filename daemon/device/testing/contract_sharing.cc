// SPDX-License-Identifier: Apache-2.0
// What processes do with memory that a device made.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/device/testing/contract.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using testing::AnyOf;

}  // namespace

void SharingContract::SetUp() {
  DeviceContract::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  const absl::Status peer = ContractPeer::Start(GetParam().identity).status();
  if (absl::IsFailedPrecondition(peer)) GTEST_SKIP() << peer.message();
  ASSERT_EQ(peer, absl::OkStatus());
}

TEST_P(SharingContract, WhatOneWritesAnotherReads) {
  const std::unique_ptr<Allocation> allocation = Create(4);
  ASSERT_NE(allocation, nullptr);
  const SharedMemory memory = Share(*allocation, 4);
  const auto writer = StartPeer();
  const auto reader = StartPeer();
  ASSERT_EQ(writer->Map(memory), absl::OkStatus());
  ASSERT_EQ(reader->Map(memory), absl::OkStatus());
  EXPECT_EQ(reader->ExpectZeros(), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(1), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(1), absl::OkStatus());
  ASSERT_EQ(reader->WritePattern(2), absl::OkStatus());
  EXPECT_EQ(writer->ExpectPattern(2), absl::OkStatus());
  EXPECT_EQ(writer->ExpectPattern(1).code(), StatusCode::kDataLoss);  // the check can fail
}

TEST_P(SharingContract, ManyAreMappedInOneRange) {
  if (!rules().in_ranges) GTEST_SKIP() << "this kind is opened one by one";
  std::vector<std::unique_ptr<Allocation>> allocations;
  SharedMemory memory;
  for (int i = 0; i < 8; ++i) {
    allocations.push_back(Create(1));
    ASSERT_NE(allocations.back(), nullptr);
    std::vector<int> fds = std::move(memory.fds);
    memory = Share(*allocations.back(), 1);
    memory.fds.insert(memory.fds.begin(), fds.begin(), fds.end());
  }
  const auto writer = StartPeer();
  const auto reader = StartPeer();
  ASSERT_EQ(writer->Map(memory), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(3), absl::OkStatus());
  ASSERT_EQ(reader->Map(memory), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(3), absl::OkStatus());
  // In another order it is another range: each descriptor is separate memory.
  std::swap(memory.fds.front(), memory.fds.back());
  ASSERT_EQ(reader->Map(memory), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(3).code(), StatusCode::kDataLoss);
}

TEST_P(SharingContract, SeveralAreEachTheirOwnMemory) {
  const auto first = Create(2);
  const auto second = Create(2);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const auto peer = StartPeer();
  const auto other = StartPeer();
  ASSERT_EQ(peer->Map(Share(*first, 2)), absl::OkStatus());
  ASSERT_EQ(other->Map(Share(*second, 2)), absl::OkStatus());
  ASSERT_EQ(peer->WritePattern(4), absl::OkStatus());
  EXPECT_EQ(other->ExpectZeros(), absl::OkStatus());
  ASSERT_EQ(other->WritePattern(5), absl::OkStatus());
  EXPECT_EQ(peer->ExpectPattern(4), absl::OkStatus());
}

TEST_P(SharingContract, OnlyTheWholeCanBeMapped) {
  const std::unique_ptr<Allocation> allocation = Create(2);
  ASSERT_NE(allocation, nullptr);
  const auto peer = StartPeer();
  for (const uint64_t granules : {1, 3}) {
    EXPECT_EQ(peer->Map(Share(*allocation, granules)).code(), StatusCode::kInvalidArgument)
        << granules;
  }
  EXPECT_EQ(peer->Map(Share(*allocation, 2)), absl::OkStatus());
}

TEST_P(SharingContract, AnotherDescriptorIsNotMapped) {
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const gpumem::UniqueFd other(open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(other.valid());
  const auto peer = StartPeer();
  SharedMemory memory = Share(*allocation, 1);
  if (rules().by_descriptor) {
    memory.fds = {allocation->fd(), other.get(), allocation->fd()};
    EXPECT_EQ(peer->Map(memory).code(), StatusCode::kInvalidArgument);
  } else {
    memory.data->fill(0);
    EXPECT_THAT(peer->Map(memory).code(),
                AnyOf(StatusCode::kInvalidArgument, StatusCode::kNotFound));
  }
  ASSERT_EQ(peer->Map(Share(*allocation, 1)), absl::OkStatus());
  EXPECT_EQ(peer->ExpectZeros(), absl::OkStatus());
}

TEST_P(SharingContract, ReadOnlyIsHeldOrRefused) {
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const SharedMemory memory = Share(*allocation, 1);
  const auto writer = StartPeer();
  const auto reader = StartPeer();
  ASSERT_EQ(writer->Map(memory), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(4), absl::OkStatus());
  const absl::Status mapped = reader->Map(memory, /*read_only=*/true);
  if (!rules().read_only) {
    EXPECT_EQ(mapped.code(), StatusCode::kUnimplemented);
    return;
  }
  ASSERT_EQ(mapped, absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(4), absl::OkStatus());
  if (InOneProcess() && info().backend == Backend::kHost) {
    GTEST_SKIP() << "a write would end this process";
  }
  // A process dies of it if the memory is the host's; the CUDA driver returns an error.
  EXPECT_THAT(reader->WritePattern(5).code(),
              AnyOf(StatusCode::kUnavailable, StatusCode::kInternal));
  EXPECT_EQ(writer->ExpectPattern(4), absl::OkStatus());
}

TEST_P(SharingContract, OpenedTwice) {
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const SharedMemory memory = Share(*allocation, 1);
  const auto peer = StartPeer();
  ASSERT_EQ(peer->Map(memory), absl::OkStatus());
  ASSERT_EQ(peer->WritePattern(6), absl::OkStatus());
  EXPECT_EQ(peer->MapAgain(memory).code(),
            rules().counted ? StatusCode::kOk : StatusCode::kAborted);
  // The first one stays when the second has gone.
  EXPECT_EQ(peer->ExpectPattern(6), absl::OkStatus());
  ASSERT_EQ(peer->Unmap(), absl::OkStatus());
  ASSERT_EQ(peer->Map(memory), absl::OkStatus());
  EXPECT_EQ(peer->ExpectPattern(6), absl::OkStatus());
}

TEST_P(SharingContract, MemoryIsZeroAtFirstAndAgainAfterReuseByAnother) {
  const uint64_t granules = 8;
  const auto keep = Create(1, "a");  // so that the pool, and the context, stay
  ASSERT_NE(keep, nullptr);
  const auto peer = StartPeer();
  for (int round = 0; round < 6; ++round) {
    const auto allocation = Create(granules, round % 3 == 0 ? "b" : "a");
    ASSERT_NE(allocation, nullptr);
    ASSERT_EQ(peer->Map(Share(*allocation, granules)), absl::OkStatus());
    EXPECT_EQ(peer->ExpectZeros(), absl::OkStatus()) << "round " << round;
    ASSERT_EQ(peer->WritePattern(round), absl::OkStatus());
    ASSERT_EQ(peer->Unmap(), absl::OkStatus());
  }
}

// 0 and 1 are peers that close it, 2 is its maker. Importers of export data are to close it
// before its maker frees it.
TEST_P(SharingContract, ReleasedInEveryOrder) {
  std::vector<int> order = {0, 1, 2};
  do {
    if (!rules().by_descriptor && order.back() != 2) continue;
    std::unique_ptr<Allocation> allocation = Create(1);
    ASSERT_NE(allocation, nullptr);
    const SharedMemory memory = Share(*allocation, 1);
    std::unique_ptr<ContractPeer> peers[] = {StartPeer(), StartPeer()};
    for (const auto& peer : peers) ASSERT_EQ(peer->Map(memory), absl::OkStatus());
    ASSERT_EQ(peers[0]->WritePattern(7), absl::OkStatus());
    bool holds[] = {true, true};
    for (const int who : order) {
      if (who == 2) {
        allocation.reset();
      } else {
        ASSERT_EQ(peers[who]->Unmap(), absl::OkStatus());
        holds[who] = false;
      }
      for (int i = 0; i < 2; ++i) {
        if (!holds[i]) continue;
        EXPECT_EQ(peers[i]->ExpectPattern(7), absl::OkStatus());
      }
    }
    EXPECT_EQ(device().context_pid(), 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(SharingContract, ExportDataOpensNothingOnceItsMemoryIsFreed) {
  if (rules().by_descriptor) GTEST_SKIP() << "a descriptor keeps the memory";
  if (kind() == Kind::kMempool && !exact()) {
    GTEST_SKIP() << "CUDA does not say what the data of freed memory of a pool opens";
  }
  const auto keep = Create(1);  // so that the pool, and the context, stay
  std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_TRUE(keep != nullptr && allocation != nullptr);
  SharedMemory memory = Share(*allocation, 1);
  const auto peer = StartPeer();
  ASSERT_EQ(peer->Map(Share(*keep, 1)), absl::OkStatus());
  allocation.reset();
  EXPECT_EQ(peer->Map(memory).code(), StatusCode::kNotFound);
  EXPECT_EQ(peer->Map(Share(*keep, 1)), absl::OkStatus());
}

TEST_P(SharingContract, MemorySurvivesTheDeathOfAnImporter) {
  if (InOneProcess()) GTEST_SKIP() << "there is no other process";
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const SharedMemory memory = Share(*allocation, 1);
  const auto writer = StartPeer();
  const auto other = StartPeer();
  ASSERT_EQ(writer->Map(memory), absl::OkStatus());
  ASSERT_EQ(other->Map(memory), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(8), absl::OkStatus());
  writer->Kill();
  EXPECT_EQ(other->ExpectPattern(8), absl::OkStatus());
  const auto reader = StartPeer();
  ASSERT_EQ(reader->Map(memory), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(8), absl::OkStatus());
}

TEST_P(SharingContract, ADescriptorAloneKeepsTheMemory) {
  if (!rules().by_descriptor) GTEST_SKIP() << "this kind goes with its context";
  std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  SharedMemory memory = Share(*allocation, 1);
  const auto keeper = StartPeer();
  ASSERT_EQ(keeper->Keep(allocation->fd()), absl::OkStatus());
  const auto writer = StartPeer();
  ASSERT_EQ(writer->Map(memory), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(9), absl::OkStatus());
  InOneProcess() ? writer->Unmap().IgnoreError() : writer->Kill();
  allocation.reset();
  // No process maps it now, and its maker has released it.
  const absl::StatusOr<gpumem::UniqueFd> kept = keeper->GiveBack();
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_TRUE(kept->valid());
  memory.fds = {kept->get()};
  const auto reader = StartPeer();
  ASSERT_EQ(reader->Map(memory), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(9), absl::OkStatus());
}

TEST_P(SharingContract, MemoryStaysUsableToItsImportersAfterItsOwnersEnd) {
  if (!IsContextBound(kind())) GTEST_SKIP() << "no process owns this kind";
  std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const SharedMemory memory = Share(*allocation, 1);
  const auto peer = StartPeer();
  ASSERT_EQ(peer->Map(memory), absl::OkStatus());
  ASSERT_EQ(peer->WritePattern(10), absl::OkStatus());
  ASSERT_EQ(kill(device().context_pid(), SIGKILL), 0);
  // The next one waits for nothing: either it finds the context dead, or hears it die.
  while (!allocation->lost()) device().Create(Spec(granule())).IgnoreError();
  EXPECT_EQ(peer->ExpectPattern(10), absl::OkStatus());
  ASSERT_EQ(peer->Unmap(), absl::OkStatus());
  // A process that had it open before may open it still: the driver remembers.
  if (kind() == Kind::kIpc && !InOneProcess()) {
    EXPECT_EQ(StartPeer()->Map(memory).code(), StatusCode::kNotFound);
  }
}

}  // namespace gpumemd
