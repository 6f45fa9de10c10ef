// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/calls.h"

#include <deque>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/start_thread.h"

namespace gpumem::web {
namespace {

// One may wait for the daemon, or for a directory service.
constexpr int kThreads = 2;

}  // namespace

// Places outlive the Calls.
class Calls::Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(size_t places) : places_(places) {}

  void Add(uid_t uid, Job job) {
    absl::MutexLock lock(&mutex_);
    User& user = users_[uid];
    user.waiting.push_back(std::move(job));
    TakeTurn(uid, user);
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
      {
        const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return ended_ || !turns_.empty();
        };
        absl::MutexLock lock(&mutex_, absl::Condition(&awake));
        if (ended_) return;
        const uid_t uid = turns_.front();
        turns_.pop_front();
        User& user = users_[uid];
        user.has_turn = false;
        job = std::move(user.waiting.front());
        user.waiting.pop_front();
        ++user.busy;
        TakeTurn(uid, user);
        place = Place(nullptr, [queue = shared_from_this(), uid](void*) { queue->Free(uid); });
      }
      job(std::move(place));
    }
  }

 private:
  struct User {
    std::deque<Job> waiting;
    size_t busy = 0;        // places taken
    bool has_turn = false;  // it is in turns_
  };

  void TakeTurn(uid_t uid, User& user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (user.has_turn || user.waiting.empty() || user.busy >= places_) return;
    user.has_turn = true;
    turns_.push_back(uid);
  }

  void Free(uid_t uid) {
    absl::MutexLock lock(&mutex_);
    User& user = users_[uid];
    --user.busy;
    TakeTurn(uid, user);
    if (user.busy == 0 && user.waiting.empty()) users_.erase(uid);
  }

  const size_t places_;
  absl::Mutex mutex_;
  std::map<uid_t, User> users_ ABSL_GUARDED_BY(mutex_);
  std::deque<uid_t> turns_ ABSL_GUARDED_BY(mutex_);  // of users whose next job may run
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

Calls::Calls(size_t places) : queue_(std::make_shared<Queue>(places)) {}

absl::StatusOr<std::unique_ptr<Calls>> Calls::Start(size_t places) {
  std::unique_ptr<Calls> calls(new Calls(places));
  for (int i = 0; i < kThreads; ++i) {
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

void Calls::Add(uid_t user, Job job) { queue_->Add(user, std::move(job)); }

}  // namespace gpumem::web
