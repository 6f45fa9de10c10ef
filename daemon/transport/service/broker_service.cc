// SPDX-License-Identifier: Apache-2.0
// The calls that may wait for memory, a version or contents: Acquire, Attach, AttachOrClaim and
// Resume.
#include "daemon/transport/service/broker_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/requested_kind.h"
#include "daemon/transport/polling/inline_work.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/service/session_call.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

void SetDeadlines(uint64_t wait_ms, absl::Time deadline, Broker::Acquisition& acquisition) {
  const absl::Time now = absl::Now();
  acquisition.wait_until = std::min(deadline, now + FromMilliseconds(wait_ms));
  acquisition.release_deadline = std::min(deadline, now + Broker::kDisposalWait);
}

template <typename Response>
absl::Status WriteLeases(const Broker::Progress& progress, Response& response) {
  if (!progress.leases.ok()) return progress.leases.status();
  for (const LeaseView& lease : *progress.leases) *response.add_leases() = ToProto(lease);
  return absl::OkStatus();
}

template <typename Response>
absl::Status WriteAttached(Broker::AttachProgress progress, Response& response) {
  if (!progress.attached.ok()) return progress.attached.status();
  for (const LeaseView& lease : progress.attached->leases) *response.add_leases() = ToProto(lease);
  response.set_version(progress.attached->publication.version);
  response.set_tenant(progress.attached->publication.tenant);
  response.set_metadata(std::move(progress.attached->metadata));
  return absl::OkStatus();
}

// The part of a WaitingCall that is about an Acquire.
struct AcquireMethod {
  using Request = v1::AcquireRequest;
  using Response = v1::AcquireResponse;
  using Record = Broker::Acquisition;

  static absl::Status Read(const Request& request, absl::Time deadline, Record& acquisition) {
    absl::StatusOr<std::optional<Kind>> kind = RequestedKind(request.kind());
    if (!kind.ok()) return kind.status();
    acquisition.spec = {
        .device_uuid = request.device_uuid(),
        .bytes = request.bytes(),
        .kind = *kind,
        .count = std::max(request.count(), 1u),
        .most_free = request.most_free(),
        .among = {request.among_device_uuids().begin(), request.among_device_uuids().end()},
        .without_pressure = request.without_pressure(),
        .revocable = request.revocable(),
        .waits = request.wait_ms() > 0,
        .request_id = request.request_id(),
        .tag = request.tag(),
        .scratch = request.scratch()};
    SetDeadlines(request.wait_ms(), deadline, acquisition);
    return absl::OkStatus();
  }

  static absl::Status Write(const Broker::Progress& progress, Response& response) {
    return WriteLeases(progress, response);
  }
};

// The part of a WaitingCall that is about a Resume.
struct ResumeMethod {
  using Request = v1::ResumeRequest;
  using Response = v1::ResumeResponse;
  using Record = Broker::Acquisition;

  static absl::Status Read(const Request& request, absl::Time deadline, Record& acquisition) {
    const auto count = static_cast<size_t>(request.lease_ids_size());
    if (count == 0 || count > kMaxSuspendedAtOnce) {
      return absl::InvalidArgumentError(absl::StrCat(
          "name 1 to ", kMaxSuspendedAtOnce, " leases to resume; this request names ", count));
    }
    acquisition.spec = {.waits = request.wait_ms() > 0};
    for (uint64_t lease : request.lease_ids()) {
      acquisition.spec.resumes.push_back(LeaseId{lease});
    }
    SetDeadlines(request.wait_ms(), deadline, acquisition);
    return absl::OkStatus();
  }

  static absl::Status Write(const Broker::Progress& progress, Response& response) {
    return WriteLeases(progress, response);
  }
};

// The part of a WaitingCall that is about an Attach.
struct AttachMethod {
  using Request = v1::AttachRequest;
  using Response = v1::AttachResponse;
  using Record = Broker::Attachment;

  static absl::Status Read(const Request& request, absl::Time deadline, Record& attachment) {
    attachment.spec = {.name = request.name(),
                       .version = request.wait_for_version(),
                       .revocable = request.revocable(),
                       .request_id = request.request_id(),
                       .waits = request.wait_ms() > 0};
    attachment.wait_until = deadline;
    if (request.wait_ms() > 0) {
      attachment.wait_until = std::min(deadline, absl::Now() + FromMilliseconds(request.wait_ms()));
    }
    return absl::OkStatus();
  }

  static absl::Status Write(Broker::AttachProgress progress, Response& response) {
    if (progress.attached.ok()) {
      response.set_content_id(progress.attached->publication.content_id);
    }
    return WriteAttached(std::move(progress), response);
  }
};

// The part of a WaitingCall that is about an AttachOrClaim.
struct AttachOrClaimMethod {
  using Request = v1::AttachOrClaimRequest;
  using Response = v1::AttachOrClaimResponse;
  using Record = Broker::Attachment;

  static absl::Status Read(const Request& request, absl::Time deadline, Record& attachment) {
    attachment.spec = {.name = request.name(),
                       .revocable = request.revocable(),
                       .request_id = request.request_id(),
                       .waits = request.wait_ms() > 0,
                       .claims = true,
                       .content_id = request.content_id()};
    attachment.wait_until = std::min(deadline, absl::Now() + FromMilliseconds(request.wait_ms()));
    return absl::OkStatus();
  }

  static absl::Status Write(Broker::AttachProgress progress, Response& response) {
    if (progress.attached.ok() && progress.attached->claimed) {
      response.set_claimed(true);
      return absl::OkStatus();
    }
    return WriteAttached(std::move(progress), response);
  }
};

}  // namespace

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
    if (progress.state == State::kNeedsAThread) {
      if (!RunInline([this] { Advance(/*may_block=*/true); })) AdvanceOnWorker();
      return;
    }
    if (absl::Status done = Method::Write(std::move(progress), answer_); !done.ok()) {
      return AnswerWith(done);
    }
    AnswerWith(std::move(answer_));
  }

  void AdvanceOnWorker() {
    service_->workers_.Run([this] { RunOnWorker([this] { Advance(/*may_block=*/true); }); });
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
