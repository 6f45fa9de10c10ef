// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/suspender.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gpumem::preload {
namespace {

// How often the daemon is told that the program is at work, at most.
constexpr absl::Duration kTickInterval = absl::Seconds(1);
// How long one attempt to resume waits in the daemon's queue. Between two of them a request of an
// operator is served.
constexpr uint64_t kResumeWaitMs = 1000;
constexpr absl::Duration kResumeInterval = absl::Milliseconds(50);
// How long the program goes on, at least, after it was resumed, unless an operator suspends it. A
// request that it makes waits behind attempts of others to resume, and could have been served then.
constexpr absl::Duration kLeastTurn = absl::Milliseconds(kResumeWaitMs * 3 / 2);
// The part of a request's time in which the program has to come to rest. The rest is for copies.
constexpr double kRestingPart = 0.5;

// Starts a thread that never joins. The program's signals are for the program's threads.
void StartThread(std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::move(run)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

Suspender::Suspender(gpumem_client* client, const GpumemPreload& preload,
                     std::function<std::vector<gpumem_pool*>()> pools, PhysicalMemory* physical)
    : client_(client), preload_(preload), pools_(std::move(pools)), physical_(physical) {}

int Suspender::Start() {
  const gpumem_suspension_handlers handlers = {
      .struct_size = sizeof(handlers),
      .context = this,
      .swappable = GPUMEM_SWAPPABLE_BY_QUOTA,
      .serve =
          [](void* self, const gpumem_suspension_request* request) {
            static_cast<Suspender*>(self)->Serve(*request);
          },
  };
  gpumem_watch* watch = nullptr;  // for the life of the process
  const int status = gpumem_client_serve_suspensions(client_, &handlers, &watch);
  if (status != GPUMEM_OK) return status;
  StartThread([this] { Tick(); });
  return GPUMEM_OK;
}

void Suspender::Wanted() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!suspended_ || by_operator_) return;
      if (!unmapped_ && Resume(kResumeWaitMs)) return;
    }
    // Without a daemon an attempt ends at once.
    absl::SleepFor(kResumeInterval);
  }
}

void Suspender::Serve(const gpumem_suspension_request& request) {
  // The blocks of a program have no tags.
  if (*request.tag != '\0') return;
  preload_.own_thread();
  if (request.resume == 0 && request.cause != GPUMEM_SUSPENSION_OPERATOR) AwaitTurn();
  absl::MutexLock lock(&mutex_);
  if (request.resume != 0) {
    if (suspended_) Resume(request.left_ms);
  } else if (suspended_) {
    by_operator_ = by_operator_ || request.cause == GPUMEM_SUSPENSION_OPERATOR;
    // The driver may have refused to map what an attempt to resume has brought back.
    (void)SuspendAll();
  } else {
    Suspend(request);
  }
}

void Suspender::AwaitTurn() {
  absl::Time resumed;
  {
    absl::MutexLock lock(&mutex_);
    if (suspended_) return;
    resumed = resumed_;
  }
  absl::SleepFor(std::min(resumed + kLeastTurn - absl::Now(), kLeastTurn));
}

void Suspender::Suspend(const gpumem_suspension_request& request) {
  if (!Stop(absl::Milliseconds(request.left_ms) * kRestingPart)) {
    std::fprintf(stderr, "gpumem: not suspended: the program's GPU work has not ended\n");
    return;
  }
  suspended_ = true;
  by_operator_ = request.cause == GPUMEM_SUSPENSION_OPERATOR;
  if (SuspendAll() == GPUMEM_OK) {
    // The daemon resumes no session that has nothing suspended.
    if (!HoldsAny()) (void)Resume(0);
    return;
  }
  std::fprintf(stderr, "gpumem: not suspended: %s\n", gpumem_last_error());
  // The program goes on. If it cannot have all back at once, it waits for the rest when it comes to
  // the gate.
  by_operator_ = false;
  (void)Resume(0);
}

bool Suspender::Stop(absl::Duration most) {
  const absl::Time deadline = absl::Now() + most;
  // Work of before may go on, as a thread that waits at the gate would end it.
  if (at_rest_ != nullptr && !at_rest_->WaitForNotificationWithDeadline(deadline)) return false;
  const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
  if (preload_.close_gate(static_cast<uint64_t>(absl::ToInt64Milliseconds(left))) == 0)
    return false;
  // The driver has no such wait with a timeout.
  at_rest_ = std::make_shared<absl::Notification>();
  StartThread([preload = preload_, at_rest = at_rest_] {
    preload.own_thread();
    (void)preload.synchronize_all();  // after an error, the suspension fails by itself
    at_rest->Notify();
  });
  if (at_rest_->WaitForNotificationWithDeadline(deadline)) return true;
  preload_.open_gate();
  return false;
}

int Suspender::SuspendAll() {
  unmapped_ = false;
  const gpumem_suspend_options options = {.struct_size = sizeof(options)};
  for (gpumem_pool* const pool : pools_()) {
    int suspended = 0;
    if (gpumem_pool_is_suspended(pool, &suspended) != GPUMEM_OK || suspended != 0) continue;
    if (const int status = gpumem_pool_suspend(pool, &options); status != GPUMEM_OK) return status;
  }
  return physical_->Suspend();
}

bool Suspender::HoldsAny() {
  for (gpumem_pool* const pool : pools_()) {
    gpumem_pool_stats stats = {.struct_size = sizeof(stats)};
    if (gpumem_pool_get_stats(pool, &stats) != GPUMEM_OK || stats.reserved_bytes > 0) return true;
  }
  return physical_->IsSuspended();
}

bool Suspender::Resume(uint64_t wait_ms) {
  // All or none: two programs that hold a part each, and wait for the rest, would wait for ever.
  // The part that is likely to be the largest first, so that there is rarely anything to be moved
  // out again.
  const int status = physical_->Resume(wait_ms);
  if (status == GPUMEM_INTERNAL && !unmapped_) {
    std::fprintf(stderr, "gpumem: the driver does not map resumed memory; trying on\n");
  }
  unmapped_ = status == GPUMEM_INTERNAL;
  if (status != GPUMEM_OK) return false;
  const gpumem_resume_options options = {.struct_size = sizeof(options), .wait_ms = wait_ms};
  std::vector<std::pair<uint64_t, gpumem_pool*>> pools;
  for (gpumem_pool* const pool : pools_()) {
    int suspended = 0;
    gpumem_pool_stats stats = {.struct_size = sizeof(stats)};
    if (gpumem_pool_is_suspended(pool, &suspended) != GPUMEM_OK || suspended == 0) continue;
    (void)gpumem_pool_get_stats(pool, &stats);
    pools.emplace_back(stats.reserved_bytes, pool);
  }
  std::sort(pools.rbegin(), pools.rend());
  for (const auto& [bytes, pool] : pools) {
    if (gpumem_pool_resume(pool, &options) == GPUMEM_OK) continue;
    (void)SuspendAll();
    return false;
  }
  suspended_ = false;
  by_operator_ = false;
  resumed_ = absl::Now();
  preload_.open_gate();
  return true;
}

void Suspender::MapAgain() {
  absl::MutexLock lock(&mutex_);
  if (suspended_ && unmapped_) Resume(0);
}

void Suspender::Tick() {
  preload_.own_thread();
  uint64_t before = 0;
  while (true) {
    absl::SleepFor(kTickInterval);
    MapAgain();
    const uint64_t passes = preload_.gate_passes();
    if (passes != before) (void)gpumem_client_report_activity(client_);
    before = passes;
  }
}

}  // namespace gpumem::preload
