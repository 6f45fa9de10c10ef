// SPDX-License-Identifier: Apache-2.0
#include "client/session/release/flusher.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "client/session/session.h"
#include "common/start_thread.h"

namespace gpumem::internal {
namespace {

// The sessions of this process that have a Flusher. A forked child has none: it cannot connect.
struct Sessions {
  absl::Mutex mutex;
  std::vector<std::weak_ptr<Session>> all ABSL_GUARDED_BY(mutex);
};

Sessions& SessionsOfProcess() {
  static auto* const sessions = new Sessions;
  return *sessions;
}

// Blocks all signals of the calling thread, and so of threads that it starts: the handlers are the
// program's.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

bool Flusher::Start() {
  if (started_.load(std::memory_order_acquire)) return true;
  absl::MutexLock lock(&mutex_);
  if (started_.load(std::memory_order_relaxed)) return true;
  absl::StatusOr<std::thread> thread = [this] {
    const NoSignals blocked;
    return StartThread([this] { Run(); });
  }();
  if (!thread.ok()) return false;
  thread_ = *std::move(thread);
  Sessions& sessions = SessionsOfProcess();
  {
    absl::MutexLock sessions_lock(&sessions.mutex);
    std::erase_if(sessions.all, [](const auto& session) { return session.expired(); });
    sessions.all.push_back(session_.weak_from_this());
  }
  started_.store(true, std::memory_order_release);
  return true;
}

void Flusher::Stop() {
  absl::MutexLock lock(&mutex_);
  session_.releases_.Stop();
  if (thread_.joinable()) thread_.join();
}

void Flusher::Run() {
  while (session_.releases_.AwaitDue()) session_.SendReleases();
}

void Flusher::FlushOthers(const Session& session) {
  if (!ReleaseQueue::AnyUnsent()) return;
  std::vector<std::shared_ptr<Session>> others;
  {
    Sessions& sessions = SessionsOfProcess();
    absl::MutexLock lock(&sessions.mutex);
    for (const std::weak_ptr<Session>& weak : sessions.all) {
      // Kept until the lock is released: it may be the last reference.
      if (std::shared_ptr<Session> other = weak.lock()) others.push_back(std::move(other));
    }
  }
  for (const std::shared_ptr<Session>& other : others) {
    if (other.get() == &session || other->runtime_dir() != session.runtime_dir()) continue;
    other->SendReleases();
  }
}

}  // namespace gpumem::internal
