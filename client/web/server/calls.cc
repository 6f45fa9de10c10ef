// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/calls.h"

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/start_thread.h"

namespace gpumem::web {

// Places and tickets may outlive the Calls.
class Calls::Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(const Limits& limits) : limits_(limits) {}

  absl::StatusOr<Ticket> Add(uid_t uid, Job job) {
    uint64_t number = 0;
    {
      absl::MutexLock lock(&mutex_);
      User& user = users_[uid];
      if (user.waiting.size() >= limits_.waiting) {
        return absl::ResourceExhaustedError("too many requests of this user wait for an answer");
      }
      number = ++last_;
      user.waiting[number] = std::move(job);
      TakeTurn(uid, user);
    }
    return Ticket(nullptr,
                  [queue = shared_from_this(), uid, number](void*) { queue->Cancel(uid, number); });
  }

  void End() {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  // Runs jobs until End().
  void Work() {
    while (true) {
      Job job;
      Place place;
      uid_t uid = 0;
      {
        const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return ended_ || !turns_.empty();
        };
        absl::MutexLock lock(&mutex_, absl::Condition(&awake));
        if (ended_) return;
        uid = turns_.front();
        turns_.pop_front();
        User& user = users_[uid];
        user.has_turn = false;
        if (user.waiting.empty()) {  // all were dropped
          Forget(uid, user);
          continue;
        }
        job = std::move(user.waiting.begin()->second);
        user.waiting.erase(user.waiting.begin());
        ++user.busy;
        ++user.running;
        TakeTurn(uid, user);
        place = Place(nullptr, [queue = shared_from_this(), uid](void*) { queue->Free(uid); });
      }
      job(std::move(place));
      EndJob(uid);
    }
  }

 private:
  struct User {
    std::map<uint64_t, Job> waiting;  // in the order of their numbers
    size_t busy = 0;                  // places taken
    size_t running = 0;               // threads taken
    bool has_turn = false;            // it is in turns_
  };

  void TakeTurn(uid_t uid, User& user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (user.has_turn || user.waiting.empty() || user.busy >= limits_.places ||
        user.running + 1 >= limits_.threads) {
      return;
    }
    user.has_turn = true;
    turns_.push_back(uid);
  }

  void Free(uid_t uid) {
    absl::MutexLock lock(&mutex_);
    User& user = users_[uid];
    --user.busy;
    TakeTurn(uid, user);
    Forget(uid, user);
  }

  void EndJob(uid_t uid) {
    absl::MutexLock lock(&mutex_);
    User& user = users_[uid];
    --user.running;
    TakeTurn(uid, user);
    Forget(uid, user);
  }

  void Cancel(uid_t uid, uint64_t number) {
    Job dropped;  // may own much: freed after the lock
    absl::MutexLock lock(&mutex_);
    const auto user = users_.find(uid);
    if (user == users_.end()) return;
    const auto job = user->second.waiting.find(number);
    if (job == user->second.waiting.end()) return;
    dropped = std::move(job->second);
    user->second.waiting.erase(job);
    Forget(uid, user->second);
  }

  // Erases a user of whom nothing is left.
  void Forget(uid_t uid, const User& user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (user.busy > 0 || user.running > 0 || !user.waiting.empty() || user.has_turn) return;
    users_.erase(uid);
  }

  const Limits limits_;
  absl::Mutex mutex_;
  std::map<uid_t, User> users_ ABSL_GUARDED_BY(mutex_);
  std::deque<uid_t> turns_ ABSL_GUARDED_BY(mutex_);  // of users whose next job may run
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

Calls::Calls(const Limits& limits) : queue_(std::make_shared<Queue>(limits)) {}

absl::StatusOr<std::unique_ptr<Calls>> Calls::Start(const Limits& limits) {
  std::unique_ptr<Calls> calls(new Calls(limits));
  for (size_t i = 0; i < limits.threads; ++i) {
    auto thread = StartThread([queue = calls->queue_] { queue->Work(); });
    if (!thread.ok()) return thread.status();
    calls->threads_.push_back(*std::move(thread));
  }
  return calls;
}

Calls::~Calls() {
  queue_->End();
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<Calls::Ticket> Calls::Add(uid_t user, Job job) {
  return queue_->Add(user, std::move(job));
}

}  // namespace gpumem::web
