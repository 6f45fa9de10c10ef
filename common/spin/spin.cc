// SPDX-License-Identifier: Apache-2.0
#include "common/spin/spin.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumem {
namespace {

// Of the last 8 waits, more than kMost short ones make the next one spin.
constexpr int kMost = 4;
// A wait may seem longer by this if its thread sleeps, and its peer's.
constexpr absl::Duration kWakeTime = absl::Microseconds(50);
// Shorter waits were none: their end had come already. They say nothing about the next one.
constexpr absl::Duration kAtOnce = absl::Microseconds(3);
// So many spins in succession that have paid make up for those before them.
constexpr int kPaidAgain = 8;
// What may be spun without a pause.
constexpr absl::Duration kBurst = absl::Milliseconds(100);

constexpr int kLeastProcessors = 4;
constexpr double kMostPressure = 0.20;
constexpr double kMostForcedSwitches = 100;
// How long conditions are taken to last. Spinning is soon found to do harm, and then stops for
// long: while no process spins, processors seem to be idle again.
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
constexpr absl::Duration kPause = absl::Seconds(2);

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Processors that one cgroup's cpu.max allows; a large number: any.
int AllowedBy(const std::string& cpu_max) {
  const std::vector<std::string> parts = absl::StrSplit(cpu_max, absl::ByAnyChar(" \n"));
  int64_t quota = 0, period = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &quota) ||
      !absl::SimpleAtoi(parts[1], &period) || period <= 0) {
    return CPU_SETSIZE;
  }
  return static_cast<int>(std::min<int64_t>(quota / period, CPU_SETSIZE));
}

// Processors that the cgroup of this process and those above it allow.
int AllowedByCgroups(const std::string& root) {
  int allowed = CPU_SETSIZE;
  for (absl::string_view line : absl::StrSplit(Contents(root + "/proc/self/cgroup"), '\n')) {
    if (!absl::ConsumePrefix(&line, "0::")) continue;
    for (std::string group(line);; group.resize(group.rfind('/'))) {
      allowed =
          std::min(allowed, AllowedBy(Contents(absl::StrCat(root, "/sys/fs/cgroup", group,
                                                            group == "/" ? "" : "/", "cpu.max"))));
      if (group.empty() || group.rfind('/') == std::string::npos) break;
    }
  }
  return allowed;
}

int Processors(const std::string& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  // It fails where a machine has more processors than the set.
  const int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : CPU_SETSIZE;
  return std::min(count, AllowedByCgroups(root));
}

bool OnBattery(const std::string& root) {
  bool battery = false;
  std::error_code error;
  for (const auto& supply :
       std::filesystem::directory_iterator(root + "/sys/class/power_supply", error)) {
    const std::string path = supply.path();
    const std::string type(absl::StripAsciiWhitespace(Contents(path + "/type")));
    if (type == "Mains" || type == "USB") {
      if (absl::StripAsciiWhitespace(Contents(path + "/online")) == "1") return false;
    } else if (type == "Battery") {
      // "Device": the battery of a mouse, and the like.
      battery = battery || absl::StripAsciiWhitespace(Contents(path + "/scope")) != "Device";
    }
  }
  return battery;
}

double Pressure(const std::string& root) {
  for (absl::string_view word : absl::StrSplit(Contents(root + "/proc/pressure/cpu"), ' ')) {
    double percent = 0;
    // The first is of the line "some".
    if (absl::ConsumePrefix(&word, "avg10=")) {
      return absl::SimpleAtod(word, &percent) ? percent / 100 : 0;
    }
  }
  return 0;
}

int Runnable(const std::string& root) {
  // "0.20 0.18 0.12 RUNNABLE/TASKS PID"
  const std::vector<std::string> words = absl::StrSplit(Contents(root + "/proc/loadavg"), ' ');
  const std::string text = words.size() > 3 ? words[3] : "";
  int runnable = 0;
  return absl::SimpleAtoi(text.substr(0, text.find('/')), &runnable) ? runnable : 0;
}

}  // namespace

absl::StatusOr<SpinOptions> ParseSpin(absl::string_view text) {
  SpinOptions options;
  options.always = absl::ConsumeSuffix(&text, ",always");
  uint32_t us = 0;
  if (!absl::SimpleAtoi(text, &us) || us > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no time to spin: write 0 to 1000, in microseconds"));
  }
  options.most = absl::Microseconds(us);
  return options;
}

absl::Duration SpinPolicy::Next(absl::Time now) {
  if (budget_at_) budget_ = std::min(kBurst, budget_ + (now - *budget_at_) / 2);
  budget_at_ = now;
  const bool pays = std::popcount(short_) > kMost && held_ == 0;
  if ((!may_spin_ && !options_.always) || !pays || budget_ < options_.most) {
    return absl::ZeroDuration();
  }
  return options_.most;
}

void SpinPolicy::Ended(absl::Duration waited, absl::Duration spun) {
  budget_ -= spun;
  if (waited < kAtOnce) return;
  const bool tried = spun > absl::ZeroDuration();
  const bool is_short = waited <= options_.most + (tried ? absl::ZeroDuration() : kWakeTime);
  short_ = static_cast<uint8_t>(short_ << 1 | (is_short ? 1 : 0));
  held_ = std::max(0, held_ - 1);
  if (!tried) return;
  paid_ = is_short ? paid_ + 1 : 0;
  if (paid_ >= kPaidAgain) next_hold_ = kFirstHold;
  if (!is_short && std::popcount(short_) <= kMost) {
    held_ = next_hold_;
    next_hold_ = std::min(2 * next_hold_, kLongestHold);
  }
}

bool MaySpin(const SpinConditions& conditions) {
  return conditions.processors >= kLeastProcessors && !conditions.on_battery &&
         conditions.pressure <= kMostPressure &&
         conditions.forced_switches <= kMostForcedSwitches &&
         conditions.runnable <= conditions.online;
}

SpinConditionsReader::SpinConditionsReader(std::string root)
    : root_(std::move(root)),
      processors_(Processors(root_)),
      online_(static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))),
      on_battery_(OnBattery(root_)) {}

SpinConditions SpinConditionsReader::Read(absl::Time now) {
  return {.processors = processors_,
          .on_battery = on_battery_,
          .pressure = Pressure(root_),
          .forced_switches = ForcedSwitches(now),
          .runnable = Runnable(root_),
          .online = online_};
}

double SpinConditionsReader::ForcedSwitches(absl::Time now) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const int64_t before = std::exchange(switches_, usage.ru_nivcsw);
  const double seconds = absl::ToDoubleSeconds(now - std::exchange(switches_at_, now));
  return seconds > 0 ? static_cast<double>(usage.ru_nivcsw - before) / seconds : 0;
}

Spinner::Spinner(SpinOptions options) : options_(options), policy_(options) {}

absl::Duration Spinner::spun() const {
  absl::MutexLock lock(&mutex_);
  return spun_;
}

std::optional<absl::Time> Spinner::Begin(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  // It reads files; the work that is waited for goes on meanwhile.
  if (now >= look_at_ && !options_.always) {
    const bool may = MaySpin(conditions_.Read(now));
    look_at_ = now + (may ? kLookAgain : kPause);
    policy_.set_may_spin(may);
  }
  absl::Duration spin = policy_.Next(now);
  if (spin > absl::ZeroDuration() && spins_.exchange(true, std::memory_order_acquire)) {
    spin = absl::ZeroDuration();
  }
  if (spin == absl::ZeroDuration()) return std::nullopt;
  return now + spin;
}

void Spinner::Ended(absl::Duration waited, absl::Duration spun) {
  absl::MutexLock lock(&mutex_);
  spun_ += spun;
  policy_.Ended(waited, spun);
}

SpinningWait::SpinningWait(Spinner* spinner)
    : spinner_(spinner), start_(spinner->enabled() ? NodeTime() : absl::InfinitePast()) {
  if (spinner_->enabled()) until_ = spinner_->Begin(start_);
}

SpinningWait::~SpinningWait() {
  if (!spinner_->enabled()) return;
  if (until_) Stop();
  spinner_->Ended(NodeTime() - start_, spun_);
}

void SpinningWait::Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

void SpinningWait::Stop() {
  until_.reset();
  spinner_->EndSpin();
}

}  // namespace gpumem
