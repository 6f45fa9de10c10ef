// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/inline_work.h"

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/node_clock.h"
#include "daemon/transport/meter/activity.h"
#include "daemon/transport/polling/callback_queue.h"

namespace gpumemd {
namespace {

// A client that has made no call for so long is not expected to make one while a work lasts.
constexpr absl::Duration kIdle = absl::Milliseconds(200);

ABSL_CONST_INIT absl::Mutex mutex(absl::kConstInit);
InlinePolicy policy ABSL_GUARDED_BY(mutex);

// Records the begin of the work if it is allowed.
bool Allows(absl::Time now, uint64_t held_up) {
  absl::MutexLock lock(&mutex);
  if (!policy.Allows(now, held_up)) return false;
  policy.Begins();
  return true;
}

void Ended(absl::Time start, bool on_worker) {
  const absl::Duration took = gpumem::NodeTime() - start;
  absl::MutexLock lock(&mutex);
  policy.Ended(took, on_worker);
}

}  // namespace

bool RunInline(absl::FunctionRef<void()> work) {
  // Several serve many calls at a time. Then workers do such work best, beside them.
  if (!IsOnlyCallbackThread()) return false;
  const absl::Time now = gpumem::NodeTime();
  const ReaderFacts readers = GetReaderFacts();
  if (!Allows(now, readers.held_up)) return false;
  {
    const LongWork long_work(/*watched=*/now - readers.other_at < kIdle);
    work();
  }
  Ended(now, /*on_worker=*/false);
  return true;
}

void RunOnWorker(absl::FunctionRef<void()> work) {
  const absl::Time start = gpumem::NodeTime();
  work();
  Ended(start, /*on_worker=*/true);
}

}  // namespace gpumemd
