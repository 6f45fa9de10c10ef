// SPDX-License-Identifier: Apache-2.0
// Broker.Converse: the calls of one session, one after another on a stream.
//
// The next message is read only after the answer to the previous one was written. So a lane holds
// one message and one answer, and a client that does not read its answers is not served.
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/trace/span.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/leasing.h"
#include "daemon/transport/service/session_call.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

constexpr size_t kMaxMessageBytes = 64 * 1024;

using LaneReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Gives the reason and ends.
class RefusedLane final : public LaneReactor {
 public:
  explicit RefusedLane(const absl::Status& why) { Finish(ToAnswer(why)); }
  void OnDone() override { delete this; }
};

bool Waits(const v1::AcquireRequest& request) { return request.wait_ms() > 0; }
bool Waits(const v1::AttachRequest& request) {
  return request.wait_ms() > 0 || request.wait_for_version() > 0;
}

v1::AcquireResponse* AnswerFor(v1::AcquireResponse*, v1::SessionResponse& response) {
  return response.mutable_acquire();
}
v1::OpenResponse* AnswerFor(v1::OpenResponse*, v1::SessionResponse& response) {
  return response.mutable_open();
}
v1::AttachResponse* AnswerFor(v1::AttachResponse*, v1::SessionResponse& response) {
  return response.mutable_attach();
}
v1::GetUsageResponse* AnswerFor(v1::GetUsageResponse*, v1::SessionResponse& response) {
  return response.mutable_get_usage();
}

// For traces.
const char* NameOf(const v1::SessionRequest& request) {
  switch (request.call_case()) {
    case v1::SessionRequest::kAcquire:
      return CallName<v1::AcquireRequest>();
    case v1::SessionRequest::kAttach:
      return CallName<v1::AttachRequest>();
    case v1::SessionRequest::kOpen:
      return CallName<v1::OpenRequest>();
    case v1::SessionRequest::kGetUsage:
      return CallName<v1::GetUsageRequest>();
    case v1::SessionRequest::CALL_NOT_SET:
      return CallName<v1::ReleaseRequest>();
  }
  return CallName<v1::SessionRequest>();
}

}  // namespace

class BrokerService::Lane final : public LaneReactor {
 public:
  // `claim`: of SessionServer::ClaimLane.
  Lane(BrokerService* service, const Context* context, std::shared_ptr<void> claim)
      : service_(service), context_(context), claim_(std::move(claim)) {
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok)
      return Finish(grpc::Status::OK);  // the client, or its connection, has ended the stream
    if (service_->parks_) return Park();
    Serve();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&message_);
  }

  void OnCancel() override {
    std::shared_ptr<Request> running;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      running = running_;
      if (!parked_) {
        if (running == nullptr) return;  // the next read or write fails
      }
    }
    if (running != nullptr) return running->GiveUp();
    Finish(grpc::Status::CANCELLED);
  }

  // Only now the last of gRPC's calls is over.
  void OnDone() override { delete this; }

 private:
  // Neither answers nor refuses the message: the next daemon is to be asked.
  void Park() {
    {
      absl::MutexLock lock(&mutex_);
      parked_ = true;
      if (!cancelled_) return;
    }
    Finish(grpc::Status::CANCELLED);
  }

  void Serve() {
    response_.Clear();
    const uint64_t begin_ns = gpumem::trace::NowIfOn();
    const auto request = Parse();
    if (!request.ok()) return Finish(ToAnswer(request.status()));
    response_.set_number(request->number());
    traced_.emplace(NameOf(*request), begin_ns);
    const gpumem::trace::RequestScope scope(traced_->request());
    gpumem::trace::Record("parse", begin_ns);
    gpumem::trace::Span authenticate("authenticate");
    absl::StatusOr<Broker::Call> call = service_->broker_->Authenticate(TokenOf(*context_));
    if (call.ok()) traced_->SetSession(call->session());
    authenticate.End();
    if (absl::IsResourceExhausted(call.status())) {
      if (request->has_release()) SetStatus(call.status(), response_.mutable_release_status());
      return AnswerWith(call.status());
    }
    if (!call.ok()) return Finish(ToAnswer(call.status()));
    call_.emplace(*std::move(call));
    if (request->has_release()) {
      const absl::Status released = service_->DoRelease(*call_, request->release()).status();
      if (!released.ok()) SetStatus(released, response_.mutable_release_status());
    }
    switch (request->call_case()) {
      case v1::SessionRequest::kAcquire:
        return Lease<leasing::AcquireMethod>(request->acquire());
      case v1::SessionRequest::kAttach:
        return Lease<leasing::AttachMethod>(request->attach());
      case v1::SessionRequest::kOpen:
        return Open(request->open());
      case v1::SessionRequest::kGetUsage:
        return AnswerWith(service_->DoGetUsage(*call_));
      case v1::SessionRequest::CALL_NOT_SET:
        return AnswerWith(absl::OkStatus());
    }
  }

  absl::StatusOr<v1::SessionRequest> Parse() const {
    if (message_.Length() <= kMaxMessageBytes) return ParseRequest<v1::SessionRequest>(message_);
    return absl::InvalidArgumentError(absl::StrCat("a message of ", message_.Length(),
                                                   " bytes is larger than ", kMaxMessageBytes,
                                                   "; make the unary call"));
  }

  template <typename Method>
  void Lease(const typename Method::Request& request) {
    if (Waits(request)) {
      return AnswerWith(absl::InvalidArgumentError("a request that waits is made by a unary call"));
    }
    auto leasing = std::make_shared<Leasing<Method>>(
        service_, /*describes=*/true, [this](absl::StatusOr<typename Method::Response> answer) {
          AnswerWith(std::move(answer));
        });
    traced_->SetRequest(request);
    leasing->SetTraced(traced_->request());
    absl::Status ready = leasing->Read(*call_, request, absl::InfiniteFuture());
    if (ready.ok()) {
      absl::MutexLock lock(&mutex_);
      if (cancelled_) ready = absl::CancelledError();
      if (ready.ok()) running_ = leasing;
    }
    if (!ready.ok()) return AnswerWith(ready);
    leasing->Begin();
  }

  void Open(const v1::OpenRequest& request) {
    if (auto answer = service_->DoOpen(*call_, request, /*may_wait=*/false, /*describes=*/true)) {
      return AnswerWith(*std::move(answer));
    }
    service_->workers_.Run([this, request, queued = gpumem::trace::NowIfOn()] {
      gpumem::trace::RecordOf(traced_->request(), "queue", queued);
      const gpumem::trace::RequestScope scope(traced_->request());
      AnswerWith(*service_->DoOpen(*call_, request, /*may_wait=*/true, /*describes=*/true));
    });
  }

  static void SetStatus(const absl::Status& status, v1::StatusDetails* details) {
    *details = ToAnswerDetails(status);
  }

  template <typename Response>
  void AnswerWith(absl::StatusOr<Response> answer) {
    if (answer.ok()) {
      *AnswerFor(static_cast<Response*>(nullptr), response_) = *std::move(answer);
    }
    AnswerWith(answer.status());
  }

  // May delete `this`.
  void AnswerWith(const absl::Status& status) {
    if (!status.ok()) SetStatus(status, response_.mutable_status());
    std::shared_ptr<Request> done;  // deleted without the mutex
    {
      absl::MutexLock lock(&mutex_);
      done = std::move(running_);
    }
    // Uncounts the call before answering: a client with the answer may make the next call.
    call_.reset();
    Failpoint("answer-before");
    const CallTrace traced = *traced_;  // the next message may come at once
    gpumem::trace::Span span("answer");
    answer_.Clear();
    bool owned;
    grpc::SerializationTraits<v1::SessionResponse>::Serialize(response_, &answer_, &owned);
    StartWrite(&answer_);
    span.End();
    traced.Answered();
  }

  BrokerService* const service_;
  const Context* const context_;
  const std::shared_ptr<void> claim_;
  Bytes message_, answer_;
  v1::SessionResponse response_;
  std::optional<Broker::Call> call_;
  std::optional<CallTrace> traced_;  // of the message

  absl::Mutex mutex_;
  std::shared_ptr<Request> running_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool parked_ ABSL_GUARDED_BY(mutex_) = false;
};

LaneReactor* BrokerService::Converse(Context* context) {
  if (parks_) return new ParkedCall<LaneReactor>;
  const absl::StatusOr<SessionId> session = broker_->SessionOf(TokenOf(*context));
  if (!session.ok()) return new RefusedLane(session.status());
  absl::StatusOr<std::shared_ptr<void>> claim = sessions_->ClaimLane(*session);
  if (!claim.ok()) return new RefusedLane(claim.status());
  return new Lane(this, context, *std::move(claim));
}

}  // namespace gpumemd
