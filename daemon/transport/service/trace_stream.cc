// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/trace_stream.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/start_thread.h"
#include "common/trace/encoder.h"
#include "common/trace/recording.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {

namespace trace = gpumem::trace;
namespace v1 = gpumem::v1;

namespace {

// A ring holds what a busy thread records in some times this.
constexpr absl::Duration kTakeEvery = absl::Milliseconds(10);
// Events of one chunk: about 1 MiB.
constexpr size_t kEventsPerChunk = 8192;

// Ends what goes on for too long: recording, and then a client that does not read.
class Overseer {
 public:
  static absl::StatusOr<std::unique_ptr<Overseer>> Start(trace::Recording* recording,
                                                         absl::Time ends, absl::Duration grace,
                                                         const std::function<void()>& cancel) {
    auto made = std::make_unique<Overseer>();
    auto thread = gpumem::StartThread([=, done = &made->done_] {
      if (done->WaitForNotificationWithDeadline(ends)) return;
      recording->Stop();
      if (!done->WaitForNotificationWithDeadline(ends + grace)) cancel();
    });
    if (!thread.ok()) return thread.status();
    made->thread_ = *std::move(thread);
    return made;
  }
  ~Overseer() {
    done_.Notify();
    if (thread_.joinable()) thread_.join();
  }

 private:
  absl::Notification done_;
  std::thread thread_;
};

}  // namespace

grpc::Status TraceStreams::Serve(const v1::TraceRequest& request, const Stream& stream) {
  const auto longest = static_cast<uint64_t>(absl::ToInt64Milliseconds(kLongest));
  if (request.duration_ms() == 0 || request.duration_ms() > longest) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            absl::StrCat("a trace takes 1 to ", longest, " ms; ", request.duration_ms(),
                         " ms are asked for")};
  }
  absl::StatusOr<std::unique_ptr<trace::Recording>> recording = trace::Recording::Start();
  if (!recording.ok()) return ToAnswer(recording.status());
  const absl::Time ends =
      absl::Now() + absl::Milliseconds(static_cast<int64_t>(request.duration_ms()));
  const auto overseer = Overseer::Start(recording->get(), ends, grace_, stream.cancel);
  if (!overseer.ok()) return ToAnswer(overseer.status());

  trace::Encoder encoder(trace::kDaemonCategory, trace::Process::Self(),
                         (*recording)->started_ns());
  std::vector<trace::Event> events;
  v1::TraceChunk chunk;
  size_t sent = 0;
  uint64_t dropped = 0;  // beyond those of the recording
  // False if the client has gone.
  const auto send = [&] {
    if (chunk.data().empty()) return true;
    sent += chunk.data().size();
    const bool written = stream.write(chunk);
    chunk.clear_data();
    return written;
  };
  for (bool over = false; !over;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithDeadline(absl::Condition(&ended_), std::min(ends, absl::Now() + kTakeEvery));
      if (ended_) return {grpc::StatusCode::UNAVAILABLE, "the daemon ends"};
    }
    if (stream.cancelled()) return grpc::Status::CANCELLED;
    over = absl::Now() >= ends;
    if (over) (*recording)->Stop();
    events.clear();
    (*recording)->Take(&events);
    if (request.session_id() != 0) {
      std::erase_if(events, [&](const trace::Event& event) {
        return event.request.session != request.session_id();
      });
    }
    for (absl::Span<const trace::Event> rest = events; !rest.empty();) {
      const auto part = rest.subspan(0, kEventsPerChunk);
      rest.remove_prefix(part.size());
      if (sent >= kMostBytes) {
        dropped += part.size();
        continue;
      }
      encoder.Add(part, chunk.mutable_data());
      if (!send()) return grpc::Status::CANCELLED;
    }
  }
  dropped += (*recording)->dropped();
  encoder.Add({}, chunk.mutable_data());  // a trace without a span is a trace, too
  if (dropped > 0) encoder.AddDropped(dropped, chunk.mutable_data());
  return send() ? grpc::Status::OK : grpc::Status::CANCELLED;
}

void TraceStreams::EndAll() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

}  // namespace gpumemd
