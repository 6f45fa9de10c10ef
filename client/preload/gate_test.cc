// SPDX-License-Identifier: Apache-2.0
#include "client/preload/gate.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

constexpr uint64_t kMs = 60'000;

std::atomic<int> g_asked{0};

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    g_asked = 0;
    UseGate([] { g_asked.fetch_add(1); });
  }
  void TearDown() override { AbandonGate(); }
};

TEST_F(GateTest, IsNothingUntilItIsUsed) {
  AbandonGate();
  const uint64_t before = GatePasses();
  EXPECT_TRUE(CloseGate(kMs));
  const GateHold hold;  // does not block
  EXPECT_EQ(GatePasses(), before);
  OpenGate();
}

TEST_F(GateTest, CountsThreadsThatPass) {
  const uint64_t before = GatePasses();
  { const GateHold hold; }
  {
    const GateHold outer;
    const GateHold inner;
  }
  EXPECT_EQ(GatePasses(), before + 2) << "a nested hold is no pass";
}

TEST_F(GateTest, ClosingWaitsForThoseInside) {
  std::atomic<bool> inside{false}, closed{false}, leave{false};
  std::thread program([&] {
    const GateHold outer;
    inside = true;
    while (!leave) std::this_thread::yield();
    const GateHold inner;  // while it is being closed
    EXPECT_FALSE(closed);
  });
  while (!inside) std::this_thread::yield();
  std::thread closer([&] {
    EXPECT_TRUE(CloseGate(kMs));
    closed = true;
  });
  EXPECT_FALSE(closed);
  leave = true;
  program.join();
  closer.join();
  EXPECT_TRUE(closed);
  OpenGate();
}

TEST_F(GateTest, HoldsThreadsUntilItIsOpenAndAsksForThem) {
  EXPECT_TRUE(CloseGate(kMs));
  std::atomic<int> through{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const GateHold hold;
      ++through;
    });
  }
  while (g_asked < 8 && through == 0) std::this_thread::yield();
  EXPECT_EQ(through, 0);
  EXPECT_EQ(g_asked, 8);
  OpenGate();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(through, 8);
}

// A suspension that follows at once: the thread tells of its wish again.
TEST_F(GateTest, AsksAgainIfItIsClosedAgainMeanwhile) {
  UseGate([] {
    OpenGate();
    if (g_asked.fetch_add(1) > 0) return;
    EXPECT_TRUE(CloseGate(kMs));
  });
  EXPECT_TRUE(CloseGate(kMs));
  { const GateHold hold; }
  EXPECT_EQ(g_asked, 2);
}

// The thread inside may wait for one at the gate.
TEST_F(GateTest, GivesUpIfAThreadStaysInside) {
  std::atomic<bool> inside{false}, passed{false};
  std::thread stays([&] {
    const GateHold hold;
    inside = true;
    while (!passed) std::this_thread::yield();
  });
  while (!inside) std::this_thread::yield();
  EXPECT_FALSE(CloseGate(20));
  { const GateHold hold; }  // it is open
  passed = true;
  stays.join();
  EXPECT_TRUE(CloseGate(kMs));
  OpenGate();
}

TEST_F(GateTest, AThreadThatSuspendsPasses) {
  std::thread suspends([] {
    PassGate();
    PassGate();
    ASSERT_TRUE(CloseGate(kMs));
    {
      const GateHold outer;  // does not block
      const GateHold inner;
    }
    { const GateHold again; }
    ASSERT_TRUE(CloseGate(kMs)) << "it does not count as a thread inside";
    OpenGate();
  });
  suspends.join();
  EXPECT_EQ(g_asked, 0);
}

TEST_F(GateTest, CanBeLeftAloneWhileItIsClosed) {
  EXPECT_TRUE(CloseGate(kMs));
  {
    const GateHold hold(GateHold::IfClosed::kStayOutside);
    EXPECT_TRUE(hold.refused());
  }
  OpenGate();
  const GateHold outer(GateHold::IfClosed::kStayOutside);
  EXPECT_FALSE(outer.refused());
}

// Memory behind the gate: nothing uses it while it is closed.
TEST_F(GateTest, NothingIsInsideWhileItIsClosed) {
  std::atomic<int> inside{0}, wrong{0};
  std::atomic<bool> stop{false};
  uint64_t memory = 0;  // not atomic, so that a sanitizer sees two who are there
  std::atomic<uint64_t> passes{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const GateHold hold;
        ++inside;
        wrong += memory == UINT64_MAX ? 1 : 0;
        --inside;
        ++passes;
      }
    });
  }
  for (int round = 0; round < 300; ++round) {
    const uint64_t before = passes;
    EXPECT_TRUE(CloseGate(kMs));
    wrong += inside.load() == 0 ? 0 : 1;
    memory = UINT64_MAX;
    std::this_thread::yield();
    wrong += inside.load() == 0 ? 0 : 1;
    memory = static_cast<uint64_t>(round);
    OpenGate();
    while (passes == before) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace gpumem::preload
