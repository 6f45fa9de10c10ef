// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Broker that are about publications.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/service/session_call.h"
#include "daemon/transport/service/waiting_call.h"

namespace gpumemd {

namespace v1 = gpumem::v1;

namespace {

// As waiting_call.h requires.
struct AttachMethod {
  using Request = v1::AttachRequest;
  using Response = v1::AttachResponse;
  using Record = Broker::Attachment;

  static absl::Status Read(const Request& request, absl::Time deadline, Record& attachment) {
    attachment.spec = {.name = request.name(),
                       .version = request.wait_for_version(),
                       .revocable = request.revocable(),
                       .request_id = request.request_id()};
    attachment.wait_until = deadline;
    if (request.wait_ms() > 0) {
      attachment.wait_until = std::min(deadline, absl::Now() + FromMilliseconds(request.wait_ms()));
    }
    return absl::OkStatus();
  }

  static absl::Status Write(Broker::AttachProgress progress, Response& response) {
    if (!progress.attached.ok()) return progress.attached.status();
    for (const LeaseView& lease : progress.attached->leases) {
      *response.add_leases() = ToProto(lease);
    }
    response.set_version(progress.attached->publication.version);
    response.set_tenant(progress.attached->publication.tenant);
    response.set_metadata(std::move(progress.attached->metadata));
    return absl::OkStatus();
  }
};

}  // namespace

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

grpc::ServerUnaryReactor* BrokerService::Attach(Context* context, const Bytes* request,
                                                Bytes* response) {
  return ServeWaiting<AttachMethod>(context, request, response);
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
