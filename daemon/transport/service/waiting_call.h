// SPDX-License-Identifier: Apache-2.0
// How the broker's service answers an Acquire or an Attach. Internal to the implementation of
// broker_service.h.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/session_call.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {

// A call being served. It may wait for long, and its client may go meanwhile. `Method` has:
//   Request, Response  the messages
//   Record             Broker::Acquisition or Broker::Attachment
//   static absl::Status Read(const Request&, absl::Time deadline, Record&)
//                      sets the spec and the deadlines
//   static absl::Status Write(PROGRESS, Response&)
//                      returns the status of an answered request, and adds what was granted
template <typename Method>
class BrokerService::WaitingCall final : public grpc::ServerUnaryReactor {
 public:
  WaitingCall(BrokerService* service, Bytes* response) : service_(service), response_(response) {}

  // May delete `this`.
  void Begin(Context* context, const Bytes* request) {
    absl::StatusOr<Broker::Call> call = service_->broker_->Authenticate(TokenOf(*context));
    if (!call.ok()) return AnswerWith(call.status());
    call_.emplace(*std::move(call));
    const auto parsed = ParseRequest<typename Method::Request>(*request);
    if (!parsed.ok()) return AnswerWith(parsed.status());
    auto record = std::make_shared<typename Method::Record>();
    const absl::Time deadline = absl::FromChrono(context->deadline());
    if (absl::Status read = Method::Read(*parsed, deadline, *record); !read.ok()) {
      return AnswerWith(read);
    }
    record_ = std::move(record);
    record_->session = call_->session();
    record_->deliver = [this](const Broker::Handover& handover, bool may_block) {
      answer_.set_delivery_id(service_->next_delivery_++);
      return service_->sessions_->Deliver(call_->session(), answer_.delivery_id(), handover,
                                          may_block);
    };
    record_->resume = [this] { AdvanceOnWorker(); };
    Advance(/*may_block=*/false);
  }

  // Only now the last of gRPC's calls is over.
  void OnDone() override { delete this; }

  void OnCancel() override {
    if (record_ != nullptr) service_->broker_->GiveUp(record_);
  }

 private:
  using State = Broker::Progress::State;

  // May delete `this`.
  void Advance(bool may_block) {
    auto progress = service_->broker_->Advance(record_, may_block);
    if (progress.state == State::kWaits) return;
    if (progress.state == State::kNeedsAThread) return AdvanceOnWorker();
    if (absl::Status done = Method::Write(std::move(progress), answer_); !done.ok()) {
      return AnswerWith(done);
    }
    AnswerWith(std::move(answer_));
  }

  void AdvanceOnWorker() {
    service_->workers_.Run([this] { Advance(/*may_block=*/true); });
  }

  void AnswerWith(const absl::StatusOr<typename Method::Response>& answer) {
    // Uncounts the call before answering: a client with the answer may make the next call.
    call_.reset();
    Answer(this, response_, answer);
  }

  BrokerService* const service_;
  Bytes* const response_;
  std::optional<Broker::Call> call_;
  std::shared_ptr<typename Method::Record> record_;
  typename Method::Response answer_;
};

template <typename Method>
grpc::ServerUnaryReactor* BrokerService::ServeWaiting(Context* context, const Bytes* request,
                                                      Bytes* response) {
  if (parks_) return new ParkedCall<Reactor>;
  auto* const call = new WaitingCall<Method>(this, response);
  call->Begin(context, request);
  return call;
}

}  // namespace gpumemd
