// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Broker that are about publications, but for Attach and AttachOrClaim
// (broker_service.cc).
#include <optional>
#include <string>
#include <vector>

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

grpc::ServerUnaryReactor* BrokerService::ReleaseClaim(Context* context, const Bytes* request,
                                                      Bytes* response) {
  return Serve<v1::ReleaseClaimRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::ReleaseClaimRequest& release,
             bool) -> std::optional<absl::StatusOr<v1::ReleaseClaimResponse>> {
        broker_->ReleaseClaim(call, release.request_id());
        return v1::ReleaseClaimResponse();
      });
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
