// SPDX-License-Identifier: Apache-2.0
// The unary calls that may wait: Acquire, Attach, AttachOrClaim and Resume.
#include "daemon/transport/service/broker_service.h"

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "daemon/transport/service/leasing.h"
#include "daemon/transport/service/session_call.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {

namespace trace = gpumem::trace;

using leasing::AcquireMethod;
using leasing::AttachMethod;
using leasing::AttachOrClaimMethod;
using leasing::ResumeMethod;

// A call being served. It may wait for long, and its client may go meanwhile.
template <typename Method>
class BrokerService::WaitingCall final : public grpc::ServerUnaryReactor {
 public:
  WaitingCall(BrokerService* service, Bytes* response)
      : service_(service),
        response_(response),
        traced_(CallName<typename Method::Request>()),
        leasing_(service, /*describes=*/false,
                 [this](absl::StatusOr<typename Method::Response> answer) { AnswerWith(answer); }) {
  }

  // May delete `this`.
  void Begin(Context* context, const Bytes* request) {
    const trace::RequestScope scope(traced_.request());
    trace::Span authenticate("authenticate");
    absl::StatusOr<Broker::Call> call = service_->broker_->Authenticate(TokenOf(*context));
    if (!call.ok()) return AnswerWith(call.status());
    traced_.SetSession(call->session());
    authenticate.End();
    call_.emplace(*std::move(call));
    trace::Span parse("parse");
    const auto parsed = ParseRequest<typename Method::Request>(*request);
    if (!parsed.ok()) return AnswerWith(parsed.status());
    traced_.SetRequest(*parsed);
    parse.End();
    leasing_.SetTraced(traced_.request());
    const absl::Time deadline = absl::FromChrono(context->deadline());
    if (absl::Status read = leasing_.Read(*call_, *parsed, deadline); !read.ok()) {
      return AnswerWith(read);
    }
    leasing_.Begin();
  }

  // Only now the last of gRPC's calls is over.
  void OnDone() override { delete this; }

  void OnCancel() override { leasing_.GiveUp(); }

 private:
  void AnswerWith(const absl::StatusOr<typename Method::Response>& answer) {
    // Uncounts the call before answering: a client with the answer may make the next call.
    call_.reset();
    const CallTrace traced = traced_;  // this may be deleted
    Answer(this, response_, answer);
    traced.Answered();
  }

  BrokerService* const service_;
  Bytes* const response_;
  CallTrace traced_;
  std::optional<Broker::Call> call_;
  Leasing<Method> leasing_;
};

template <typename Method>
grpc::ServerUnaryReactor* BrokerService::ServeWaiting(Context* context, const Bytes* request,
                                                      Bytes* response) {
  if (parks_) return new ParkedCall<Reactor>;
  auto* const call = new WaitingCall<Method>(this, response);
  call->Begin(context, request);
  return call;
}

grpc::ServerUnaryReactor* BrokerService::Acquire(Context* context, const Bytes* request,
                                                 Bytes* response) {
  return ServeWaiting<AcquireMethod>(context, request, response);
}

grpc::ServerUnaryReactor* BrokerService::Resume(Context* context, const Bytes* request,
                                                Bytes* response) {
  return ServeWaiting<ResumeMethod>(context, request, response);
}

grpc::ServerUnaryReactor* BrokerService::Attach(Context* context, const Bytes* request,
                                                Bytes* response) {
  return ServeWaiting<AttachMethod>(context, request, response);
}

grpc::ServerUnaryReactor* BrokerService::AttachOrClaim(Context* context, const Bytes* request,
                                                       Bytes* response) {
  return ServeWaiting<AttachOrClaimMethod>(context, request, response);
}

}  // namespace gpumemd
