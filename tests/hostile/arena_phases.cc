// SPDX-License-Identifier: Apache-2.0
// The phases of a case: their bounds, the attack, and the recovery.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/hostile/arena.h"
#include "tests/hostile/attacks.h"

namespace gpumem::hostile {
namespace {

using testing::Child;
using testing::Hear;
using testing::Say;

// --- Bounds -------------------------------------------------------------------------------------

constexpr double kTimesQuiet = 10;
// Of 1,200 waits, one hiccup of the machine makes up the 99th percentile: that of quiet phases is
// 3 to 14 ms on two cores. So the short form, which every change has to pass, has lower limits for
// the bounds than the strict one, which is for a machine that does nothing else.
struct Limits {
  double p99_ms;
  double lock_hold;  // seconds; an interrupted thread holds the mutex for another turn
};
constexpr Limits kStrict = {.p99_ms = 10, .lock_hold = 0.005};
constexpr Limits kShortForm = {.p99_ms = 100, .lock_hold = 0.05};
constexpr double kMostMs = 250;
constexpr uint64_t kMoreResident = uint64_t{64} << 20;
// gRPC keeps some for its threads once it has needed them.
constexpr int kMoreFds = 8;
// A hiccup of the machine does not come each time; an effect of the attack on the daemon does.
constexpr int kAttempts = 3;
constexpr absl::Duration kRecovery = absl::Seconds(20);
// The daemon has to free the attackers' resources; the bystander is measured for at least so long.
constexpr absl::Duration kLeastRecovery = absl::Seconds(1);

int FromEnvironment(const char* name, int otherwise) {
  int value;
  const char* text = std::getenv(name);
  return text != nullptr && absl::SimpleAtoi(text, &value) && value > 0 ? value : otherwise;
}

const Limits& Least() {
  return FromEnvironment("GPUMEM_HOSTILE_STRICT", 0) != 0 ? kStrict : kShortForm;
}

}  // namespace

absl::Duration Arena::AttackTime() {
  return absl::Seconds(FromEnvironment("GPUMEM_HOSTILE_SECONDS", 6));
}

nlohmann::json Arena::FiguresOf(const Latencies& latencies) {
  return nlohmann::json::parse(latencies.ToJson());
}

Latencies Arena::EndPhase() {
  Say(bystander_.channel(), "phase");
  const std::string answer = Hear(bystander_.channel());
  auto latencies = Latencies::FromJson(answer);
  if (latencies.ok()) return *latencies;
  ADD_FAILURE() << "the bystander does not get on: " << answer;
  return {.failed = 1, .first_error = answer};
}

double Arena::MostP99() const { return std::max(kTimesQuiet * quiet_.p99_ms, Least().p99_ms); }
double Arena::MostMs() const { return std::max(kMostMs, 2 * quiet_.max_ms); }

bool Arena::IsServedInTime(const Latencies& latencies) const {
  return latencies.p99_ms <= MostP99() && latencies.max_ms <= MostMs();
}

Latencies Arena::AttackOnce(const std::vector<Force>& forces) {
  const absl::Duration length = AttackTime();
  const uint64_t lines = LogLines();
  const absl::Time begin = absl::Now();
  std::vector<std::pair<std::string, Child>> attackers;
  for (const Force& force : forces) {
    for (int i = 0; i < force.processes; ++i) {
      const uid_t uid = force.as_operator ? getuid() : next_uid_;
      attackers.emplace_back(
          force.attack, StartRole("attack", uid,
                                  {force.attack, absl::StrCat(absl::ToInt64Milliseconds(length))}));
      if (!force.one_user || i + 1 == force.processes) ++next_uid_;
    }
  }
  Holdings peak;
  std::atomic<bool> watching = true;
  std::thread watcher([&] {
    while (watching) {
      const Holdings now = Look();
      peak = {.resident = std::max(peak.resident, now.resident),
              .fds = std::max(peak.fds, now.fds)};
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
  ExpectVisitorsAreServed(begin, length);
  std::map<std::string, Tally> tallies;
  for (auto& [name, attacker] : attackers) {
    const std::string answer = Hear(attacker.channel());
    const auto json = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << name << ": " << answer;
    if (!json.is_object()) continue;
    for (const auto& [what, count] : json.get<Tally>()) tallies[name][what] += count;
  }
  attackers.clear();  // ends their processes, and frees all of their resources
  const absl::Duration took = absl::Now() - begin;
  Latencies attack = EndPhase();
  watching = false;
  watcher.join();
  EXPECT_EQ(attack.failed, 0u) << "during the attack: " << attack.first_error;
  figures_["attack"] = FiguresOf(attack);
  figures_["attack_seconds"] = absl::ToDoubleSeconds(took);
  figures_["attackers"] = tallies;
  figures_["peak"] = {{"resident_mib", peak.resident >> 20}, {"fds", peak.fds}};
  figures_["log_lines"] = LogLines() - lines;
  return attack;
}

Latencies Arena::Recover() {
  const absl::Time begin = absl::Now();
  absl::SleepFor(kLeastRecovery);
  Holdings now;
  const auto is_back = [&] {
    now = Look();
    return now.resident <= before_.resident + kMoreResident && now.fds <= before_.fds + kMoreFds;
  };
  while (!is_back() && absl::Now() < begin + kRecovery) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_LE(now.resident >> 20, (before_.resident + kMoreResident) >> 20) << "MiB";
  EXPECT_LE(now.fds, before_.fds + kMoreFds);
  figures_["after"] = {{"resident_mib", now.resident >> 20}, {"fds", now.fds}};
  figures_["recovery_seconds"] = absl::ToDoubleSeconds(absl::Now() - begin);
  Latencies recovery = EndPhase();
  EXPECT_EQ(recovery.failed, 0u) << "after the attack: " << recovery.first_error;
  figures_["recovery"] = FiguresOf(recovery);
  // All is over: a call that fails from now on fails for good.
  absl::SleepFor(absl::Milliseconds(200));  // a few calls
  const Latencies afterwards = EndPhase();
  EXPECT_GT(afterwards.calls, 0u);
  EXPECT_EQ(afterwards.failed, 0u) << "afterwards: " << afterwards.first_error;
  figures_["afterwards"] = FiguresOf(afterwards);
  ExpectNewcomerIsServed();
  return recovery;
}

void Arena::Survive(const Scene& scene, const std::vector<Force>& forces) {
  Start(scene);
  if (IsSkipped() || HasFatalFailure()) return;
  for (int round = FromEnvironment("GPUMEM_HOSTILE_ROUNDS", 1); round > 0; --round) {
    int attempt = 0;
    Latencies attack, recovery;
    do {
      attack = AttackOnce(forces);
      ASSERT_TRUE(DaemonLives());
      recovery = Recover();
      figures_["attempts"] = ++attempt;
    } while (!(IsServedInTime(attack) && IsServedInTime(recovery)) && !HasFailure() &&
             attempt < kAttempts);
    EXPECT_LE(attack.p99_ms, MostP99()) << "during the attack";
    EXPECT_LE(attack.max_ms, MostMs()) << "during the attack";
    EXPECT_LE(recovery.p99_ms, MostP99()) << "after the attack";
    EXPECT_LE(recovery.max_ms, MostMs()) << "after the attack";
  }
  const double hold = LongestLockHold();
  if (hold < 0) return;  // this daemon does not say
  figures_["lock_hold_ms"] = hold * 1000;
  EXPECT_LE(hold, std::max(Least().lock_hold, 2 * quiet_hold_));
}

}  // namespace gpumem::hostile
