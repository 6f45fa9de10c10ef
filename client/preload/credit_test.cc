// SPDX-License-Identifier: Apache-2.0
#include "client/preload/credit.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A daemon with one limit.
class Source {
 public:
  explicit Source(uint64_t limit) : limit_(limit) {}

  CreditSource source() { return {&Source::Acquire, &Source::Release, this}; }

  uint64_t used() {
    std::lock_guard lock(mutex_);
    return used_;
  }
  uint64_t calls() {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  // Requests that may wait do so for that long.
  void set_patience(std::chrono::seconds patience) { patience_ = patience; }
  void AwaitWaiters(int waiters) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ == waiters; });
  }
  void set_limit(uint64_t limit) {
    std::lock_guard lock(mutex_);
    limit_ = limit;
  }

 private:
  static Answer Acquire(void* self, uint64_t bytes, bool may_wait, uint64_t* id) {
    Source* source = static_cast<Source*>(self);
    std::unique_lock lock(source->mutex_);
    ++source->calls_;
    EXPECT_EQ(bytes % Credit::kUnit, 0u);
    const auto fits = [&] {
      return bytes <= source->limit_ && source->used_ <= source->limit_ - bytes;
    };
    if (may_wait) {
      ++source->waiting_;
      source->changed_.notify_all();
      source->changed_.wait_for(lock, source->patience_, fits);
      --source->waiting_;
    }
    if (!fits()) return Answer::kNoMemory;
    source->used_ += bytes;
    *id = ++source->last_id_;
    source->held_[*id] = bytes;
    return Answer::kOk;
  }
  static void Release(void* self, uint64_t id) {
    Source* source = static_cast<Source*>(self);
    std::lock_guard lock(source->mutex_);
    auto found = source->held_.find(id);
    ASSERT_NE(found, source->held_.end());
    source->used_ -= found->second;
    source->held_.erase(found);
    source->changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::seconds patience_{0};
  int waiting_ = 0;
  uint64_t limit_;
  uint64_t used_ = 0;
  uint64_t calls_ = 0;
  uint64_t last_id_ = 0;
  std::map<uint64_t, uint64_t> held_;
};

TEST(CreditTest, SmallRequestsShareAReservation) {
  Source source(1024 * kMiB);
  Credit credit;
  credit.Init(source.source(), 32 * kMiB);
  uint64_t id = 1;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(credit.Take(512, &id), Answer::kOk);
    EXPECT_EQ(id, 0u);
  }
  EXPECT_EQ(source.calls(), 1u);
  EXPECT_EQ(source.used(), 32 * kMiB);
}

TEST(CreditTest, LargeRequestsHaveTheirOwn) {
  Source source(1024 * kMiB);
  Credit credit;
  credit.Init(source.source(), 32 * kMiB);
  uint64_t id = 0;
  ASSERT_EQ(credit.Take(33 * kMiB, &id), Answer::kOk);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(source.used(), 34 * kMiB);
  credit.Give(33 * kMiB, id);
  EXPECT_EQ(credit.spare_bytes(), 34 * kMiB);
  // Of another size, and above two chunks.
  ASSERT_EQ(credit.Take(65 * kMiB, &id), Answer::kOk);
  EXPECT_EQ(source.used(), 100 * kMiB);
  credit.Give(65 * kMiB, id);
  EXPECT_EQ(source.used(), 34 * kMiB);
  credit.Trim();
  EXPECT_EQ(source.used(), 0u);
}

TEST(CreditTest, TheSpareReservationServesTheNextRequestOfItsSize) {
  Source source(1024 * kMiB);
  Credit credit;
  credit.Init(source.source(), 32 * kMiB);
  uint64_t id = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(credit.Take(64 * kMiB, &id), Answer::kOk);
    EXPECT_NE(id, 0u);
    credit.Give(64 * kMiB, id);
  }
  EXPECT_EQ(source.calls(), 1u);
  // The newest one is kept.
  uint64_t other = 0;
  ASSERT_EQ(credit.Take(64 * kMiB, &id), Answer::kOk);
  ASSERT_EQ(credit.Take(40 * kMiB, &other), Answer::kOk);
  credit.Give(64 * kMiB, id);
  credit.Give(40 * kMiB, other);
  EXPECT_EQ(credit.spare_bytes(), 40 * kMiB);
  EXPECT_EQ(source.used(), 40 * kMiB);
}

TEST(CreditTest, TheSpareReservationIsGivenUpForARequestThatNeedsItsRoom) {
  Source source(100 * kMiB);
  Credit credit;
  credit.Init(source.source(), 32 * kMiB);
  uint64_t id = 0;
  ASSERT_EQ(credit.Take(64 * kMiB, &id), Answer::kOk);
  credit.Give(64 * kMiB, id);
  ASSERT_EQ(credit.Take(80 * kMiB, &id), Answer::kOk);
  credit.Give(80 * kMiB, id);
  ASSERT_EQ(credit.Take(64 * kMiB, &id), Answer::kOk);
  credit.Give(64 * kMiB, id);
  EXPECT_EQ(credit.TakeShared(90 * kMiB), Answer::kOk);
  EXPECT_EQ(credit.spare_bytes(), 0u);
}

TEST(CreditTest, TheLastBytesOfALimitAreGranted) {
  Source source(40 * kMiB + 512);
  Credit credit;
  credit.Init(source.source(), 32 * kMiB);
  uint64_t id = 0;
  ASSERT_EQ(credit.Take(2 * kMiB, &id), Answer::kOk);
  // More than the source and the credit have each, and less than both.
  ASSERT_EQ(credit.Take(38 * kMiB, &id), Answer::kOk);
  EXPECT_EQ(id, 0u);
  ASSERT_EQ(credit.Take(512, &id), Answer::kOk);
  EXPECT_EQ(credit.Take(1, &id), Answer::kNoMemory);
  EXPECT_EQ(source.used(), 40 * kMiB + 512);
  credit.GiveShared(512);
  credit.GiveShared(38 * kMiB);
  credit.GiveShared(2 * kMiB);
  credit.Trim();
  EXPECT_EQ(source.used(), 0u);
}

TEST(CreditTest, KeepsTwoFreeChunksAtMost) {
  Source source(1024 * kMiB);
  Credit credit;
  credit.Init(source.source(), 2 * kMiB);
  uint64_t id = 0;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(credit.Take(kMiB, &id), Answer::kOk);
  for (int i = 0; i < 100; ++i) credit.Give(kMiB, 0);
  EXPECT_EQ(source.used(), 4 * kMiB);
}

TEST(CreditTest, GivesAPartOfALargeChunkBack) {
  Source source(1024 * kMiB);
  Credit credit;
  credit.Init(source.source(), 2 * kMiB);
  ASSERT_EQ(credit.TakeShared(100 * kMiB), Answer::kOk);
  credit.GiveShared(60 * kMiB);
  EXPECT_EQ(source.used(), 44 * kMiB);
  EXPECT_EQ(credit.available(), static_cast<int64_t>(4 * kMiB));
}

// A chunk can be replaced by a smaller one only if that fits beside it. So there is no large one.
TEST(CreditTest, GivesALargeAmountBackAtTheLimit) {
  Source source(300 * kMiB);
  Credit credit;
  credit.Init(source.source(), 2 * kMiB);
  ASSERT_EQ(credit.TakeShared(300 * kMiB), Answer::kOk);
  EXPECT_EQ(source.used(), 300 * kMiB);
  source.set_limit(10 * kMiB);
  credit.GiveShared(299 * kMiB);
  EXPECT_LE(source.used(), 32 * kMiB);
  source.set_limit(100 * kMiB);
  // A refusal keeps nothing of what it got in parts.
  EXPECT_EQ(credit.TakeShared(200 * kMiB), Answer::kNoMemory);
  EXPECT_LE(source.used(), 32 * kMiB);
  credit.GiveShared(kMiB);
  credit.Trim();
  EXPECT_EQ(source.used(), 0u);
}

TEST(CreditTest, GrantsNothingWhileItOwes) {
  Source source(10 * kMiB);
  Credit credit;
  credit.Init(source.source(), 2 * kMiB);
  credit.Owe(20 * kMiB);
  EXPECT_EQ(source.used(), 0u);
  uint64_t id = 0;
  EXPECT_EQ(credit.Take(512, &id), Answer::kNoMemory);
  EXPECT_EQ(credit.Take(4 * kMiB, &id), Answer::kNoMemory);
  source.set_limit(24 * kMiB);
  EXPECT_EQ(credit.Take(4 * kMiB, &id), Answer::kOk);
  EXPECT_EQ(source.used(), 24 * kMiB);
  credit.Give(4 * kMiB, id);
  credit.GiveShared(20 * kMiB);
  credit.Trim();
  EXPECT_EQ(source.used(), 0u);
}

TEST(CreditTest, RefusesSizesThatWouldOverflow) {
  Source source(1024 * kMiB);
  Credit credit;
  credit.Init(source.source(), 32 * kMiB);
  uint64_t id = 0;
  EXPECT_EQ(credit.Take(UINT64_MAX, &id), Answer::kNoMemory);
  EXPECT_EQ(credit.TakeShared(UINT64_MAX - 511), Answer::kNoMemory);
  EXPECT_EQ(source.calls(), 0u);
}

// A thread waits at the source; the others take and give meanwhile, and what they give reaches it.
TEST(CreditTest, WaitsWithoutHoldingOthersUp) {
  Source source(64 * kMiB);
  source.set_patience(std::chrono::seconds(30));
  Credit credit;
  credit.Init(source.source(), 2 * kMiB);
  uint64_t large = 0;
  uint64_t id = 0;
  ASSERT_EQ(credit.Take(30 * kMiB, &large), Answer::kOk);
  ASSERT_EQ(credit.TakeShared(20 * kMiB), Answer::kOk);
  ASSERT_EQ(credit.Take(kMiB, &id), Answer::kOk);
  EXPECT_EQ(credit.Take(60 * kMiB, &id), Answer::kNoMemory);  // at once
  std::thread waiter([&] { EXPECT_EQ(credit.TakeWaiting(64 * kMiB), Answer::kOk); });
  source.AwaitWaiters(1);
  EXPECT_EQ(credit.Take(kMiB, &id), Answer::kOk);
  EXPECT_EQ(credit.TakeShared(60 * kMiB), Answer::kNoMemory);
  credit.Give(kMiB, 0);
  credit.Give(kMiB, 0);
  credit.GiveShared(20 * kMiB);
  credit.Give(30 * kMiB, large);
  waiter.join();
  EXPECT_EQ(source.used(), 64 * kMiB);
  credit.GiveShared(64 * kMiB);
  credit.Trim();
  EXPECT_EQ(source.used(), 0u);
}

TEST(CreditTest, WaitsNoLongerThanTheSource) {
  Source source(10 * kMiB);
  Credit credit;
  credit.Init(source.source(), 2 * kMiB);
  EXPECT_EQ(credit.TakeWaiting(11 * kMiB), Answer::kNoMemory);
  EXPECT_EQ(credit.TakeWaiting(10 * kMiB), Answer::kOk);
  EXPECT_EQ(source.used(), 10 * kMiB);
}

struct Held {
  uint64_t bytes;
  uint64_t id;
};

// Whatever is done, the source has reserved all bytes handed out, and a request is refused only if
// it would not fit.
TEST(CreditTest, HoldsWhatIsHandedOutOverRandomOperations) {
  for (int seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const uint64_t limit = (16 + random() % 200) * kMiB + random() % 5 * 512;
    Source source(limit);
    Credit credit;
    credit.Init(source.source(), (1 + random() % 16) * 2 * kMiB);
    std::vector<Held> held;
    uint64_t shared = 0;  // bytes handed out of the credit
    uint64_t own = 0;     // bytes of reservations of their own, as the source rounds them
    for (int i = 0; i < 20'000; ++i) {
      if (random() % 2 == 0 && !held.empty()) {
        size_t at = random() % held.size();
        credit.Give(held[at].bytes, held[at].id);
        if (held[at].id == 0) {
          shared -= held[at].bytes;
        } else {
          own -= (held[at].bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
        }
        held[at] = held.back();
        held.pop_back();
      } else {
        uint64_t bytes = (1 + random() % (random() % 4 == 0 ? 100'000 : 2'000)) * 512;
        uint64_t id = 0;
        Answer answer = credit.Take(bytes, &id);
        if (answer == Answer::kOk) {
          held.push_back({bytes, id});
          if (id == 0) {
            shared += bytes;
          } else {
            own += (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
          }
        } else {
          EXPECT_GT(shared + own + bytes, limit);
        }
      }
      ASSERT_EQ(source.used(), own + credit.shared_bytes() + credit.spare_bytes());
      ASSERT_EQ(credit.shared_bytes(), shared + static_cast<uint64_t>(credit.available()));
    }
    for (const Held& each : held) credit.Give(each.bytes, each.id);
    credit.Trim();
    EXPECT_EQ(source.used(), 0u);
  }
}

TEST(CreditTest, ThreadsNeverGetMoreThanTheLimitTogether) {
  Source source(64 * kMiB);
  Credit credit;
  credit.Init(source.source(), 8 * kMiB);
  std::atomic<uint64_t> out{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      std::vector<Held> held;
      for (int i = 0; i < 20'000; ++i) {
        if (random() % 2 == 0 && !held.empty()) {
          out.fetch_sub(held.back().bytes);
          credit.Give(held.back().bytes, held.back().id);
          held.pop_back();
          continue;
        }
        uint64_t bytes = (1 + random() % 20'000) * 512;
        uint64_t id = 0;
        if (credit.Take(bytes, &id) != Answer::kOk) continue;
        held.push_back({bytes, id});
        EXPECT_LE(out.fetch_add(bytes) + bytes, 64 * kMiB);
      }
      for (const Held& each : held) {
        out.fetch_sub(each.bytes);
        credit.Give(each.bytes, each.id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(credit.shared_bytes(), static_cast<uint64_t>(credit.available()));
  credit.Trim();
  EXPECT_EQ(source.used(), 0u);
}

}  // namespace
}  // namespace gpumem::preload

// What the accountant keeps lives as long as the process, since a preloaded library may be called
// until the very end.
extern "C" const char* __lsan_default_suppressions() { return "leak:gpumem::preload::"; }
