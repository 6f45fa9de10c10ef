// SPDX-License-Identifier: Apache-2.0
// The parts of the keeper; tests/system/keeper_test.cc runs the whole of it.
#include "daemon/keeper/keeper.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/keeper/notify_message.h"
#include "daemon/keeper/stored_fds.h"

namespace gpumemd::keeper {
namespace {

using gpumem::UniqueFd;
using std::chrono::milliseconds;

UniqueFd NewFile() { return UniqueFd(memfd_create("test", MFD_CLOEXEC)); }
bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(NotifyMessageTest, ReadsWhatItKnows) {
  const NotifyMessage store = ParseNotifyMessage("FDSTORE=1\nFDPOLL=0\nFDNAME=s2Bz");
  EXPECT_TRUE(store.store && !store.remove && !store.barrier && !store.ready);
  EXPECT_EQ(store.name, "s2Bz");
  EXPECT_EQ(store.state, "");
  const NotifyMessage remove = ParseNotifyMessage("FDNAME=a b=c\nFDSTOREREMOVE=1\n");
  EXPECT_TRUE(remove.remove && !remove.store);
  EXPECT_EQ(remove.name, "a b=c");
  EXPECT_EQ(ParseNotifyMessage("FDSTORE=1").name, "stored");
  EXPECT_TRUE(ParseNotifyMessage("BARRIER=1").barrier);
  EXPECT_TRUE(ParseNotifyMessage("READY=1\nSTATUS=up").ready);
}

TEST(NotifyMessageTest, PassesOnWordsAboutTheStateOnly) {
  EXPECT_EQ(ParseNotifyMessage("READY=1\nMAINPID=7\nSTATUS=up\nFDSTORE=1\nFDNAME=x\nWHAT=1\n"
                               "MONOTONIC_USEC=5\nBARRIER=1")
                .state,
            "READY=1\nSTATUS=up\nMONOTONIC_USEC=5\n");
}

TEST(NotifyMessageTest, ReadsAnythingElseAsNothing) {
  for (const std::string& text :
       {std::string(), std::string("\n\n\n"), std::string("FDSTORE=10"), std::string("FDSTORE"),
        std::string(" FDSTORE=1"), std::string("FDSTORE=1\r\n"), std::string("fdstore=1"),
        std::string("\0FDSTORE=1", 10), std::string(4096, '='), std::string(4096, '\n')}) {
    const NotifyMessage message = ParseNotifyMessage(text);
    EXPECT_FALSE(message.store || message.remove || message.barrier || message.ready) << text;
    EXPECT_EQ(message.state, "") << text;
  }
}

TEST(NotifyMessageTest, KnowsNames) {
  EXPECT_TRUE(IsFdName("s1"));
  EXPECT_TRUE(IsFdName(std::string(255, '~')));
  for (const std::string& name :
       {std::string(), std::string(256, 'a'), std::string("a:b"), std::string("a\tb"),
        std::string("a\x7f"), std::string("\xc3\xa9"), std::string("a\0", 2)}) {
    EXPECT_FALSE(IsFdName(name)) << name;
  }
}

TEST(StoredFdsTest, KeepsTheOrderAndLosesTheRemoved) {
  StoredFds stored(10);
  std::vector<int> numbers;
  for (const char* name : {"c", "a", "b", "a", "d"}) {
    UniqueFd file = NewFile();
    numbers.push_back(file.get());
    EXPECT_TRUE(stored.Add(name, std::move(file)));
  }
  EXPECT_EQ(stored.Names(), "c:a:b:a:d");
  EXPECT_EQ(stored.Numbers(), numbers);
  EXPECT_EQ(stored.Remove("a"), 2u);
  EXPECT_EQ(stored.Remove("a"), 0u);
  EXPECT_FALSE(IsOpen(numbers[1]) || IsOpen(numbers[3]));
  EXPECT_TRUE(IsOpen(numbers[0]) && IsOpen(numbers[2]) && IsOpen(numbers[4]));
  EXPECT_EQ(stored.Names(), "c:b:d");
  EXPECT_EQ(stored.size(), 3u);
}

TEST(StoredFdsTest, TakesSoManyAndNoMore) {
  StoredFds stored(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(stored.Add("x", NewFile()));
  UniqueFd one_more = NewFile();
  const int number = one_more.get();
  EXPECT_FALSE(stored.Add("x", std::move(one_more)));
  EXPECT_FALSE(IsOpen(number));
  EXPECT_EQ(stored.Remove("x"), 3u);
  EXPECT_TRUE(stored.Add("y", NewFile()));
}

TEST(StoredFdsTest, NamesFitIntoTheEnvironment) {
  StoredFds stored(100'000);
  const std::string name(255, 'n');
  size_t count = 0;
  while (stored.Add(name, NewFile())) ++count;
  EXPECT_EQ(count, StoredFds::kMaxNamesBytes / 256);
  EXPECT_LE(std::string("LISTEN_FDNAMES=").size() + stored.Names().size() + 1, 128u * 1024);
  // Removal makes room, to the byte.
  EXPECT_EQ(stored.Remove(name), count);
  EXPECT_TRUE(stored.empty());
  size_t again = 0;
  while (stored.Add(name, NewFile())) ++again;
  EXPECT_EQ(again, count);
}

TEST(BackoffTest, WaitsLongerAfterEachQuickDeath) {
  Backoff backoff(milliseconds(1000));
  std::vector<int> pauses;
  for (int i = 0; i < 9; ++i) {
    pauses.push_back(static_cast<int>(backoff.After(milliseconds(999), false, {}).count()));
  }
  EXPECT_THAT(pauses, ::testing::ElementsAre(0, 100, 200, 400, 800, 1600, 3200, 5000, 5000));
  EXPECT_EQ(backoff.After(milliseconds(1000), false, {}).count(), 0);
  EXPECT_EQ(backoff.After(milliseconds(10), false, {}).count(), 100);
}

TEST(BackoffTest, OneThatWasReadyIsStartedAgainAtOnceUnlessItDiesManyTimesAMinute) {
  Backoff backoff(milliseconds(1000));
  Backoff::Clock::time_point now;
  const auto dies = [&](bool was_ready) { return backoff.After(milliseconds(1), was_ready, now); };
  for (size_t i = 0; i < Backoff::kDeathsAMinute; ++i) {
    now += milliseconds(100);
    EXPECT_EQ(dies(true).count(), 0) << i;
  }
  EXPECT_EQ(dies(true).count(), 100);
  EXPECT_EQ(dies(true).count(), 200);
  EXPECT_EQ(dies(false).count(), 400);
  now += std::chrono::minutes(1);
  EXPECT_EQ(dies(true).count(), 0);
  EXPECT_EQ(dies(false).count(), 100);
  EXPECT_EQ(dies(false).count(), 200);
  // One that was ready ends the row.
  EXPECT_EQ(dies(true).count(), 0);
  EXPECT_EQ(dies(false).count(), 100);
}

}  // namespace
}  // namespace gpumemd::keeper
