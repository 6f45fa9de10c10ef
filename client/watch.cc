#include "client/watch.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/abandon.h"
#include "client/convert.h"
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

// What the thread and the Watch share. The thread may be the last to have it: where a handler
// ends the Watch.
class Reader {
 public:
  Reader(std::shared_ptr<Session> session, WatchHandlers handlers)
      : session_(std::move(session)), handlers_(std::move(handlers)) {}

  absl::Status Start() {
    auto stream = session_->Watch(&context_);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    return absl::OkStatus();
  }

  // Calls the handlers until the stream ends.
  void Run() {
    v1::Event event;
    while (stream_->Read(&event)) {
      if (!cancelled_) Tell(event);
    }
    absl::Status end = session_->Explain(stream_->Finish());
    // Nobody here has cancelled it.
    if (absl::IsCancelled(end)) {
      end = absl::UnavailableError(
          absl::StrCat("the daemon has ended the Watch: ", end.message(), "; start another"));
    }
    if (!cancelled_ && handlers_.ended) handlers_.ended(end);
  }

  void Cancel() {
    cancelled_ = true;
    context_.TryCancel();
  }

  bool forked() const { return session_->forked(); }

 private:
  void Tell(const v1::Event& event) {
    if (event.has_segments_lost() && handlers_.segments_lost) {
      const auto& ids = event.segments_lost().lease_ids();
      handlers_.segments_lost({.lease_ids = {ids.begin(), ids.end()}});
    } else if (event.has_draining() && handlers_.draining) {
      handlers_.draining(event.draining().draining());
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
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::Event>> stream_;
  std::atomic<bool> cancelled_ = false;
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
