// SPDX-License-Identifier: Apache-2.0
#include "client/session/waiting_call.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <chrono>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace gpumem::internal {
namespace {

// Adds an event to a queue from any thread, at most one until it is answered.
class Bell {
 public:
  explicit Bell(grpc::CompletionQueue* queue) : queue_(queue) {}

  void Ring() {
    absl::MutexLock lock(&mutex_);
    if (rung_) return;
    rung_ = true;
    alarm_.Set(queue_, std::chrono::system_clock::now(), this);
  }
  // Call when the event has arrived.
  void Answer() {
    absl::MutexLock lock(&mutex_);
    rung_ = false;
  }

 private:
  grpc::CompletionQueue* const queue_;
  absl::Mutex mutex_;
  bool rung_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::Status WaitForAnswer(
    grpc::ClientContext& context,
    absl::FunctionRef<void(grpc::CompletionQueue* queue, grpc::Status* status, void* tag)> start,
    Interrupt* interrupt, absl::FunctionRef<absl::Duration()> look) {
  grpc::CompletionQueue queue;
  Bell bell(&queue);
  std::optional<Interrupt::Listener> listener;
  if (interrupt != nullptr) listener.emplace(interrupt, [&bell] { bell.Ring(); });
  grpc::Status status;
  start(&queue, &status, /*tag=*/&status);

  absl::Duration pause = absl::InfiniteDuration();
  bool waits = true;
  void* tag = nullptr;
  while (tag != &status) {
    if (waits) {
      pause = look();
      waits = pause > absl::ZeroDuration();
      if (!waits) {
        pause = absl::InfiniteDuration();
        context.TryCancel();
      }
    }
    bool ok = false;
    const absl::Time next = absl::Now() + pause;
    if (queue.AsyncNext(&tag, &ok, absl::ToChronoTime(next)) != grpc::CompletionQueue::GOT_EVENT) {
      tag = nullptr;
    } else if (tag == &bell) {
      bell.Answer();
    }
  }
  listener.reset();
  queue.Shutdown();
  for (bool ok; queue.Next(&tag, &ok);) {
  }
  return status;
}

}  // namespace gpumem::internal
