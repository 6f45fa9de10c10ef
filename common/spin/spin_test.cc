// SPDX-License-Identifier: Apache-2.0
#include "common/spin/spin.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace {

constexpr absl::Duration kUs = absl::Microseconds(1);

TEST(SpinPolicyTest, SpinsOnceMostWaitsAreShort) {
  SpinPolicy policy({.most = 50 * kUs});
  policy.set_may_spin(true);
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(policy.Next(now), absl::ZeroDuration()) << i;
    policy.Ended(95 * kUs, absl::ZeroDuration());  // 45 of them to wake
    now += absl::Milliseconds(1);
  }
  EXPECT_EQ(policy.Next(now), 50 * kUs);
}

TEST(SpinPolicyTest, StopsAfterWaitsThatItDidNotShorten) {
  SpinPolicy policy({.most = 50 * kUs});
  policy.set_may_spin(true);
  absl::Time now = absl::UnixEpoch();
  policy.Next(now);
  for (int i = 0; i < 8; ++i) policy.Ended(10 * kUs, absl::ZeroDuration());
  now += absl::Seconds(1);
  int spins = 0;
  for (; spins < 100 && policy.Next(now) > absl::ZeroDuration(); ++spins) {
    policy.Ended(absl::Milliseconds(1), 50 * kUs);
    now += absl::Milliseconds(1);
  }
  EXPECT_EQ(spins, 4);
}

TEST(SpinPolicyTest, NeverSpinsWhereItMayNot) {
  SpinPolicy scarce({.most = 50 * kUs});
  SpinPolicy off({.most = absl::ZeroDuration()});
  off.set_may_spin(true);
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 100; ++i) {
    now += absl::Milliseconds(1);
    EXPECT_EQ(scarce.Next(now), absl::ZeroDuration());
    EXPECT_EQ(off.Next(now), absl::ZeroDuration());
    scarce.Ended(10 * kUs, absl::ZeroDuration());
    off.Ended(10 * kUs, absl::ZeroDuration());
  }
}

// A peer that keeps each wait as long as possible, and short.
TEST(SpinPolicyTest, SpinsForAtMostHalfOfTheTime) {
  SpinPolicy policy({.most = 50 * kUs});
  policy.set_may_spin(true);
  const absl::Time start = absl::UnixEpoch();
  absl::Time now = start;
  absl::Duration spun;
  while (now < start + absl::Seconds(5)) {
    const absl::Duration spin = policy.Next(now);
    policy.Ended(49 * kUs, std::min(spin, 49 * kUs));
    spun += std::min(spin, 49 * kUs);
    now += 50 * kUs;
  }
  EXPECT_LE(spun, absl::Seconds(2.5) + absl::Milliseconds(101));
  EXPECT_GE(spun, absl::Seconds(2.4));
}

TEST(SpinPolicyTest, TriesAgainLaterAndLater) {
  SpinPolicy policy({.most = 50 * kUs});
  policy.set_may_spin(true);
  absl::Time now = absl::UnixEpoch();
  int spins = 0;
  constexpr int kWaits = 100'000;
  // They seem short, as long as the thread sleeps.
  for (int i = 0; i < kWaits; ++i) {
    now += absl::Milliseconds(1);
    const absl::Duration spun = policy.Next(now);
    if (spun > absl::ZeroDuration()) ++spins;
    policy.Ended(90 * kUs, spun);
  }
  EXPECT_GT(spins, kWaits / 1024);
  EXPECT_LT(spins, kWaits / 100);
  // Once it pays again, it soon always does.
  int futile = 0;
  for (int i = 0; i < kWaits; ++i) {
    now += absl::Milliseconds(1);
    const absl::Duration spun = policy.Next(now);
    if (spun == absl::ZeroDuration()) ++futile;
    policy.Ended(30 * kUs, std::min(spun, 30 * kUs));
  }
  EXPECT_LE(futile, 1024);
}

// A call brings two events: it, and at once the end of its answer.
TEST(SpinPolicyTest, IgnoresWaitsThatWereNone) {
  SpinPolicy policy({.most = 50 * kUs});
  policy.set_may_spin(true);
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 1000; ++i) {
    now += absl::Milliseconds(1);
    EXPECT_EQ(policy.Next(now), absl::ZeroDuration());
    policy.Ended(absl::Milliseconds(1), absl::ZeroDuration());
    for (int j = 0; j < 3; ++j) policy.Ended(kUs, absl::ZeroDuration());
  }
}

// Random waits against a plain model of the rule.
TEST(SpinPolicyTest, AgreesWithItsModel) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const absl::Duration most = (random() % 100 + 1) * kUs;
    SpinPolicy policy({.most = most});
    std::deque<bool> last;
    bool may = false;
    absl::Duration budget;
    int held = 0, next_hold = 16, paid = 0;
    absl::Time now = absl::UnixEpoch();
    policy.Next(now);
    for (int step = 0; step < 2000; ++step) {
      const absl::Duration passed = (random() % 400) * kUs;
      now += passed;
      budget = std::min(absl::Milliseconds(100), budget + passed / 2);
      if (random() % 20 == 0) policy.set_may_spin(may = random() % 4 > 0);
      const auto shorts = [&] { return std::count(last.begin(), last.end(), true); };
      const bool spins = may && shorts() > 4 && budget >= most && held == 0;
      ASSERT_EQ(policy.Next(now), spins ? most : absl::ZeroDuration());
      const absl::Duration wait = (1 + random() % 120) * kUs;
      const absl::Duration spun = spins ? std::min(most, wait) : absl::ZeroDuration();
      policy.Ended(wait, spun);
      budget -= spun;
      if (wait < 3 * kUs) continue;
      const bool is_short = spins ? wait <= most : wait <= most + 50 * kUs;
      last.push_front(is_short);
      if (last.size() > 8) last.pop_back();
      if (held > 0) --held;
      if (!spins) continue;
      paid = is_short ? paid + 1 : 0;
      if (paid >= 8) next_hold = 16;
      if (!is_short && shorts() <= 4) {
        held = next_hold;
        next_hold = std::min(1024, 2 * next_hold);
      }
    }
  }
}

TEST(SpinPolicyTest, AlwaysIsAlsoWhereItMayNot) {
  SpinPolicy policy({.most = 50 * kUs, .always = true});
  policy.Next(absl::UnixEpoch());
  for (int i = 0; i < 8; ++i) policy.Ended(10 * kUs, absl::ZeroDuration());
  EXPECT_EQ(policy.Next(absl::UnixEpoch() + absl::Seconds(1)), 50 * kUs);
}

TEST(ParseSpinTest, ReadsMicroseconds) {
  EXPECT_EQ(ParseSpin("0")->most, absl::ZeroDuration());
  EXPECT_EQ(ParseSpin("70")->most, 70 * kUs);
  EXPECT_FALSE(ParseSpin("70")->always);
  EXPECT_TRUE(ParseSpin("1000,always")->always);
  for (const char* wrong : {"", "1001", "-1", "ten", "5,never", ",always"}) {
    EXPECT_EQ(ParseSpin(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(SpinConditionsTest, EachScarcityForbids) {
  const SpinConditions plenty = {.processors = 4};
  EXPECT_TRUE(MaySpin(plenty));
  SpinConditions some = plenty;
  some.processors = 3;
  EXPECT_FALSE(MaySpin(some));
  some = plenty;
  some.on_battery = true;
  EXPECT_FALSE(MaySpin(some));
  some = plenty;
  some.pressure = 0.5;
  EXPECT_FALSE(MaySpin(some));
  some = plenty;
  some.forced_switches = 1000;
  EXPECT_FALSE(MaySpin(some));
  some = plenty;
  some.online = 16;
  some.runnable = 16;
  EXPECT_TRUE(MaySpin(some));
  some.runnable = 17;
  EXPECT_FALSE(MaySpin(some));
}

class SpinMachineTest : public ::testing::Test {
 protected:
  SpinMachineTest() { std::filesystem::remove_all(root_); }
  ~SpinMachineTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  SpinConditions Read() { return SpinConditionsReader(root_).Read(absl::Now()); }

  const std::string root_ = absl::StrCat(
      ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(SpinMachineTest, WithoutFilesNothingIsScarce) {
  const SpinConditions read = Read();
  EXPECT_GT(read.processors, 0);
  EXPECT_FALSE(read.on_battery);
  EXPECT_EQ(read.pressure, 0);
}

TEST_F(SpinMachineTest, TakesTheSmallestQuotaAbove) {
  Write("/proc/self/cgroup", "0::/pods/mine\n");
  Write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_GT(Read().processors, 1);
  Write("/sys/fs/cgroup/pods/cpu.max", "150000 100000\n");
  Write("/sys/fs/cgroup/pods/mine/cpu.max", "max 100000\n");
  EXPECT_EQ(Read().processors, 1);
}

TEST_F(SpinMachineTest, ReadsTheQuotaOfAContainersRoot) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(Read().processors, 1);
}

TEST_F(SpinMachineTest, KnowsABatteryWithoutMains) {
  Write("/sys/class/power_supply/BAT0/type", "Battery\n");
  EXPECT_TRUE(Read().on_battery);
  Write("/sys/class/power_supply/AC/type", "Mains\n");
  Write("/sys/class/power_supply/AC/online", "0\n");
  EXPECT_TRUE(Read().on_battery);
  Write("/sys/class/power_supply/AC/online", "1\n");
  EXPECT_FALSE(Read().on_battery);
}

TEST_F(SpinMachineTest, IgnoresTheBatteryOfAMouse) {
  Write("/sys/class/power_supply/hid-1/type", "Battery\n");
  Write("/sys/class/power_supply/hid-1/scope", "Device\n");
  EXPECT_FALSE(Read().on_battery);
}

TEST_F(SpinMachineTest, ReadsThePressure) {
  Write("/proc/pressure/cpu",
        "some avg10=33.41 avg60=9.92 avg300=9.54 total=14302286839\n"
        "full avg10=1.00 avg60=0.00 avg300=0.00 total=0\n");
  EXPECT_NEAR(Read().pressure, 0.3341, 1e-9);
}

TEST_F(SpinMachineTest, CountsRunnableTasks) {
  Write("/proc/loadavg", "0.20 0.18 0.12 17/8021 11206\n");
  EXPECT_EQ(Read().runnable, 17);
  EXPECT_GT(Read().online, 0);
  Write("/proc/loadavg", "nonsense");
  EXPECT_EQ(Read().runnable, 0);
}

TEST(SpinnerTest, AnOffSpinnerNeverAsks) {
  Spinner spinner({.most = absl::ZeroDuration()});
  SpinningWait wait(&spinner);
  EXPECT_FALSE(wait.Spin([] {
    ADD_FAILURE();
    return true;
  }));
}

// Returns after waits that let the next one spin.
void Warm(Spinner& spinner) {
  const absl::Time until = absl::Now() + absl::Seconds(60);
  for (bool asked = false; !asked && absl::Now() < until;) {
    SpinningWait wait(&spinner);
    wait.Spin([&] { return asked = true; });
    const absl::Time end = absl::Now() + 10 * kUs;
    while (!asked && absl::Now() < end) {
    }
  }
}

TEST(SpinnerTest, SpinsUntilReady) {
  Spinner spinner({.most = absl::Milliseconds(1), .always = true});
  Warm(spinner);
  int asked = 0;
  // A loaded machine may end it earlier.
  for (int i = 0; i < 100 && asked != 3; ++i) {
    asked = 0;
    SpinningWait wait(&spinner);
    wait.Spin([&] { return ++asked == 3; });
  }
  EXPECT_EQ(asked, 3);
}

TEST(SpinnerTest, SpinsForABoundedTime) {
  Spinner spinner({.most = absl::Milliseconds(1), .always = true});
  Warm(spinner);
  bool asked = false;
  {
    SpinningWait wait(&spinner);
    EXPECT_FALSE(wait.Spin([&] {
      asked = true;
      return false;
    }));
  }
  if (asked) {
    EXPECT_GE(spinner.spun(), absl::Milliseconds(0.9));
  }
}

TEST(SpinnerTest, OneThreadSpinsAtATime) {
  Spinner spinner({.most = absl::Milliseconds(1), .always = true});
  Warm(spinner);
  SpinningWait first(&spinner);
  SpinningWait second(&spinner);
  const auto ready = [] { return true; };
  EXPECT_FALSE(first.Spin(ready) && second.Spin(ready));
}

}  // namespace
}  // namespace gpumem
