// SPDX-License-Identifier: Apache-2.0
#include "client/session/watch.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/session/abandon.h"
#include "client/session/convert.h"
#include "common/node_clock.h"

namespace gpumem::internal {
namespace {

// Returns how long ago the event was sent. Zero if unknown: the daemon does not say, or its clock
// is not this process's (a container with a time namespace).
absl::Duration AgeOf(const v1::Event& event) {
  const uint64_t now = NodeClockNs();
  if (event.sent_ns() == 0 || event.sent_ns() > now) return absl::ZeroDuration();
  return absl::Nanoseconds(static_cast<int64_t>(now - event.sent_ns()));
}

// Returns the rest of that many milliseconds.
absl::Duration Left(uint64_t milliseconds, absl::Duration age) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  const auto all = absl::Milliseconds(static_cast<int64_t>(std::min(milliseconds, kMost)));
  return std::max(all - age, absl::ZeroDuration());
}

// Returns kMemoryNeeded for a cause that this library does not know: an operator has asked only if
// the event says so.
SuspensionCause CauseOf(v1::SuspensionRequested::Cause cause) {
  return cause == v1::SuspensionRequested::OPERATOR ? SuspensionCause::kOperator
         : cause == v1::SuspensionRequested::IDLE   ? SuspensionCause::kIdle
                                                    : SuspensionCause::kMemoryNeeded;
}

// Returns nothing for an action that this library does not know.
std::optional<SuspensionAction> ActionOf(const v1::SuspensionRequested& request) {
  switch (request.action()) {
    case v1::SuspensionRequested::SUSPEND_OR_RESUME:
      return request.resume() ? SuspensionAction::kResume : SuspensionAction::kSuspend;
    case v1::SuspensionRequested::DEMOTE:
      return SuspensionAction::kDemote;
    case v1::SuspensionRequested::PROMOTE:
      return SuspensionAction::kPromote;
    default:
      return std::nullopt;
  }
}

// True if the status comes from gRPC and not from the daemon: the server shuts down, or the stream
// was cut off because it was not read for too long.
bool IsCutOff(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::CANCELLED &&
         (status.error_message() == "CANCELLED" ||
          status.error_message() == "Cancelled on the server side");
}

// The state shared by the thread and the Watch. The thread holds the last reference if a handler
// ends the Watch.
class Reader {
 public:
  Reader(std::shared_ptr<Session> session, WatchHandlers handlers, SuspensionServer suspension)
      : session_(std::move(session)),
        handlers_(std::move(handlers)),
        suspension_(std::move(suspension)) {}

  // If the daemon is absent, Run() waits for it.
  absl::Status Start() {
    absl::Status status = Begin(absl::Now() + kLookEvery);
    return session_->MayComeBack(status) ? absl::OkStatus() : status;
  }

  // Calls the handlers until the stream and the session end.
  void Run() {
    TellLost();
    absl::Status end = ReadAll();
    while (!cancelled_ && session_->MayComeBack(end)) {
      end = Begin(absl::Now() + kLookEvery);
      if (!end.ok()) continue;
      // This daemon reports again which leases it has lost.
      lost_by_daemon_.clear();
      TellLost();
      end = ReadAll();
    }
    // This client has not cancelled it.
    if (absl::IsCancelled(end)) {
      end = absl::UnavailableError(
          absl::StrCat("the daemon has ended the Watch: ", end.message(), "; start another"));
    }
    if (!cancelled_ && handlers_.ended) handlers_.ended(end);
  }

  void Cancel() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }

  bool forked() const { return session_->forked(); }

 private:
  // How often a thread that waits for a daemon checks if the Watch is being destroyed.
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(50);
  // How long releases do not linger after an event that says that others wait for memory.
  static constexpr absl::Duration kHurry = absl::Seconds(10);

  absl::Status Begin(absl::Time deadline) {
    stream_ = {};
    auto context = std::make_unique<grpc::ClientContext>();
    v1::WatchRequest request;
    request.set_accepts_suspension(suspension_.serve != nullptr);
    if (suspension_.swappable) request.set_swappable(*suspension_.swappable);
    request.set_serves_demotion(suspension_.demotes);
    absl::StatusOr<Session::EventStream> stream = session_->Watch(context.get(), request, deadline);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    absl::MutexLock lock(&mutex_);
    context_ = std::move(context);
    if (cancelled_) context_->TryCancel();
    return absl::OkStatus();
  }

  // Reads to the end of the stream and returns why it ended.
  absl::Status ReadAll() {
    if (stream_.reader == nullptr) return absl::UnavailableError("no daemon was running");
    v1::Event event;
    while (stream_.reader->Read(&event)) {
      if (!cancelled_) Tell(event);
    }
    const grpc::Status status = stream_.reader->Finish();
    absl::Status end = cancelled_ ? absl::OkStatus() : session_->Explain(stream_, status);
    // The daemon closes its gRPC server first, and the session's socket some time later. Until that
    // is detected, another Watch over this connection fails; then it reaches the next daemon. If
    // only the stream was cut off, another Watch reports the current state.
    if (IsCutOff(status)) return cancelled_ ? end : absl::UnavailableError(end.message());
    // The daemon's own message that this stream has ended goes to the `ended` handler.
    if (absl::IsUnavailable(end) && !stream_.connection->ended()) {
      end = absl::CancelledError(end.message());
    }
    return end;
  }

  void Tell(const v1::Event& event) {
    if (event.has_segments_lost()) {
      const auto& ids = event.segments_lost().lease_ids();
      lost_by_daemon_ = {ids.begin(), ids.end()};
      lost_told_ = session_->LostLeases();
      TellAllLost();
    } else if (event.has_draining()) {
      // Each stream begins with it, including those that the thread restarts.
      const bool draining = event.draining().draining();
      if (std::exchange(draining_, draining) != draining && handlers_.draining) {
        handlers_.draining(draining);
      }
    } else if (event.has_pressure()) {
      session_->HurryReleases(kHurry);
      if (handlers_.pressure) TellPressure(event.pressure(), AgeOf(event));
    } else if (event.has_revocation()) {
      session_->HurryReleases(kHurry);
      if (!handlers_.revocation) return;
      const v1::Revocation& revocation = event.revocation();
      handlers_.revocation(
          {.lease_ids = {revocation.lease_ids().begin(), revocation.lease_ids().end()},
           .until_end = Left(revocation.deadline_ms(), AgeOf(event))});
    } else if (event.has_suspension_requested() && suspension_.serve) {
      const v1::SuspensionRequested& request = event.suspension_requested();
      const absl::Duration left = Left(request.deadline_ms(), AgeOf(event));
      const std::optional<SuspensionAction> action = ActionOf(request);
      if (left <= absl::ZeroDuration() || !action) return;
      suspension_.serve({.action = *action,
                         .tag = request.tag(),
                         .left = left,
                         .cause = CauseOf(request.cause())});
    } else if (event.has_quota_changed() && handlers_.quota_changed) {
      handlers_.quota_changed(FromProto(event.quota_changed().quota()));
    }
  }

  // Reports the leases that a restarted daemon did not know, if any are new.
  void TellLost() {
    if (cancelled_) return;
    std::set<uint64_t> lost = session_->LostLeases();
    if (std::includes(lost_told_.begin(), lost_told_.end(), lost.begin(), lost.end())) return;
    lost_told_ = std::move(lost);
    TellAllLost();
  }

  void TellAllLost() {
    std::set<uint64_t> all = lost_told_;
    all.insert(lost_by_daemon_.begin(), lost_by_daemon_.end());
    if (handlers_.segments_lost) handlers_.segments_lost({.lease_ids = {all.begin(), all.end()}});
  }

  void TellPressure(const v1::Pressure& pressure, absl::Duration age) {
    Pressure told = {.device_uuid = pressure.device_uuid(), .bytes = pressure.bytes()};
    if (pressure.deadline_ms() > 0) {
      told.deadline = Left(pressure.deadline_ms(), age);
      if (told.deadline == absl::ZeroDuration()) return;  // too late to help
    }
    handlers_.pressure(told);
  }

  const std::shared_ptr<Session> session_;
  const WatchHandlers handlers_;
  const SuspensionServer suspension_;
  absl::Mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);  // outlives stream_
  std::atomic<bool> cancelled_ = false;
  // Used by the thread only.
  Session::EventStream stream_;
  std::set<uint64_t> lost_by_daemon_;  // its last report
  std::set<uint64_t> lost_told_;       // reported, of the others
  bool draining_ = false;
};

class ThreadedWatch : public Watch {
 public:
  explicit ThreadedWatch(std::shared_ptr<Reader> reader)
      : reader_(std::move(reader)),
        thread_(std::make_unique<std::thread>([reader = reader_] { reader->Run(); })) {}

  ~ThreadedWatch() override {
    if (reader_->forked()) {
      // The thread, and all that it uses, belongs to the parent.
      Abandon(std::move(thread_));
      Abandon(std::move(reader_));
      return;
    }
    reader_->Cancel();
    if (thread_->get_id() == std::this_thread::get_id()) {
      thread_->detach();  // a handler destroys the Watch that called it
    } else {
      thread_->join();
    }
  }

 private:
  std::shared_ptr<Reader> reader_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Watch>> StartWatch(std::shared_ptr<Session> session,
                                                  WatchHandlers handlers,
                                                  SuspensionServer suspension) {
  auto reader =
      std::make_shared<Reader>(std::move(session), std::move(handlers), std::move(suspension));
  if (absl::Status status = reader->Start(); !status.ok()) return status;
  try {
    return std::make_unique<ThreadedWatch>(reader);
  } catch (const std::system_error& error) {
    reader->Cancel();
    reader->Run();  // to the end of the stream, without calling handlers
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread for the Watch: ", error.what(),
                     "; raise the limit of processes (ulimit -u, or the container's pids limit)"));
  }
}

}  // namespace gpumem::internal
