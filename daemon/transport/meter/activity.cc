// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/activity.h"

#include <sys/resource.h>

#include <cstdint>
#include <ctime>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/node_clock.h"

namespace gpumemd {
namespace {

struct Watches {
  absl::Mutex mutex;
  std::set<ActivityWatch*> all ABSL_GUARDED_BY(mutex);
};

// Never destroyed: sockets are used before and after everything else in a program.
Watches& AllWatches() {
  static auto* const watches = new Watches;
  return *watches;
}

// Data that a thread reads before it has slept, and has done so much, has most likely come during
// its hold-up. Another thread may have had the processor meanwhile.
constexpr int64_t kHeldUpNs = 30'000;

struct ThreadUse {
  int64_t cpu_ns;
  int64_t sleeps;
};

ThreadUse UseOfThisThread() {
  timespec cpu{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return {.cpu_ns = int64_t{cpu.tv_sec} * 1'000'000'000 + cpu.tv_nsec, .sleeps = usage.ru_nvcsw};
}

// At the end of this thread's last hold-up, until it reads another socket.
thread_local std::optional<ThreadUse> after_hold_up;

std::atomic<int> last_reader = -1;
std::atomic<uint64_t> other_reader_ns = 0;
std::atomic<uint64_t> held_up = 0;

}  // namespace

void NoteReader(int socket) {
  if (last_reader.load(std::memory_order_relaxed) == socket) return;
  last_reader.store(socket, std::memory_order_relaxed);
  other_reader_ns.store(gpumem::NodeClockNs(), std::memory_order_relaxed);
  const std::optional<ThreadUse> before = std::exchange(after_hold_up, std::nullopt);
  if (!before) return;
  const ThreadUse use = UseOfThisThread();
  if (use.sleeps == before->sleeps && use.cpu_ns - before->cpu_ns < kHeldUpNs) {
    held_up.fetch_add(1, std::memory_order_relaxed);
  }
}

void NoteHoldUp() { after_hold_up = UseOfThisThread(); }

ReaderFacts GetReaderFacts() {
  const uint64_t other = other_reader_ns.load(std::memory_order_relaxed);
  return {.other_at = absl::FromUnixNanos(static_cast<int64_t>(other)),
          .held_up = held_up.load(std::memory_order_relaxed)};
}

std::atomic<uint64_t> ActivityWatch::count_ = 0;
std::atomic<bool> ActivityWatch::any_armed_ = false;

ActivityWatch::ActivityWatch(std::function<void()> wake) : wake_(std::move(wake)) {
  Watches& watches = AllWatches();
  absl::MutexLock lock(&watches.mutex);
  watches.all.insert(this);
}

ActivityWatch::~ActivityWatch() {
  Watches& watches = AllWatches();
  absl::MutexLock lock(&watches.mutex);
  watches.all.erase(this);
}

void ActivityWatch::Arm() {
  absl::MutexLock lock(&AllWatches().mutex);
  armed_ = true;
  any_armed_ = true;
}

void ActivityWatch::WakeAll() {
  Watches& watches = AllWatches();
  absl::MutexLock lock(&watches.mutex);
  any_armed_ = false;
  for (ActivityWatch* watch : watches.all) {
    if (std::exchange(watch->armed_, false)) watch->wake_();
  }
}

}  // namespace gpumemd
