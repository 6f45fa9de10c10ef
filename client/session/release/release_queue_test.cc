// SPDX-License-Identifier: Apache-2.0
#include "client/session/release/release_queue.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace release_queue_test {

constexpr uint64_t kNever = ReleaseTimer::kNever;
constexpr ReleaseTimer::Limits kLimits = {.linger_ns = 10,
                                          .most_leases = 4,
                                          .most_bytes = 100,
                                          .awake_ns = 35,
                                          .first_retry_ns = 50,
                                          .longest_retry_ns = 150};

TEST(ReleaseTimerTest, AReleaseIsDueAfterTheLinger) {
  ReleaseTimer timer(kLimits);
  EXPECT_EQ(timer.Sleep(1000), kNever);
  EXPECT_TRUE(timer.Add(1, 1, 1000));
  EXPECT_EQ(timer.due(), 1010u);
  timer.Wake();
  EXPECT_EQ(timer.Sleep(1001), 1010u);
  EXPECT_FALSE(timer.Add(1, 1, 1005));  // it wakes in time
  EXPECT_EQ(timer.due(), 1010u);
  EXPECT_EQ(timer.TakeAll(), 2u);
  EXPECT_EQ(timer.due(), kNever);
  EXPECT_TRUE(timer.unsent());
  timer.Done(2, /*sent=*/true, 1012);
  EXPECT_FALSE(timer.unsent());
}

TEST(ReleaseTimerTest, ManyLeasesAndManyBytesAreDueAtOnce) {
  ReleaseTimer timer(kLimits);
  timer.Add(3, 1, 1000);
  EXPECT_EQ(timer.due(), 1010u);
  timer.Add(1, 1, 1001);
  EXPECT_EQ(timer.due(), 1001u);
  timer.TakeAll();
  timer.Add(1, 99, 1002);
  EXPECT_EQ(timer.due(), 1012u);
  timer.Add(1, 1, 1003);
  EXPECT_EQ(timer.due(), 1003u);
}

TEST(ReleaseTimerTest, ReleasesInAHurryAreDueAtOnce) {
  ReleaseTimer timer(kLimits);
  timer.Add(1, 1, 1000);
  timer.Sleep(1000);
  EXPECT_TRUE(timer.Hurry(1020, 1001));
  EXPECT_EQ(timer.due(), 1001u);
  timer.TakeAll();
  timer.Add(1, 1, 1019);
  EXPECT_EQ(timer.due(), 1019u);
  timer.TakeAll();
  timer.Add(1, 1, 1020);
  EXPECT_EQ(timer.due(), 1030u);
}

TEST(ReleaseTimerTest, AFlushThatFailedIsRepeatedAfterAPause) {
  ReleaseTimer timer(kLimits);
  timer.Add(1, 1, 1000);
  const uint64_t taken = timer.TakeAll();
  EXPECT_EQ(timer.Sleep(1035), kNever);
  EXPECT_TRUE(timer.Done(taken, /*sent=*/false, 1040));
  EXPECT_EQ(timer.due(), 1090u);
  timer.Add(4, 100, 1050);  // no sooner: the daemon does not answer
  EXPECT_EQ(timer.due(), 1090u);
  timer.Done(timer.TakeAll(), /*sent=*/true, 1091);
  EXPECT_FALSE(timer.unsent());
  timer.Add(1, 1, 1092);
  EXPECT_EQ(timer.due(), 1102u);
  for (const uint64_t pause : {50, 100, 150, 150}) {
    timer.Done(timer.TakeAll(), /*sent=*/false, 2000);
    EXPECT_EQ(timer.due(), 2000 + pause);
  }
}

TEST(ReleaseTimerTest, TheThreadStaysAwakeForAWhileAfterARelease) {
  ReleaseTimer timer(kLimits);
  timer.Sleep(1000);
  timer.Add(1, 1, 1000);
  timer.Wake();
  timer.Done(timer.TakeAll(), /*sent=*/true, 1001);
  EXPECT_EQ(timer.Sleep(1001), 1011u);
  EXPECT_FALSE(timer.Add(1, 1, 1005));  // due at 1015, when it has looked
  timer.Wake();
  EXPECT_EQ(timer.Sleep(1011), 1015u);
  timer.Wake();
  timer.Done(timer.TakeAll(), /*sent=*/true, 1016);
  EXPECT_EQ(timer.Sleep(1031), 1040u);
  EXPECT_EQ(timer.Sleep(1040), kNever);
}

TEST(ReleaseTimerTest, AThreadThatOversleptIsWokenOnce) {
  ReleaseTimer timer(kLimits);
  timer.Add(1, 1, 1000);
  EXPECT_EQ(timer.Sleep(1000), 1010u);
  EXPECT_FALSE(timer.Add(1, 1, 1020));
  EXPECT_TRUE(timer.Add(1, 1, 1021));
  EXPECT_FALSE(timer.Add(1, 1, 1022));
}

// Random operations by programs and a thread that wakes when it should, against a model that keeps
// every release.
TEST(ReleaseTimerTest, KeepsItsPromisesForRandomOperations) {
  struct Release {
    size_t leases;
    uint64_t bytes, at;
    bool hurried;
  };
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::minstd_rand random(seed + 1);
    const auto below = [&](uint64_t bound) { return random() % bound; };
    ReleaseTimer timer(kLimits);
    unsigned failures = 0;  // one after another
    uint64_t now = 1000, hurried_until = 0, not_before = 0, last = 0;
    bool retry = false;
    std::vector<Release> queued;  // in no flush yet
    uint64_t unsent = 0;          // in flushes that failed or are in progress, and queued
    bool flushing = false;        // a flush is in progress, and of these
    uint64_t taken = 0, in_flush = 0;
    // The thread: until when it sleeps; 0: it is awake.
    uint64_t sleeps_until = 0;
    const auto signal = [&](bool must_wake) {
      if (must_wake) {
        ASSERT_GT(sleeps_until, 0u);  // a thread that is awake is not signalled
        sleeps_until = now;
      }
    };
    const auto take = [&] {
      flushing = true;
      taken = timer.TakeAll();
      in_flush = unsent;
      queued.clear();
      retry = false;
    };
    const auto due = [&] {
      uint64_t at = retry ? not_before : kNever;
      uint64_t bytes = 0, leases = 0;
      for (const Release& release : queued) {
        bytes += release.bytes;
        leases += release.leases;
        const bool at_once = release.hurried || bytes >= 100 || leases >= 4;
        at = std::min(at, std::max(at_once ? release.at : release.at + 10, not_before));
      }
      return at;
    };
    for (int step = 0; step < 2000; ++step) {
      switch (below(8)) {
        case 0:
        case 1: {
          const Release release = {.leases = 1 + below(2),
                                   .bytes = below(below(4) == 0 ? 120 : 10),
                                   .at = now,
                                   .hurried = now < hurried_until};
          signal(timer.Add(release.leases, release.bytes, now));
          queued.push_back(release);
          ++unsent;
          last = now;
          break;
        }
        case 2:
          if (below(8) != 0) break;
          hurried_until = std::max(hurried_until, now + below(30));
          signal(timer.Hurry(hurried_until, now));
          for (Release& release : queued) {
            // Due now, not when it came.
            if (!release.hurried) release = {release.leases, release.bytes, now, true};
          }
          break;
        case 3:  // a call flushes
          if (!flushing && unsent > 0) take();
          break;
        case 4:
          if (!flushing) break;
          if (below(4) > 0) {
            signal(timer.Done(taken, /*sent=*/true, now));
            unsent -= in_flush;
            not_before = 0;
            failures = 0;
          } else {
            // 50, 100, 150, 150 …
            not_before = now + std::min<uint64_t>(uint64_t{50} << std::min(failures++, 2u), 150);
            retry = true;
            signal(timer.Done(taken, /*sent=*/false, now));
          }
          flushing = false;
          break;
        default:
          now += below(8);
      }
      ASSERT_EQ(timer.unsent(), unsent > 0);
      // The thread runs, unless a flush keeps it.
      if (sleeps_until <= now) {
        if (sleeps_until > 0) {
          timer.Wake();
          sleeps_until = 0;
        }
        if (timer.due() <= now && !flushing) take();
        if (timer.due() > now) {
          sleeps_until = timer.Sleep(now);
          ASSERT_GT(sleeps_until, now);
          if (queued.empty() && !retry && now >= last + 35) {
            ASSERT_EQ(sleeps_until, kNever);
          }
        }
      }
      // Nothing is due before the model says so, nor later, and the thread sleeps no longer.
      if (!queued.empty() || retry) {
        ASSERT_LE(timer.due(), due()) << "seed " << seed << " step " << step;
        ASSERT_LE(sleeps_until, std::max(timer.due(), now));
      } else {
        ASSERT_EQ(timer.due(), kNever);
      }
    }
  }
}

TEST(ReleaseQueueTest, AFlushWaitsForTheOneInProgress) {
  ReleaseQueue queue;
  EXPECT_FALSE(queue.TakeAll(absl::InfiniteFuture()).has_value());
  queue.Add(1, 1);
  EXPECT_TRUE(queue.unsent());
  EXPECT_TRUE(ReleaseQueue::AnyUnsent());
  std::optional<ReleaseQueue::Flush> first = queue.TakeAll(absl::InfiniteFuture());
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(queue.TakeAll(absl::Now()).has_value());
  std::atomic<bool> ended = false;
  std::thread call([&] {
    EXPECT_FALSE(queue.TakeAll(absl::InfiniteFuture()).has_value());  // nothing is left to flush
    EXPECT_TRUE(ended);
  });
  ended = true;
  first->Done(/*sent=*/true);
  call.join();
  EXPECT_FALSE(queue.unsent());
  EXPECT_FALSE(ReleaseQueue::AnyUnsent());
}

TEST(ReleaseQueueTest, AThreadDoesNotWaitForItsOwnFlush) {
  ReleaseQueue queue;
  queue.Add(1, 1);
  std::optional<ReleaseQueue::Flush> flush = queue.TakeAll(absl::InfiniteFuture());
  ASSERT_TRUE(flush.has_value());
  EXPECT_FALSE(queue.TakeAll(absl::InfiniteFuture()).has_value());  // it would never return
  flush->Done(/*sent=*/true);
  EXPECT_FALSE(queue.unsent());
}

TEST(ReleaseQueueTest, AFlushThatIsDroppedHasSentNothing) {
  ReleaseQueue queue;
  queue.Add(1, 1);
  queue.TakeAll(absl::InfiniteFuture());
  EXPECT_TRUE(queue.unsent());
  EXPECT_TRUE(queue.TakeAll(absl::InfiniteFuture()).has_value());
}

TEST(ReleaseQueueTest, AQueueThatEndsLeavesNothingUnsentInTheProcess) {
  {
    ReleaseQueue queue;
    queue.Add(1, 1);
  }
  EXPECT_FALSE(ReleaseQueue::AnyUnsent());
}

// Programs release, calls flush, and a thread flushes what no call does. After a flush has
// returned, all that was released before it has been taken and answered.
TEST(ReleaseQueueTest, EveryReleaseIsFlushed) {
  ReleaseQueue queue({.linger_ns = 20'000,
                      .most_leases = 16,
                      .most_bytes = 1000,
                      .awake_ns = 50'000,
                      .first_retry_ns = 100'000,
                      .longest_retry_ns = 100'000});
  std::atomic<uint64_t> added = 0, answered = 0;
  const auto flush = [&](bool sent) {
    std::optional<ReleaseQueue::Flush> taken = queue.TakeAll(absl::InfiniteFuture());
    if (!taken.has_value()) return;
    const uint64_t all = added;
    if (sent) answered = std::max<uint64_t>(answered, all);
    taken->Done(sent);
  };
  std::thread thread([&] {
    for (bool sent = true; queue.AwaitDue(); sent = !sent) flush(sent);
  });
  std::vector<std::thread> programs;
  for (unsigned i = 0; i < 4; ++i) {
    programs.emplace_back([&, i] {
      std::minstd_rand random(i + 1);
      for (int step = 0; step < 5000; ++step) {
        const uint64_t before = ++added;
        queue.Add(1, random() % 100);
        if (random() % 8 != 0) continue;
        flush(true);
        EXPECT_GE(answered, before);
      }
    });
  }
  for (std::thread& program : programs) program.join();
  while (queue.unsent()) std::this_thread::yield();  // the thread sends the rest
  EXPECT_EQ(answered, added);
  queue.Stop();
  thread.join();
}

}  // namespace release_queue_test
}  // namespace gpumem::internal
