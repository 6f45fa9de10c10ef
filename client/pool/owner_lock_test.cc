// SPDX-License-Identifier: Apache-2.0
#include "client/pool/owner_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace gpumem::internal {
namespace owner_lock_test {

// The owner and its visitors add to a plain number, which loses additions without mutual exclusion.
TEST(OwnerLock, OneAtATime) {
  constexpr uint64_t kVisits = 2000;
  OwnerLock lock;
  uint64_t number = 0, owner_added = 0;
  std::atomic<int> visiting{2};
  std::vector<std::thread> visitors;
  for (int i = 0; i < 2; ++i) {
    visitors.emplace_back([&] {
      for (uint64_t visit = 0; visit < kVisits; ++visit) {
        const OwnerLock::Visit inside({&lock});
        ++number;
      }
      --visiting;
    });
  }
  while (visiting > 0) {
    const std::lock_guard<OwnerLock> inside(lock);
    ++number;
    ++owner_added;
  }
  for (std::thread& visitor : visitors) visitor.join();
  EXPECT_EQ(number, owner_added + 2 * kVisits);
}

TEST(OwnerLock, TheOwnerMayVisit) {
  OwnerLock lock;
  int number = 0;
  {
    const OwnerLock::Visit inside({&lock});
    ++number;
  }
  const std::lock_guard<OwnerLock> inside(lock);
  EXPECT_EQ(number, 1);
}

TEST(OwnerLock, AVisitorWaitsForTheOwner) {
  OwnerLock lock;
  std::atomic<bool> visited{false};
  lock.lock();
  std::thread visitor([&] {
    const OwnerLock::Visit inside({&lock});
    visited = true;
  });
  bool early = false;
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::yield();
    early = early || visited;
  }
  lock.unlock();
  visitor.join();
  EXPECT_FALSE(early);
  EXPECT_TRUE(visited);
}

}  // namespace owner_lock_test
}  // namespace gpumem::internal
