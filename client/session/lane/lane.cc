// SPDX-License-Identifier: Apache-2.0
#include "client/session/lane/lane.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_stream.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/failpoint.h"
#include "common/spin/answer_spinner.h"
#include "common/spin/spin.h"
#include "common/trace/span.h"

namespace gpumem::internal {
namespace {

// As broker.proto says.
constexpr size_t kMaxMessageBytes = 64 * 1024;
// Another thread may take the answer from gRPC's socket, without this thread seeing it readable.
constexpr absl::Duration kSlice = absl::Milliseconds(1);
// How often in a row gRPC's socket may be readable without an answer before gRPC waits for it.
constexpr int kMostFutile = 16;
// After the daemon has not yet seen the end of the last stream.
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

class Lane::Stream {
 public:
  Stream(v1::Broker::Stub* stub, const std::string& token) {
    context_.AddMetadata(kTokenMetadata, token);
    // The first message takes the headers along.
    context_.set_initial_metadata_corked(true);
    stream_ = stub->PrepareAsyncConverse(&context_, &queue_);
    stream_->StartCall(nullptr);
  }
  ~Stream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    for (bool ok; queue_.Next(&tag, &ok);) {
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Requires that the previous message is answered.
  void Send(const v1::SessionRequest& message) {
    while (writes_) Next(absl::InfiniteFuture());
    writes_ = true;
    stream_->Write(message, &writes_);
    stream_->Read(&answer_, &answer_);
  }

  enum class Heard { kNothing, kAnswer, kEnd };
  Heard Next(absl::Time until) {
    while (true) {
      void* tag = nullptr;
      bool ok = false;
      const auto event = queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(until));
      if (event != grpc::CompletionQueue::GOT_EVENT) return Heard::kNothing;
      if (tag == &answer_) return ok ? Heard::kAnswer : Heard::kEnd;
      writes_ = false;  // if that has failed, so does the read
      if (until == absl::InfiniteFuture()) return Heard::kNothing;
    }
  }

  // As Next(), but spins at first.
  Heard NextSpinning(absl::Time until) {
    if (until == absl::UnixEpoch()) return Next(until);
    SpinningWait wait(&AnswerSpinner());
    Heard heard = Heard::kNothing;
    const auto hears = [&] { return (heard = Next(absl::UnixEpoch())) != Heard::kNothing; };
    return wait.Spin(hears) ? heard : Next(until);
  }

  // Returns the status of a stream that has ended.
  grpc::Status End() {
    grpc::Status status;
    stream_->Finish(&status, &status);
    void* tag = nullptr;
    for (bool ok; tag != &status && queue_.Next(&tag, &ok);) {
    }
    return status;
  }

  v1::SessionResponse& answer() { return answer_; }

 private:
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::SessionRequest, v1::SessionResponse>> stream_;
  v1::SessionResponse answer_;
  bool writes_ = false;
};

Lane::Lane(v1::Broker::Stub* stub, std::string token, int api, Deliveries* deliveries)
    : stub_(stub), token_(std::move(token)), api_(api), deliveries_(deliveries) {}

Lane::~Lane() = default;

std::optional<grpc::Status> Lane::Exchange(v1::SessionRequest message, absl::Time deadline,
                                           const Expected* expected, v1::SessionResponse* answer) {
  if (absent_ || busy_.exchange(true, std::memory_order_acquire)) return std::nullopt;
  const absl::Cleanup done = [this] { busy_.store(false, std::memory_order_release); };
  if (message.ByteSizeLong() > kMaxMessageBytes - 16) return std::nullopt;  // `number` comes
  if (stream_ == nullptr) {
    if (absl::Now() < closed_until_) return std::nullopt;
    stream_ = std::make_unique<Stream>(stub_, token_);
  }
  message.set_number(++last_number_);
  const trace::Span call("call");
  {
    const trace::Span send("send");
    stream_->Send(message);
  }
  Failpoint("client-lane-sent");
  bool has_arrived = false;
  grpc::Status status = Wait(*stream_, deadline, expected, &has_arrived);
  if (status.ok() && stream_->answer().number() != message.number()) {
    status = grpc::Status(grpc::StatusCode::INTERNAL,
                          "the daemon answered another message; this is a defect of gpumem");
  }
  if (status.ok()) {
    answer->Swap(&stream_->answer());
    return status;
  }
  stream_.reset();
  if (has_arrived) return status;
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    absent_ = true;
    return std::nullopt;
  }
  if (status.error_code() == grpc::StatusCode::ALREADY_EXISTS) {
    closed_until_ = absl::Now() + kPause;
    return std::nullopt;
  }
  return status;
}

grpc::Status Lane::Wait(Stream& stream, absl::Time deadline, const Expected* expected,
                        bool* has_arrived) {
  using Heard = Stream::Heard;
  using Readable = Deliveries::Readable;
  int futile = 0;
  while (true) {
    const absl::Time now = absl::Now();
    // To map the memory may have taken longer than that. The answer has come meanwhile.
    const bool has_answer =
        *has_arrived && now >= deadline && stream.Next(absl::UnixEpoch()) == Heard::kAnswer;
    if (has_answer) return grpc::Status::OK;
    if (now >= deadline) return {grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"};
    absl::Time until = deadline;  // of the wait for the answer
    if (expected != nullptr && !*has_arrived) {
      until = std::min(deadline, now + kSlice);
      if (futile++ >= kMostFutile) {
        futile = 0;
      } else {
        const Readable readable = deliveries_->AwaitReadable(api_, until);
        if (readable == Readable::kSession || readable == Readable::kBoth) {
          if (auto arrival = expected->call->TakeArrived(expected->request_id, until)) {
            *has_arrived = true;
            expected->arrived(*std::move(arrival));
            continue;
          }
          if (absl::Status end = deliveries_->Poll(); !end.ok()) {
            return {grpc::StatusCode::UNAVAILABLE, std::string(end.message())};
          }
        }
        if (readable == Readable::kSession || readable == Readable::kNone) futile = 0;
        if (readable == Readable::kSession) continue;
        until = absl::UnixEpoch();  // gRPC takes times before that for infinite ones
      }
    }
    switch (stream.NextSpinning(until)) {
      case Heard::kAnswer:
        return grpc::Status::OK;
      case Heard::kEnd: {
        const grpc::Status status = stream.End();
        // The daemon has closed it without an answer.
        if (!status.ok()) return status;
        return {grpc::StatusCode::UNAVAILABLE, "the daemon has ended the stream of calls"};
      }
      case Heard::kNothing:
        break;
    }
  }
}

}  // namespace gpumem::internal
