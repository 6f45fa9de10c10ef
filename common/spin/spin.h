// SPDX-License-Identifier: Apache-2.0
// Spinning before sleeping: a wait that ends within some 50 µs is cheaper for the caller if its
// thread does not sleep. Waking a sleeping thread takes 5 to 50 µs.
//
// A spinning thread takes a processor from others. So it is
//   bounded    no wait spins for longer than SpinOptions::most, and a Spinner spins for at most
//              half of one processor's time over any longer time
//   adaptive   only while most of the last waits of this kind have ended in that time. If spinning
//              stops to pay it is tried again after 16 waits, then 32, at last 1024
//   modest     never while processors are scarce (SpinConditions)
//
// SpinPolicy decides, without clock and system calls. A Spinner adds both. All times are of
// NodeTime(): a step of the wall clock changes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/node_clock.h"

namespace gpumem {

struct SpinOptions {
  absl::Duration most = absl::Microseconds(50);  // of one wait; zero: never spins
  bool always = false;                           // also while processors are scarce; to measure

  bool operator==(const SpinOptions&) const = default;
};

// Parses "50", microseconds, or "50,always" (SpinOptions::always).
//   INVALID_ARGUMENT  it is neither, or more than 1000
absl::StatusOr<SpinOptions> ParseSpin(absl::string_view text);

// Decides how long a wait spins. Not thread-safe.
class SpinPolicy {
 public:
  explicit SpinPolicy(SpinOptions options) : options_(options) {}

  static constexpr int kFirstHold = 16, kLongestHold = 1024;

  // True if the machine has processors to spare. Initially false.
  void set_may_spin(bool may) { may_spin_ = may; }

  // Returns how long a wait that begins at `now` may spin. `now` never decreases.
  absl::Duration Next(absl::Time now);
  // Records a wait: its length, and the part of it that was spun.
  void Ended(absl::Duration waited, absl::Duration spun);

 private:
  const SpinOptions options_;
  bool may_spin_ = false;
  uint8_t short_ = 0;  // the last waits, one bit each, the latest lowest; 1: it was short
  int held_ = 0;       // waits for which it does not spin, since that has not paid
  int next_hold_ = kFirstHold;
  int paid_ = 0;  // spins in succession that have paid
  // What may be spun now. Grows by half of the time that goes by.
  absl::Duration budget_ = absl::ZeroDuration();
  std::optional<absl::Time> budget_at_;
};

// The facts about this process and machine that decide whether threads may spin.
struct SpinConditions {
  int processors = 0;          // that this process may use at a time
  bool on_battery = false;     // without external power
  double pressure = 0;         // share of the last 10 s in which a runnable thread has waited
  double forced_switches = 0;  // of this process, a second, since the last look
  // Of the machine: the tasks that run or wait for a processor, and the processors.
  int runnable = 0, online = 1;
};
bool MaySpin(const SpinConditions& conditions);

// Reads them. Thread-safe but for one thread at a time.
class SpinConditionsReader {
 public:
  // `root`: of /proc and /sys; another one in tests.
  explicit SpinConditionsReader(std::string root = "");
  SpinConditions Read(absl::Time now);

 private:
  double ForcedSwitches(absl::Time now);

  const std::string root_;
  const int processors_, online_;
  const bool on_battery_;
  int64_t switches_ = 0;
  absl::Time switches_at_;
};

// The waits of one kind. Thread-safe; one thread spins at a time.
class Spinner {
 public:
  explicit Spinner(SpinOptions options = {});
  Spinner(const Spinner&) = delete;
  Spinner& operator=(const Spinner&) = delete;

  bool enabled() const { return options_.most > absl::ZeroDuration(); }
  // The time that threads have spun.
  absl::Duration spun() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class SpinningWait;
  // Returns until when a wait that begins now may spin; nullopt: it must sleep.
  std::optional<absl::Time> Begin(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndSpin() { spins_.store(false, std::memory_order_release); }
  void Ended(absl::Duration waited, absl::Duration spun) ABSL_LOCKS_EXCLUDED(mutex_);

  const SpinOptions options_;
  std::atomic<bool> spins_ = false;
  mutable absl::Mutex mutex_;
  SpinPolicy policy_ ABSL_GUARDED_BY(mutex_);
  SpinConditionsReader conditions_ ABSL_GUARDED_BY(mutex_);
  absl::Time look_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration spun_ ABSL_GUARDED_BY(mutex_);
};

// One wait, from its construction until its destruction:
//
//   SpinningWait wait(&spinner);
//   if (!wait.Spin([&] { return IsReady(); })) SleepUntilReady();
class SpinningWait {
 public:
  explicit SpinningWait(Spinner* spinner);
  ~SpinningWait();
  SpinningWait(const SpinningWait&) = delete;
  SpinningWait& operator=(const SpinningWait&) = delete;

  // Calls ready() until it returns true, or for as long as the spinner allows. Returns what it
  // returned last; false if it was never called. After true it may be called again, for the rest of
  // the time.
  template <typename Ready>
  bool Spin(Ready ready) {
    if (!until_) return false;
    const absl::Time begin = NodeTime();
    absl::Time now = begin;
    bool is_ready = ready();
    while (!is_ready && (now = NodeTime()) < *until_) {
      Relax();
      is_ready = ready();
    }
    spun_ += now - begin;
    if (!is_ready) Stop();
    return is_ready;
  }

  // The time that Spin() took.
  absl::Duration spun() const { return spun_; }

 private:
  static void Relax();
  void Stop();

  Spinner* const spinner_;
  const absl::Time start_;
  std::optional<absl::Time> until_;
  absl::Duration spun_;
};

}  // namespace gpumem
