// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/reflector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumem::kubernetes {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Seconds(10);
// A watch that ends earlier counts as a failure.
constexpr absl::Duration kShortWatch = absl::Seconds(1);
constexpr absl::Duration kEndAgain = absl::Milliseconds(20);

}  // namespace

Reflector::Reflector(const ApiServerOptions& options, std::string resource, std::string selector,
                     CacheFeed* cache, absl::Mutex* mutex)
    : resource_(std::move(resource)),
      selector_(std::move(selector)),
      api_server_(options),
      cache_(cache),
      mutex_(mutex),
      stale_(absl::UnavailableError(absl::StrCat(resource_, " are not listed yet"))) {
  thread_ = std::thread([this] {
    Run();
    ended_.Notify();
  });
}

Reflector::~Reflector() {
  {
    absl::MutexLock lock(mutex_);
    ending_ = true;
  }
  do {
    api_server_.Cancel();
  } while (!ended_.WaitForNotificationWithTimeout(kEndAgain));
  thread_.join();
}

absl::Status Reflector::WaitFresh(absl::Time deadline) {
  absl::MutexLock lock(mutex_);
  if (stale_.ok()) return absl::OkStatus();
  at_once_ = true;
  struct Wait {
    const Reflector* self;
    uint64_t failures;
  } const wait{this, failures_};
  const bool done = mutex_->AwaitWithDeadline(
      absl::Condition(
          +[](const Wait* w) ABSL_NO_THREAD_SAFETY_ANALYSIS {
            return w->self->stale_.ok() || w->self->failures_ != w->failures;
          },
          &wait),
      deadline);
  if (done) return stale_;
  return absl::DeadlineExceededError(
      absl::StrCat("the API server has not told of ", resource_, " in time"));
}

void Reflector::SetStale(const absl::Status& stale) {
  absl::MutexLock lock(mutex_);
  stale_ = stale;
  if (!stale.ok()) ++failures_;
}

bool Reflector::Pause(absl::Duration pause) {
  absl::MutexLock lock(mutex_);
  mutex_->AwaitWithTimeout(absl::Condition(
                               +[](Reflector* self) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                 return self->at_once_ || self->ending_;
                               },
                               this),
                           pause);
  at_once_ = false;
  return !ending_;
}

absl::Status Reflector::List() {
  {
    absl::MutexLock lock(mutex_);
    cache_->BeginList();
  }
  return api_server_.List(resource_, selector_,
                          [&](absl::string_view text) -> absl::StatusOr<std::string> {
                            absl::MutexLock lock(mutex_);
                            return cache_->AddPart(text);
                          });
}

absl::Status Reflector::Watch(bool* began) {
  std::string version;
  {
    absl::MutexLock lock(mutex_);
    version = cache_->version();
  }
  return api_server_.Watch(
      resource_, selector_, version,
      [&] {
        *began = true;
        SetStale(absl::OkStatus());
      },
      [&](absl::string_view line) {
        absl::MutexLock lock(mutex_);
        return cache_->Apply(line);
      });
}

void Reflector::Run() {
  bool listed = false;
  absl::Duration pause = kFirstPause;
  while (true) {
    absl::Status failure;
    if (!listed) {
      failure = List();
      listed = failure.ok();
      if (listed) SetStale(absl::OkStatus());
    }
    bool began = false;
    const absl::Time begin = absl::Now();
    if (listed) failure = Watch(&began);
    const bool lasted = began && absl::Now() - begin >= kShortWatch;
    if (lasted) pause = kFirstPause;
    // The API server ends each watch after a while: nothing was missed.
    if (failure.ok() && lasted) continue;
    if (failure.ok()) {
      failure = absl::UnavailableError(
          absl::StrCat("the API server has ended the watch of ", resource_, " at once"));
    }
    // The next watch goes on where this one has ended, unless the version is too old, its events
    // made no sense, or the account may list alone.
    const bool resumes = absl::IsUnavailable(failure) || absl::IsDeadlineExceeded(failure) ||
                         absl::IsUnauthenticated(failure);
    if (!resumes) listed = false;
    SetStale(failure);
    // Nodes that have lost the same API server do not come back at the same moment.
    if (!Pause(pause * absl::Uniform(random_, 0.5, 1.5))) return;
    if (!lasted) pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace gpumem::kubernetes
