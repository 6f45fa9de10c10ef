// SPDX-License-Identifier: Apache-2.0
// Pools that are suspended and resumed, against a daemon that can refuse each step.
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gpumem/pool.h"
#include "gpumem/suspend.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace pool_suspension_test {

using absl::StatusCode;
using internal::FakeDaemon;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using IsCancelled = std::function<bool()>;

class PoolSuspensionTest : public ::testing::Test {
 protected:
  void Start(FakeDaemon::Script script = {}, const PoolOptions& options = {}) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    client_ = Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = absl::Seconds(20)})
                  .value();
    pool_ = Pool::Create(client_, options).value();
  }
  // Allocates a block and fills it with a number.
  Block Filled(uint64_t bytes, char number) {
    const Block block = pool_->Allocate(bytes, nullptr).value();
    std::memset(block.data, number, block.bytes);
    return block;
  }
  static void ExpectFilled(const Block& block, char number) {
    const auto* const bytes = static_cast<const char*>(block.data);
    for (uint64_t i = 0; i < block.bytes; i += 511) ASSERT_EQ(bytes[i], number);
    EXPECT_EQ(bytes[block.bytes - 1], number);
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::shared_ptr<Client> client_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(PoolSuspensionTest, BlocksKeepTheirContentsAndAddresses) {
  Start();
  const Block small = Filled(100, 1), large = Filled(20 * kMiB, 2);
  const Block cached = Filled(40 * kMiB, 3);
  EXPECT_EQ(pool_->Free(cached, nullptr), absl::OkStatus());
  const auto ticket = pool_->Share(large);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(pool_->Suspend(), absl::OkStatus());
    EXPECT_TRUE(pool_->suspended());
    EXPECT_THAT(daemon_->suspended(), SizeIs(daemon_->live_leases()));
    EXPECT_LT(pool_->Stats().reserved_bytes, 40 * kMiB) << "the free part was given back";
    EXPECT_EQ(pool_->Allocate(1, nullptr).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(pool_->Share(large).status().code(), StatusCode::kFailedPrecondition);
    ASSERT_EQ(pool_->Resume(), absl::OkStatus());
    EXPECT_FALSE(pool_->suspended());
    EXPECT_THAT(daemon_->suspended(), IsEmpty());
    ExpectFilled(small, 1);
    ExpectFilled(large, 2);
  }
  EXPECT_EQ(pool_->Share(large).value().value, ticket->value);
  EXPECT_EQ(pool_->Free(Filled(40 * kMiB, 3), nullptr), absl::OkStatus());
}

TEST_F(PoolSuspensionTest, TheProgramIsToldWhenToStop) {
  Start();
  const Block block = Filled(kMiB, 1);
  const auto refuse = [&] {
    EXPECT_NE(daemon_->reservation(), 0u);
    ExpectFilled(block, 1);
    return absl::AbortedError("not now");
  };
  EXPECT_EQ(pool_->Suspend({.quiesce = refuse}), absl::AbortedError("not now"));
  EXPECT_FALSE(pool_->suspended());
  ExpectFilled(block, 1);
  EXPECT_TRUE(pool_->Allocate(1, nullptr).ok());
  EXPECT_EQ(daemon_->reservation(), 0u);
}

TEST_F(PoolSuspensionTest, ARefusedSuspendBringsAllBack) {
  std::atomic<bool> refuses = true;
  Start({.suspend = [&](const IsCancelled&, const v1::SuspendRequest&) {
    return refuses ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no copy") : grpc::Status::OK;
  }});
  const Block block = Filled(12 * kMiB, 1);
  EXPECT_EQ(pool_->Suspend().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(pool_->suspended());
  ExpectFilled(block, 1);
  EXPECT_TRUE(pool_->Allocate(1, nullptr).ok());
  refuses = false;
  ASSERT_EQ(pool_->Suspend(), absl::OkStatus());
  ASSERT_EQ(pool_->Resume(), absl::OkStatus());
  ExpectFilled(block, 1);
}

TEST_F(PoolSuspensionTest, ARefusedResumeLeavesItSuspended) {
  std::atomic<bool> refuses = true;
  std::atomic<uint64_t> wait_ms = 0;
  Start({.resume_leases = [&](const IsCancelled&, const v1::ResumeRequest& request) {
    wait_ms = request.wait_ms();
    return refuses ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full") : grpc::Status::OK;
  }});
  const Block block = Filled(kMiB, 1);
  EXPECT_EQ(pool_->Resume({.wait = -absl::Seconds(1)}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pool_->Resume().code(), StatusCode::kFailedPrecondition);
  ASSERT_EQ(pool_->Suspend(), absl::OkStatus());
  EXPECT_EQ(pool_->Suspend().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(pool_->Resume({.wait = absl::Seconds(7)}).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(wait_ms, 7000u);
  EXPECT_TRUE(pool_->suspended());
  EXPECT_EQ(pool_->Allocate(1, nullptr).status().code(), StatusCode::kFailedPrecondition);
  refuses = false;
  ASSERT_EQ(pool_->Resume(), absl::OkStatus());
  ExpectFilled(block, 1);
}

TEST_F(PoolSuspensionTest, AWaitingResumeIsCancelled) {
  absl::Notification waits;
  Start({.resume_leases = [&](const IsCancelled& is_cancelled, const v1::ResumeRequest&) {
    waits.Notify();
    while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }});
  const Block block = Filled(kMiB, 1);
  ASSERT_EQ(pool_->Suspend(), absl::OkStatus());
  CancelToken cancel;
  std::thread other([&] {
    waits.WaitForNotification();
    // All of these return while the other thread waits.
    EXPECT_EQ(pool_->Free(block, nullptr), absl::OkStatus());
    EXPECT_EQ(pool_->Allocate(1, nullptr).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(pool_->Resume().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(pool_->Trim(0).value(), 0u);
    cancel.Cancel();
  });
  EXPECT_EQ(pool_->Resume({.wait = absl::InfiniteDuration(), .cancel = cancel}).code(),
            StatusCode::kCancelled);
  other.join();
  EXPECT_TRUE(pool_->suspended());
  EXPECT_GT(pool_->Trim(0).value(), 0u) << "what was freed meanwhile";
  EXPECT_EQ(daemon_->live_leases(/*awaited=*/0), 0u);
  ASSERT_EQ(pool_->Resume(), absl::OkStatus()) << "there is nothing left to resume";
}

TEST_F(PoolSuspensionTest, WhatIsFreedMeanwhileDoesNotComeBack) {
  Start({}, {.grow_bytes = 2 * kMiB});
  const Block stays = Filled(4 * kMiB, 1), goes = Filled(4 * kMiB, 2);
  ASSERT_EQ(pool_->Suspend(), absl::OkStatus());
  const size_t before = daemon_->live_leases();
  EXPECT_EQ(pool_->Free(goes, nullptr), absl::OkStatus());
  EXPECT_EQ(pool_->Free(goes, nullptr).code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(pool_->Resume(), absl::OkStatus());
  EXPECT_LT(daemon_->live_leases(), before);
  EXPECT_EQ(pool_->Stats().used_bytes, stays.bytes);
  ExpectFilled(stays, 1);
  ExpectFilled(Filled(4 * kMiB, 3), 3);
  ExpectFilled(stays, 1);
}

TEST_F(PoolSuspensionTest, ItIsDestroyedWhileItIsSuspended) {
  Start();
  Filled(4 * kMiB, 1);
  ASSERT_EQ(pool_->Suspend(), absl::OkStatus());
  pool_.reset();
  EXPECT_EQ(daemon_->live_leases(/*awaited=*/0), 0u);
}

TEST_F(PoolSuspensionTest, OnlyKindVmmCanBeSuspended) {
  Start({}, {.kind = Kind::kPinned});
  const Block block = Filled(kMiB, 1);
  EXPECT_EQ(pool_->Suspend().code(), StatusCode::kUnimplemented);
  EXPECT_FALSE(pool_->suspended());
  ExpectFilled(block, 1);
}

// One thread suspends and resumes. The others work in turns, as a server that holds a lock around
// each step, and check the contents of their blocks.
TEST_F(PoolSuspensionTest, ThreadsWorkInBetween) {
  Start({}, {.grow_bytes = 2 * kMiB});
  absl::Mutex running;  // shared by steps, exclusive for the time that it is suspended
  std::atomic<bool> ends = false;
  std::atomic<int> steps = 0;
  std::vector<std::thread> threads;
  for (int number = 1; number <= 2; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(static_cast<uint64_t>(number));
      std::vector<Block> held;
      while (!ends) {
        absl::ReaderMutexLock step(&running);
        ++steps;
        for (const Block& block : held) ExpectFilled(block, static_cast<char>(number));
        if (held.size() < 4) {
          held.push_back(Filled(1 + random() % (3 * kMiB), static_cast<char>(number)));
        } else {
          EXPECT_EQ(pool_->Free(held.back(), nullptr), absl::OkStatus());
          held.pop_back();
        }
      }
      for (const Block& block : held) {
        EXPECT_EQ(pool_->Free(block, nullptr), absl::OkStatus());
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    const int seen = steps;
    while (steps < seen + 5) std::this_thread::yield();
    absl::MutexLock stopped(&running);
    ASSERT_EQ(pool_->Suspend(), absl::OkStatus());
    ASSERT_EQ(pool_->Resume(), absl::OkStatus());
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace pool_suspension_test
}  // namespace gpumem
