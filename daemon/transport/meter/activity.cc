// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/activity.h"

#include <ctime>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

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

std::atomic<int> last_reader = -1;
std::atomic<int64_t> other_reader_ns = 0;

int64_t CoarseNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return absl::ToInt64Nanoseconds(absl::DurationFromTimespec(now));
}

}  // namespace

void NoteReader(int socket) {
  if (last_reader.load(std::memory_order_relaxed) == socket) return;
  last_reader.store(socket, std::memory_order_relaxed);
  other_reader_ns.store(CoarseNs(), std::memory_order_relaxed);
}

absl::Duration SinceOtherReader() {
  return absl::Nanoseconds(CoarseNs() - other_reader_ns.load(std::memory_order_relaxed));
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
