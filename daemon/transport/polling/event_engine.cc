// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/event_engine.h"

#include <algorithm>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"

namespace gpumemd {
namespace {

thread_local bool is_worker = false;

}  // namespace

struct QuietEventEngine::State {
  // In the order of their time, and of their arrival.
  using Key = std::pair<absl::Time, intptr_t>;

  absl::Mutex mutex;
  absl::CondVar changed;
  bool started ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  intptr_t last ABSL_GUARDED_BY(mutex) = 0;
  std::map<Key, absl::AnyInvocable<void()>> tasks ABSL_GUARDED_BY(mutex);
  std::map<intptr_t, absl::Time> times ABSL_GUARDED_BY(mutex);  // of the tasks, by number
};

QuietEventEngine::QuietEventEngine() : state_(std::make_shared<State>()) {}

QuietEventEngine::~QuietEventEngine() {
  // Not joined: the last reference may go in a closure.
  absl::MutexLock lock(&state_->mutex);
  state_->stopping = true;
  state_->changed.Signal();
}

void QuietEventEngine::Work(const std::shared_ptr<State>& state) {
  is_worker = true;
  absl::MutexLock lock(&state->mutex);
  while (!state->stopping) {
    if (state->tasks.empty()) {
      state->changed.Wait(&state->mutex);
      continue;
    }
    const auto first = state->tasks.begin();
    if (absl::Now() < first->first.first) {
      state->changed.WaitWithDeadline(&state->mutex, first->first.first);
      continue;
    }
    absl::AnyInvocable<void()> task = std::move(first->second);
    state->times.erase(first->first.second);
    state->tasks.erase(first);
    state->mutex.Unlock();
    task();
    task = nullptr;
    state->mutex.Lock();
  }
}

void QuietEventEngine::Run(Closure* closure) { RunAfter(Duration::zero(), closure); }

void QuietEventEngine::Run(absl::AnyInvocable<void()> closure) {
  RunAfter(Duration::zero(), std::move(closure));
}

QuietEventEngine::TaskHandle QuietEventEngine::RunAfter(Duration when, Closure* closure) {
  return RunAfter(when, [closure] { closure->Run(); });
}

QuietEventEngine::TaskHandle QuietEventEngine::RunAfter(Duration when,
                                                        absl::AnyInvocable<void()> closure) {
  const absl::Time time = absl::Now() + absl::FromChrono(std::max(when, Duration::zero()));
  absl::MutexLock lock(&state_->mutex);
  const intptr_t number = ++state_->last;
  state_->tasks.emplace(State::Key(time, number), std::move(closure));
  state_->times.emplace(number, time);
  state_->changed.Signal();
  if (!std::exchange(state_->started, true)) {
    std::thread([state = state_] { Work(state); }).detach();
  }
  return {{number, 0}};
}

bool QuietEventEngine::Cancel(TaskHandle handle) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->times.find(handle.keys[0]);
  if (found == state_->times.end()) return false;
  state_->tasks.erase(State::Key(found->second, found->first));
  state_->times.erase(found);
  return true;
}

bool QuietEventEngine::IsWorkerThread() { return is_worker; }

absl::StatusOr<std::unique_ptr<QuietEventEngine::Listener>> QuietEventEngine::CreateListener(
    Listener::AcceptCallback, absl::AnyInvocable<void(absl::Status)>,
    const grpc_event_engine::experimental::EndpointConfig&,
    std::unique_ptr<grpc_event_engine::experimental::MemoryAllocatorFactory>) {
  return absl::UnimplementedError("this EventEngine has no sockets");
}

QuietEventEngine::ConnectionHandle QuietEventEngine::Connect(
    OnConnectCallback on_connect, const ResolvedAddress&,
    const grpc_event_engine::experimental::EndpointConfig&,
    grpc_event_engine::experimental::MemoryAllocator, Duration) {
  Run([on_connect = std::move(on_connect)]() mutable {
    on_connect(absl::UnimplementedError("this EventEngine has no sockets"));
  });
  return {{0, 0}};
}

bool QuietEventEngine::CancelConnect(ConnectionHandle) { return false; }

std::unique_ptr<QuietEventEngine::DNSResolver> QuietEventEngine::GetDNSResolver(
    const DNSResolver::ResolverOptions&) {
  return nullptr;
}

}  // namespace gpumemd
