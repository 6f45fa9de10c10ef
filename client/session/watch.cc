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

// How long ago it was sent. Zero where that is not known: the daemon does not say, or its clock is
// not this process's (a container with a time namespace).
absl::Duration AgeOf(const v1::Event& event) {
  const uint64_t now = NodeClockNs();
  if (event.sent_ns() == 0 || event.sent_ns() > now) return absl::ZeroDuration();
  return absl::Nanoseconds(static_cast<int64_t>(now - event.sent_ns()));
}

// What is left of so many milliseconds.
absl::Duration Left(uint64_t milliseconds, absl::Duration age) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  const auto all = absl::Milliseconds(static_cast<int64_t>(std::min(milliseconds, kMost)));
  return std::max(all - age, absl::ZeroDuration());
}

// Whether it is gRPC that says so, and not the daemon: of a server that shuts down, or of a stream
// that was cut off, since nothing of it was taken for too long.
bool IsCutOff(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::CANCELLED &&
         (status.error_message() == "CANCELLED" ||
          status.error_message() == "Cancelled on the server side");
}

// What the thread and the Watch share. The thread may be the last to have it: where a handler
// ends the Watch.
class Reader {
 public:
  Reader(std::shared_ptr<Session> session, WatchHandlers handlers)
      : session_(std::move(session)), handlers_(std::move(handlers)) {}

  // Where the daemon is not there, Run() waits for it.
  absl::Status Start() {
    absl::Status status = Begin(absl::Now() + kLookEvery);
    return session_->MayComeBack(status) ? absl::OkStatus() : status;
  }

  // Calls the handlers until the stream ends, and the session does with it.
  void Run() {
    TellLost();
    absl::Status end = ReadAll();
    while (!cancelled_ && session_->MayComeBack(end)) {
      end = Begin(absl::Now() + kLookEvery);
      if (!end.ok()) continue;
      // What this daemon has to say of these it says by itself.
      lost_by_daemon_.clear();
      TellLost();
      end = ReadAll();
    }
    // Nobody here has cancelled it.
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
  // How often a thread that waits for a daemon looks whether anybody waits for the thread.
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

  absl::Status Begin(absl::Time deadline) {
    stream_ = {};
    auto context = std::make_unique<grpc::ClientContext>();
    absl::StatusOr<Session::EventStream> stream = session_->Watch(context.get(), deadline);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    absl::MutexLock lock(&mutex_);
    context_ = std::move(context);
    if (cancelled_) context_->TryCancel();
    return absl::OkStatus();
  }

  // Reads to the stream's end, and answers why it ended.
  absl::Status ReadAll() {
    if (stream_.reader == nullptr) return absl::UnavailableError("there was no daemon");
    v1::Event event;
    while (stream_.reader->Read(&event)) {
      if (!cancelled_) Tell(event);
    }
    const grpc::Status status = stream_.reader->Finish();
    absl::Status end = cancelled_ ? absl::OkStatus() : session_->Explain(stream_, status);
    // The daemon closes its gRPC server first, and the session's socket some time after: another
    // Watch with this one fails until that is seen, and is with the next daemon then. Where it is
    // the stream alone that was cut off, another tells how things stand.
    if (IsCutOff(status)) return cancelled_ ? end : absl::UnavailableError(end.message());
    // The daemon's own word that this stream has ended is for whoever has it.
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
      // Each Watch begins with it, and so do those that the thread begins by itself.
      const bool draining = event.draining().draining();
      if (std::exchange(draining_, draining) != draining && handlers_.draining) {
        handlers_.draining(draining);
      }
    } else if (event.has_pressure() && handlers_.pressure) {
      TellPressure(event.pressure(), AgeOf(event));
    } else if (event.has_revocation() && handlers_.revocation) {
      const v1::Revocation& revocation = event.revocation();
      handlers_.revocation(
          {.lease_ids = {revocation.lease_ids().begin(), revocation.lease_ids().end()},
           .until_end = Left(revocation.deadline_ms(), AgeOf(event))});
    } else if (event.has_quota_changed() && handlers_.quota_changed) {
      handlers_.quota_changed(FromProto(event.quota_changed().quota()));
    }
  }

  // What a daemon that came back did not know, where there is something new.
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
      if (told.deadline == absl::ZeroDuration()) return;  // it helps nobody any more
    }
    handlers_.pressure(told);
  }

  const std::shared_ptr<Session> session_;
  const WatchHandlers handlers_;
  absl::Mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);  // outlives stream_
  std::atomic<bool> cancelled_ = false;
  // Of the thread.
  Session::EventStream stream_;
  std::set<uint64_t> lost_by_daemon_;  // as it said last
  std::set<uint64_t> lost_told_;       // of the others
  bool draining_ = false;
};

class ThreadedWatch : public Watch {
 public:
  explicit ThreadedWatch(std::shared_ptr<Reader> reader)
      : reader_(std::move(reader)),
        thread_(std::make_unique<std::thread>([reader = reader_] { reader->Run(); })) {}

  ~ThreadedWatch() override {
    if (reader_->forked()) {
      // The thread is the parent's, and with it all that it uses.
      Abandon(std::move(thread_));
      Abandon(std::move(reader_));
      return;
    }
    reader_->Cancel();
    if (thread_->get_id() == std::this_thread::get_id()) {
      thread_->detach();  // a handler ends its own Watch
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
                                                  WatchHandlers handlers) {
  auto reader = std::make_shared<Reader>(std::move(session), std::move(handlers));
  if (absl::Status status = reader->Start(); !status.ok()) return status;
  try {
    return std::make_unique<ThreadedWatch>(reader);
  } catch (const std::system_error& error) {
    reader->Cancel();
    reader->Run();  // to the end of the stream, without a word
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread for the Watch: ", error.what(),
                     "; raise the limit of processes (ulimit -u, or the container's pids limit)"));
  }
}

}  // namespace gpumem::internal
