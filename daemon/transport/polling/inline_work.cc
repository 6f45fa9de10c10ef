// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/inline_work.h"

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/transport/meter/activity.h"
#include "daemon/transport/polling/callback_queue.h"

namespace gpumemd {
namespace {

// The other clients have made no call for so long.
constexpr absl::Duration kAlone = absl::Milliseconds(200);

ABSL_CONST_INIT absl::Mutex mutex(absl::kConstInit);
InlinePolicy policy ABSL_GUARDED_BY(mutex);

// Records the begin of the work if it is allowed.
bool Allows() {
  absl::MutexLock lock(&mutex);
  if (!policy.Allows(absl::Now())) return false;
  policy.Begins();
  return true;
}

void Run(absl::FunctionRef<void()> work, bool on_worker) {
  const absl::Time start = absl::Now();
  work();
  const absl::Time end = absl::Now();
  absl::MutexLock lock(&mutex);
  policy.Ended(end, end - start, on_worker);
}

}  // namespace

bool RunInline(absl::FunctionRef<void()> work) {
  if (!IsCallbackThread() || SinceOtherReader() < kAlone || !Allows()) return false;
  Run(work, /*on_worker=*/false);
  return true;
}

void RunOnWorker(absl::FunctionRef<void()> work) { Run(work, /*on_worker=*/true); }

}  // namespace gpumemd
