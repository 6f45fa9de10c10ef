// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/suspender.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gpumem::preload {
namespace {

// How often the daemon is told that the program is at work.
constexpr absl::Duration kActivityInterval = absl::Seconds(1);
// How long one attempt to resume waits in the daemon's queue. Between two of them a request of an
// operator is served.
constexpr uint64_t kResumeWaitMs = 1000;
constexpr absl::Duration kResumeInterval = absl::Milliseconds(50);

}  // namespace

Suspender::Suspender(gpumem_client* client, const GpumemPreload& preload,
                     std::function<std::vector<gpumem_pool*>()> pools)
    : client_(client), preload_(preload), pools_(std::move(pools)) {}

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
  // A thread of the program's must get the program's signals, not this one.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { ReportActivity(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return GPUMEM_OK;
}

void Suspender::Wanted() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!suspended_ || by_operator_ || Resume(kResumeWaitMs)) return;
    }
    // Without a daemon an attempt ends at once.
    absl::SleepFor(kResumeInterval);
  }
}

void Suspender::Serve(const gpumem_suspension_request& request) {
  // The blocks of a program have no tags.
  if (*request.tag != '\0') return;
  absl::MutexLock lock(&mutex_);
  if (request.resume != 0) {
    if (suspended_) Resume(request.left_ms);
  } else if (suspended_) {
    by_operator_ = by_operator_ || request.cause == GPUMEM_SUSPENSION_OPERATOR;
  } else {
    Suspend(request);
  }
}

void Suspender::Suspend(const gpumem_suspension_request& request) {
  preload_.close_gate();
  gpumem_suspend_options options = {.struct_size = sizeof(options)};
  suspended_ = true;
  by_operator_ = request.cause == GPUMEM_SUSPENSION_OPERATOR;
  for (gpumem_pool* const pool : pools_()) {
    if (gpumem_pool_suspend(pool, &options) == GPUMEM_OK) continue;
    std::fprintf(stderr, "gpumem: not suspended: %s\n", gpumem_last_error());
    // The program goes on. If it cannot have all back at once, also of this pool, it waits for the
    // rest when it comes to the gate.
    by_operator_ = false;
    (void)Resume(0);
    return;
  }
}

bool Suspender::Resume(uint64_t wait_ms) {
  const gpumem_resume_options options = {.struct_size = sizeof(options), .wait_ms = wait_ms};
  std::vector<std::pair<uint64_t, gpumem_pool*>> pools;
  for (gpumem_pool* const pool : pools_()) {
    int suspended = 0;
    gpumem_pool_stats stats = {.struct_size = sizeof(stats)};
    if (gpumem_pool_is_suspended(pool, &suspended) != GPUMEM_OK || suspended == 0) continue;
    (void)gpumem_pool_get_stats(pool, &stats);
    pools.emplace_back(stats.reserved_bytes, pool);
  }
  // All or none: two programs that hold a part each, and wait for the rest, would wait for ever.
  // The largest first, so that there is rarely anything to be moved out again.
  std::sort(pools.rbegin(), pools.rend());
  for (size_t done = 0; done < pools.size(); ++done) {
    if (gpumem_pool_resume(pools[done].second, &options) == GPUMEM_OK) continue;
    const gpumem_suspend_options again = {.struct_size = sizeof(again)};
    while (done-- > 0) (void)gpumem_pool_suspend(pools[done].second, &again);
    return false;
  }
  suspended_ = false;
  by_operator_ = false;
  preload_.open_gate();
  return true;
}

void Suspender::ReportActivity() {
  uint64_t before = 0;
  while (true) {
    absl::SleepFor(kActivityInterval);
    const uint64_t passes = preload_.gate_passes();
    if (passes != before) (void)gpumem_client_report_activity(client_);
    before = passes;
  }
}

}  // namespace gpumem::preload
