// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/callback_queue.h"

#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/impl/grpc_library.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/node_clock.h"
#include "daemon/transport/meter/activity.h"
#include "daemon/transport/polling/alarm.h"
#include "daemon/transport/polling/load.h"
#include "daemon/transport/polling/work_watch.h"

namespace gpumemd {
namespace {

// As many as gRPC 1.51 starts.
int MostThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 16);
}

absl::Duration CpuTime() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

// Its threads live as long as it.
class Crew {
 public:
  Crew(grpc_completion_queue* queue, std::shared_ptr<gpumem::Spinner> spinner)
      : queue_(queue), spinner_(std::move(spinner)), watch_([this] { Watch(); }) {
    absl::MutexLock lock(&mutex_);
    ++called_;
    threads_.emplace_back([this] { Serve(); });
  }
  // Requires that the queue has been shut down.
  ~Crew() {
    // No thread starts another one after Close().
    while (true) {
      std::vector<std::thread> threads;
      {
        absl::MutexLock lock(&mutex_);
        threads.swap(threads_);
      }
      if (threads.empty()) break;
      for (std::thread& thread : threads) thread.join();
    }
    alarm_.Set(absl::Nanoseconds(1));
    watch_.join();
  }

  void Fill(CallbackThreadsStats* stats) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    stats->polling = polling_;
    stats->waiting = waiting_;
    stats->called = calls_made_;
    stats->rescued = rescues_;
  }

  bool has_one_thread() const { return polling_ == 1; }

  void BeginLongWork(bool watched) {
    if (watched) long_work_.Begins();
  }
  void EndLongWork() {
    long_work_.Ends();
    NoteHoldUp();
  }

  // Whose thread this is.
  static thread_local Crew* of_this_thread;

 private:
  // Blocks until this thread is called to serve. False: the queue is closed.
  bool Join() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++parked_;
    const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return called_ > 0 || closed_;
    };
    mutex_.Await(absl::Condition(&wanted));
    --parked_;
    if (closed_) return false;
    --called_;
    ++polling_;
    return true;
  }

  // Has another thread join, unless all have.
  bool CallAnother(int most) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || polling_ + called_ >= most) return false;
    if (parked_ <= called_) {
      try {
        threads_.emplace_back([this] { Serve(); });
      } catch (const std::system_error&) {
        return false;  // no more threads for this process
      }
    }
    ++called_;
    ++calls_made_;
    return true;
  }

  // True if this thread need not serve any more: another one waits.
  bool Leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    if (polling_ <= 1) return false;
    absl::MutexLock lock(&mutex_);
    if (polling_ <= 1 || waiting_ == 0) return false;
    --polling_;
    return true;
  }

  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  void Serve() {
    of_this_thread = this;
    PollingLoad load;
    while (Join()) {
      absl::Duration spun;
      load.Start(gpumem::NodeTime(), CpuTime());
      while (true) {
        const grpc_event event = Next(&spun);
        if (event.type == GRPC_QUEUE_SHUTDOWN) return Close();
        if (event.type == GRPC_OP_COMPLETE) {
          ++events_;
          if (!watched_ && !watched_.exchange(true)) {
            alarm_.Set(kPatience);
          }
          auto* const callback = static_cast<grpc_completion_queue_functor*>(event.tag);
          callback->functor_run(callback, event.success);
        }
        const absl::Time now = gpumem::NodeTime();
        if (!load.Due(now)) continue;
        const PollingLoad::Advice advice = load.Look(now, CpuTime() - spun);
        if (advice == PollingLoad::Advice::kCallAnother) CallAnother(most_);
        if (advice == PollingLoad::Advice::kLeave && Leave()) break;
      }
    }
  }

  grpc_event Next(absl::Duration* spun) {
    ++waiting_;
    grpc_event event{.type = GRPC_QUEUE_TIMEOUT, .success = 0, .tag = nullptr};
    {
      gpumem::SpinningWait wait(spinner_.get());
      // With others a spinning thread would look in vain: one of them waits for the sockets.
      const bool come = wait.Spin([&] {
        if (polling_ > 1) return true;
        event = grpc_completion_queue_next(queue_, gpr_inf_past(GPR_CLOCK_MONOTONIC), nullptr);
        return event.type != GRPC_QUEUE_TIMEOUT;
      });
      *spun += wait.spun();
      if (!come || event.type == GRPC_QUEUE_TIMEOUT) {
        event = grpc_completion_queue_next(queue_, gpr_inf_future(GPR_CLOCK_MONOTONIC), nullptr);
      }
    }
    --waiting_;
    return event;
  }

  // Calls a thread when none has waited, and none has come to an end with anything, for kPatience.
  // Sleeps while there are no events.
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_) {
    uint64_t seen = events_;
    while (true) {
      alarm_.Wait();
      {
        absl::MutexLock lock(&mutex_);
        if (closed_) return;
      }
      if (const uint64_t events = events_; events != seen) {
        seen = events;
      } else if (waiting_ > 0) {
        watched_ = false;
        // An event before that has left the alarm to this thread.
        if (events_ == seen || watched_.exchange(true)) continue;
      } else {
        Rescue(most_);
      }
      alarm_.Set(kPatience);
    }
  }

  void Rescue(int most) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (waiting_ > 0 || !CallAnother(most)) return;
    absl::MutexLock lock(&mutex_);
    ++rescues_;
  }

  grpc_completion_queue* const queue_;
  const std::shared_ptr<gpumem::Spinner> spinner_;
  const int most_ = MostThreads();
  const Alarm alarm_;
  std::atomic<bool> watched_ = false;  // the alarm is set, or about to be
  std::atomic<uint64_t> events_ = 0;
  std::atomic<int> waiting_ = 0;
  std::atomic<int> polling_ = 0;  // changed under the mutex
  mutable absl::Mutex mutex_;
  int parked_ ABSL_GUARDED_BY(mutex_) = 0;
  int called_ ABSL_GUARDED_BY(mutex_) = 0;  // parked threads that are to join
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t calls_made_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t rescues_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::thread watch_;
  // Its thread comes on top: a work that never ends must not leave the others one thread less.
  WorkWatch long_work_{LongWork::kPatience, [this] { Rescue(most_ + 1); }};
};

thread_local Crew* Crew::of_this_thread = nullptr;

// All servers of the process have one.
class CallbackQueue {
 public:
  grpc::CompletionQueue* Ref() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (++users_ > 1) return queue_.get();
    if (spinner_ == nullptr) {
      spinner_ =
          std::make_shared<gpumem::Spinner>(gpumem::SpinOptions{.most = absl::ZeroDuration()});
    }
    queue_ = std::make_unique<grpc::CompletionQueue>();
    crew_ = std::make_unique<Crew>(queue_->cq(), spinner_);
    return queue_.get();
  }

  void Unref() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (--users_ > 0) return;
    queue_->Shutdown();
    crew_.reset();
    queue_.reset();
  }

  void Start(gpumem::SpinOptions spin) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(started_, true)) return;
      // Threads that a client has started use the one that they began with.
      spinner_ = std::make_shared<gpumem::Spinner>(spin);
    }
    Ref();
  }

  CallbackThreadsStats stats() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    CallbackThreadsStats stats;
    if (spinner_ != nullptr) stats.spun = spinner_->spun();
    if (crew_ != nullptr) crew_->Fill(&stats);
    return stats;
  }

 private:
  mutable absl::Mutex mutex_;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<gpumem::Spinner> spinner_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::CompletionQueue> queue_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Crew> crew_ ABSL_GUARDED_BY(mutex_);
};

// Never destroyed: its threads may outlive main().
CallbackQueue& TheCallbackQueue() {
  static auto* const queue = new CallbackQueue;
  return *queue;
}

}  // namespace

void StartCallbackThreads(gpumem::SpinOptions spin) { TheCallbackQueue().Start(spin); }

bool IsOnlyCallbackThread() {
  return Crew::of_this_thread != nullptr && Crew::of_this_thread->has_one_thread();
}

LongWork::LongWork(bool watched) { Crew::of_this_thread->BeginLongWork(watched); }
LongWork::~LongWork() { Crew::of_this_thread->EndLongWork(); }

CallbackThreadsStats GetCallbackThreadsStats() { return TheCallbackQueue().stats(); }

}  // namespace gpumemd

// What completion_queue_cc.cc of gRPC 1.51 defines, with the same meaning.
namespace grpc {
namespace {

internal::GrpcLibraryInitializer initializer;

}  // namespace

CompletionQueue* CompletionQueue::CallbackAlternativeCQ() {
  return gpumemd::TheCallbackQueue().Ref();
}

void CompletionQueue::ReleaseCallbackAlternativeCQ(CompletionQueue* /*queue*/) {
  gpumemd::TheCallbackQueue().Unref();
}

CompletionQueue::CompletionQueue(grpc_completion_queue* take)
    : GrpcLibraryCodegen(/*call_grpc_init=*/false), cq_(take) {
  InitialAvalanching();
}

void CompletionQueue::Shutdown() {
  initializer.summon();
  CompleteAvalanching();
}

CompletionQueue::NextStatus CompletionQueue::AsyncNextInternal(void** tag, bool* ok,
                                                               gpr_timespec deadline) {
  while (true) {
    const grpc_event event = grpc_completion_queue_next(cq_, deadline, nullptr);
    if (event.type == GRPC_QUEUE_TIMEOUT) return TIMEOUT;
    if (event.type == GRPC_QUEUE_SHUTDOWN) return SHUTDOWN;
    auto* const completed = static_cast<internal::CompletionQueueTag*>(event.tag);
    *ok = event.success != 0;
    *tag = completed;
    if (completed->FinalizeResult(tag, ok)) return GOT_EVENT;
  }
}

CompletionQueue::CompletionQueueTLSCache::CompletionQueueTLSCache(CompletionQueue* queue)
    : cq_(queue), flushed_(false) {
  grpc_completion_queue_thread_local_cache_init(cq_->cq_);
}

CompletionQueue::CompletionQueueTLSCache::~CompletionQueueTLSCache() {
  if (!flushed_) std::abort();
}

bool CompletionQueue::CompletionQueueTLSCache::Flush(void** tag, bool* ok) {
  flushed_ = true;
  void* cached = nullptr;
  int success = 0;
  if (grpc_completion_queue_thread_local_cache_flush(cq_->cq_, &cached, &success) == 0) {
    return false;
  }
  auto* const completed = static_cast<internal::CompletionQueueTag*>(cached);
  *ok = success == 1;
  *tag = completed;
  return completed->FinalizeResult(tag, ok);
}

}  // namespace grpc
