// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Broker that are about publications.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/service/session_call.h"

namespace gpumemd {

namespace v1 = gpumem::v1;

grpc::ServerUnaryReactor* BrokerService::Publish(Context* context, const Bytes* request,
                                                 Bytes* response) {
  return Serve<v1::PublishRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::PublishRequest& publish,
             bool may_wait) -> std::optional<absl::StatusOr<v1::PublishResponse>> {
        // A copy that takes its time is none for gRPC's few threads.
        constexpr size_t kLittle = 64 * 1024;
        if (!may_wait && publish.metadata().size() > kLittle) return std::nullopt;
        absl::StatusOr<PublishSpec> spec = FromProto(publish);
        if (!spec.ok()) return spec.status();
        absl::StatusOr<uint64_t> version = broker_->Publish(call, *spec, publish.metadata());
        if (!version.ok()) return version.status();
        v1::PublishResponse answer;
        answer.set_version(*version);
        return answer;
      });
}

// An Attach being served. It may wait for a version for long, and its client may go meanwhile.
class BrokerService::AttachCall final : public grpc::ServerUnaryReactor {
 public:
  AttachCall(BrokerService* service, Bytes* response) : service_(service), response_(response) {}

  // May delete `this`.
  void Begin(Context* context, const Bytes* request) {
    context_ = context;
    absl::StatusOr<Broker::Call> call = service_->broker_->Authenticate(TokenOf(*context));
    if (!call.ok()) return AnswerWith(call.status());
    call_.emplace(*std::move(call));
    const auto parsed = ParseRequest<v1::AttachRequest>(*request);
    if (!parsed.ok()) return AnswerWith(parsed.status());
    attachment_ = std::make_shared<Broker::Attachment>();
    attachment_->session = call_->session();
    attachment_->spec = {.name = parsed->name(),
                         .version = parsed->wait_for_version(),
                         .revocable = parsed->revocable(),
                         .request_id = parsed->request_id()};
    attachment_->wait_until = absl::FromChrono(context->deadline());
    if (parsed->wait_ms() > 0) {
      attachment_->wait_until =
          std::min(attachment_->wait_until, absl::Now() + FromMilliseconds(parsed->wait_ms()));
    }
    attachment_->deliver = [this](const Broker::Handover& handover, bool may_block) {
      answer_.set_delivery_id(service_->next_delivery_++);
      return service_->sessions_->Deliver(call_->session(), answer_.delivery_id(), handover,
                                          may_block);
    };
    attachment_->resume = [this] {
      service_->workers_.Run([this] { Advance(/*may_block=*/true); });
    };
    Advance(/*may_block=*/false);
  }

  // Only now the last of gRPC's calls is over.
  void OnDone() override { delete this; }

  void OnCancel() override {
    if (attachment_ != nullptr) service_->broker_->GiveUp(attachment_);
  }

 private:
  using State = Broker::Progress::State;

  // May delete `this`.
  void Advance(bool may_block) {
    Broker::AttachProgress progress = service_->broker_->Advance(attachment_, may_block);
    if (progress.state == State::kWaits) return;
    if (progress.state == State::kNeedsAThread) {
      return service_->workers_.Run([this] { Advance(/*may_block=*/true); });
    }
    if (!progress.attached.ok()) return AnswerWith(progress.attached.status());
    for (const LeaseView& lease : progress.attached->leases) *answer_.add_leases() = ToProto(lease);
    answer_.set_version(progress.attached->publication.version);
    answer_.set_tenant(progress.attached->publication.tenant);
    answer_.set_metadata(std::move(progress.attached->metadata));
    AnswerWith(std::move(answer_));
  }

  void AnswerWith(const absl::StatusOr<v1::AttachResponse>& answer) {
    // Uncounts the call before answering: a client with the answer may make the next call.
    call_.reset();
    Answer(this, response_, answer);
  }

  BrokerService* const service_;
  Context* context_ = nullptr;  // gRPC's, until OnDone()
  Bytes* const response_;
  std::optional<Broker::Call> call_;
  std::shared_ptr<Broker::Attachment> attachment_;
  v1::AttachResponse answer_;
};

grpc::ServerUnaryReactor* BrokerService::Attach(Context* context, const Bytes* request,
                                                Bytes* response) {
  if (parks_) return new ParkedCall<Reactor>;
  auto* const call = new AttachCall(this, response);
  call->Begin(context, request);
  return call;
}

grpc::ServerUnaryReactor* BrokerService::Unpublish(Context* context, const Bytes* request,
                                                   Bytes* response) {
  return Serve<v1::UnpublishRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::UnpublishRequest& unpublish,
             bool) -> std::optional<absl::StatusOr<v1::UnpublishResponse>> {
        absl::StatusOr<uint64_t> version =
            broker_->Unpublish(call, unpublish.name(), unpublish.request_id());
        if (!version.ok()) return version.status();
        v1::UnpublishResponse answer;
        answer.set_version(*version);
        return answer;
      });
}

grpc::ServerUnaryReactor* BrokerService::ListPublications(Context* context, const Bytes* request,
                                                          Bytes* response) {
  return Serve<v1::ListPublicationsRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::ListPublicationsRequest& list,
             bool) -> std::optional<absl::StatusOr<v1::ListPublicationsResponse>> {
        absl::StatusOr<std::string> own = broker_->TenantOf(call);
        if (!own.ok()) return own.status();
        absl::StatusOr<std::vector<PublicationView>> views =
            broker_->ListAttachable(call, list.tenant());
        if (!views.ok()) return views.status();
        v1::ListPublicationsResponse answer;
        for (const PublicationView& view : *views) {
          *answer.add_publications() = ToProto(view, /*foreign=*/view.tenant != *own);
        }
        return answer;
      });
}

}  // namespace gpumemd
