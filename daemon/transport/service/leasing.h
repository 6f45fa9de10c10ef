// SPDX-License-Identifier: Apache-2.0
// How the broker's service serves the calls that may wait for memory, a version or contents:
// Acquire, Attach, AttachOrClaim and Resume. Internal to the implementation of broker_service.h.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/trace/span.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/requested_kind.h"
#include "daemon/transport/polling/inline_work.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/convert.h"

namespace gpumemd {

namespace leasing {

namespace v1 = gpumem::v1;

inline void SetDeadlines(uint64_t wait_ms, absl::Time deadline, Broker::Acquisition& acquisition) {
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

}  // namespace leasing

// One such request being served. `Method` has:
//   Request, Response  the messages
//   Record             Broker::Acquisition or Broker::Attachment
//   static absl::Status Read(const Request&, absl::Time deadline, Record&)
//                      sets the spec and the deadlines
//   static absl::Status Write(PROGRESS, Response&)
//                      returns the status of an answered request, and adds what was granted
template <typename Method>
class BrokerService::Leasing final : public BrokerService::Request {
 public:
  using Response = typename Method::Response;
  // Called once, on any thread, and not if the request is left to the next daemon. May delete the
  // object.
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>)>;

  // `describes`: true if the Delivery is to describe the leases.
  Leasing(BrokerService* service, bool describes, Done done)
      : service_(service), describes_(describes), done_(std::move(done)) {}

  // Returns why the request cannot be served. If it can, Begin() follows. `call` outlives the
  // request.
  absl::Status Read(const Broker::Call& call, const typename Method::Request& request,
                    absl::Time deadline) {
    auto record = std::make_shared<typename Method::Record>();
    if (absl::Status read = Method::Read(request, deadline, *record); !read.ok()) return read;
    record_ = std::move(record);
    record_->session = call.session();
    record_->deliver = [this, request_id = record_->spec.request_id](
                           const Broker::Handover& handover, bool may_block) {
      answer_.set_delivery_id(service_->next_delivery_++);
      return service_->Deliver(record_->session, answer_.delivery_id(), handover, may_block,
                               describes_ ? std::optional(request_id) : std::nullopt);
    };
    record_->resume = [this] {
      gpumem::trace::RecordOf(traced_, "wait", advanced_ns_);
      AdvanceOnWorker();
    };
    return absl::OkStatus();
  }

  // Sets whose the spans of other threads are.
  void SetTraced(const gpumem::trace::Request& request) { traced_ = request; }

  // May delete `this`.
  void Begin() { Advance(/*may_block=*/false); }

  void GiveUp() override {
    if (record_ != nullptr) service_->broker_->GiveUp(record_);
  }

 private:
  using State = Broker::Progress::State;

  // May delete `this`.
  void Advance(bool may_block) {
    advanced_ns_ = gpumem::trace::NowIfOn();  // before: another thread may resume it at once
    auto progress = service_->broker_->Advance(record_, may_block);
    if (progress.state == State::kWaits) return;
    if (progress.state == State::kNeedsAThread) {
      if (!RunInline([this] { Advance(/*may_block=*/true); })) AdvanceOnWorker();
      return;
    }
    const absl::Status written = Method::Write(std::move(progress), answer_);
    Done done = std::move(done_);
    done(written.ok() ? absl::StatusOr<Response>(std::move(answer_)) : written);
  }

  void AdvanceOnWorker() {
    service_->workers_.Run([this, queued = gpumem::trace::NowIfOn()] {
      gpumem::trace::RecordOf(traced_, "queue", queued);
      const gpumem::trace::RequestScope scope(traced_);
      RunOnWorker([this] { Advance(/*may_block=*/true); });
    });
  }

  BrokerService* const service_;
  const bool describes_;
  Done done_;
  std::shared_ptr<typename Method::Record> record_;
  gpumem::trace::Request traced_;
  uint64_t advanced_ns_ = 0;  // when it last went on; while a trace runs
  Response answer_;
};

}  // namespace gpumemd
