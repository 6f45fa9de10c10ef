// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/admin_service.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/quota/quota_changes.h"
#include "daemon/core/quota_proto.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/service/unary_call.h"
#include "spdlog/spdlog.h"

namespace gpumemd {

namespace v1 = gpumem::v1;

void AdminService::AnswerStatus(v1::GetStatusResponse* response) {
  const BrokerViews::Counts counts = broker_->views().Count();
  response->set_draining(counts.draining);
  response->set_sessions(static_cast<uint32_t>(counts.sessions));
  response->set_tenants(static_cast<uint32_t>(counts.tenants));
  response->set_segments(static_cast<uint32_t>(counts.segments));
  response->set_holders_shown(ToProto(counts.holders_shown));
  for (const BrokerViews::DeviceView& device : broker_->views().Devices(/*ask_driver=*/true)) {
    *response->add_devices() = ToProto(device);
    response->set_backend(ToProto(device.info.backend));
  }
  hooks_.fill_status(*response);
}

std::vector<AuditOperator> AdminService::Caller(const grpc::ServerContext* context) const {
  return hooks_.who == nullptr ? std::vector<AuditOperator>() : hooks_.who(context->peer());
}

void AdminService::Audit(const grpc::ServerContext* context, AuditRecord record) const {
  if (hooks_.audit == nullptr) return;
  record.time = absl::Now();
  record.by = Caller(context);
  hooks_.audit->Record(std::move(record));
}

grpc::Status AdminService::GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                                     v1::GetStatusResponse* response) {
  AnswerStatus(response);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListTenants(grpc::ServerContext*, const v1::ListTenantsRequest*,
                                       v1::ListTenantsResponse* response) {
  for (const TenantView& tenant : broker_->views().ListTenants()) {
    *response->add_tenants() = Describe(tenant);
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::ListSessions(grpc::ServerContext*,
                                        const v1::ListSessionsRequest* request,
                                        v1::ListSessionsResponse* response) {
  absl::StatusOr<std::vector<SessionView>> sessions =
      broker_->views().ListSessions(request->tenant());
  if (!sessions.ok()) return ToAnswer(sessions.status());
  for (const SessionView& session : *sessions) *response->add_sessions() = ToProto(session);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListSegments(grpc::ServerContext*,
                                        const v1::ListSegmentsRequest* request,
                                        v1::ListSegmentsResponse* response) {
  absl::StatusOr<std::vector<SegmentView>> segments =
      broker_->views().ListSegments(request->tenant(), request->device_uuid());
  if (!segments.ok()) return ToAnswer(segments.status());
  for (const SegmentView& segment : *segments) *response->add_segments() = ToProto(segment);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListHolders(grpc::ServerContext*, const v1::ListHoldersRequest* request,
                                       v1::ListHoldersResponse* response) {
  std::optional<SegmentId> only;
  if (request->segment_id() != 0) only = SegmentId{request->segment_id()};
  *response = ToProto(broker_->views().ListHolders(only));
  return grpc::Status::OK;
}

grpc::Status AdminService::ListWaiting(grpc::ServerContext*, const v1::ListWaitingRequest* request,
                                       v1::ListWaitingResponse* response) {
  absl::StatusOr<std::vector<WaiterView>> waiting =
      broker_->views().ListWaiting(request->tenant(), request->device_uuid());
  if (!waiting.ok()) return ToAnswer(waiting.status());
  for (const WaiterView& waiter : *waiting) *response->add_waiting() = ToProto(waiter);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListPublications(grpc::ServerContext*,
                                            const v1::ListPublicationsRequest* request,
                                            v1::ListPublicationsResponse* response) {
  absl::StatusOr<std::vector<PublicationView>> views =
      broker_->views().ListPublications(request->tenant());
  if (!views.ok()) return ToAnswer(views.status());
  for (const PublicationView& view : *views) *response->add_publications() = ToProto(view);
  return grpc::Status::OK;
}

grpc::Status AdminService::GetPublication(grpc::ServerContext*,
                                          const v1::GetPublicationRequest* request,
                                          v1::GetPublicationResponse* response) {
  absl::StatusOr<BrokerViews::PublicationContents> contents =
      broker_->views().GetPublication(request->name());
  if (!contents.ok()) return ToAnswer(contents.status());
  *response->mutable_publication() = ToProto(contents->view);
  response->set_metadata(std::move(contents->metadata));
  for (const uint64_t bytes : contents->segment_bytes) response->add_segment_bytes(bytes);
  return grpc::Status::OK;
}

grpc::Status AdminService::Unpublish(grpc::ServerContext* context,
                                     const v1::UnpublishRequest* request,
                                     v1::UnpublishResponse* response) {
  absl::StatusOr<uint64_t> version =
      broker_->operators().Unpublish(request->name(), Caller(context));
  if (!version.ok()) return ToAnswer(version.status());
  spdlog::info("publication {} was ended by an operator, at version {}", request->name(), *version);
  response->set_version(*version);
  return grpc::Status::OK;
}

namespace {

v1::GetQuotaResponse Answer(const TenantView& tenant, std::vector<std::string> overridden) {
  v1::GetQuotaResponse response;
  *response.mutable_quota() = ToProto(tenant.quota);
  *response.mutable_usage() = ToProto(tenant);
  for (std::string& field : overridden) response.add_overridden(std::move(field));
  return response;
}

}  // namespace

grpc::Status AdminService::GetQuota(grpc::ServerContext*, const v1::GetQuotaRequest* request,
                                    v1::GetQuotaResponse* response) {
  absl::StatusOr<TenantView> view = broker_->views().GetTenant(request->tenant());
  if (!view.ok()) return ToAnswer(view.status());
  *response = Answer(*view, quotas_->Overridden(request->tenant()));
  return grpc::Status::OK;
}

grpc::Status AdminService::SetQuota(grpc::ServerContext* context,
                                    const v1::SetQuotaRequest* request,
                                    v1::GetQuotaResponse* response) {
  absl::StatusOr<QuotaOverride> change = FromProto(*request);
  if (!change.ok()) return ToAnswer(change.status());
  absl::StatusOr<QuotaControl::Outcome> changed = quotas_->Set(request->tenant(), *change);
  if (!changed.ok()) return ToAnswer(changed.status());
  spdlog::info("quota of tenant {} changed: {}", request->tenant(), request->ShortDebugString());
  Audit(context, {.event = AuditEvent::kQuotaSet,
                  .tenant = request->tenant(),
                  .changes = QuotaChanges(changed->before, changed->tenant.quota)});
  *response = Answer(changed->tenant, std::move(changed->overridden));
  return grpc::Status::OK;
}

grpc::Status AdminService::UnsetQuota(grpc::ServerContext* context,
                                      const v1::UnsetQuotaRequest* request,
                                      v1::GetQuotaResponse* response) {
  const std::vector<std::string> fields(request->fields().begin(), request->fields().end());
  absl::StatusOr<QuotaControl::Outcome> changed = quotas_->Unset(request->tenant(), fields);
  if (!changed.ok()) return ToAnswer(changed.status());
  spdlog::info("quota of tenant {} reset to the configuration: {}", request->tenant(),
               fields.empty() ? "all of it" : absl::StrJoin(fields, ", "));
  Audit(context, {.event = AuditEvent::kQuotaUnset,
                  .tenant = request->tenant(),
                  .changes = QuotaChanges(changed->before, changed->tenant.quota)});
  *response = Answer(changed->tenant, std::move(changed->overridden));
  return grpc::Status::OK;
}

grpc::Status AdminService::Reload(grpc::ServerContext* context, const v1::ReloadRequest*,
                                  v1::ReloadResponse* response) {
  absl::StatusOr<v1::ReloadResponse> outcome = hooks_.reload(Caller(context));
  if (!outcome.ok()) return ToAnswer(outcome.status());
  *response = *std::move(outcome);
  return grpc::Status::OK;
}

grpc::Status AdminService::CheckReload(grpc::ServerContext*, const v1::CheckReloadRequest*,
                                       v1::ReloadResponse* response) {
  absl::StatusOr<v1::ReloadResponse> outcome = hooks_.check_reload();
  if (!outcome.ok()) return ToAnswer(outcome.status());
  *response = *std::move(outcome);
  return grpc::Status::OK;
}

grpc::Status AdminService::Trim(grpc::ServerContext* context, const v1::TrimRequest* request,
                                v1::TrimResponse* response) {
  absl::StatusOr<BrokerOperators::Trimmed> trimmed =
      broker_->operators().Trim(request->tenant(), request->device_uuid(), request->keep_bytes());
  if (!trimmed.ok()) return ToAnswer(trimmed.status());
  Audit(context, {.event = AuditEvent::kTrimmed,
                  .tenant = request->tenant(),
                  .device = request->device_uuid(),
                  .bytes = trimmed->bytes,
                  .count = trimmed->segments});
  response->set_released_bytes(trimmed->bytes);
  response->set_released_segments(trimmed->segments);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListPools(grpc::ServerContext*, const v1::ListPoolsRequest* request,
                                     v1::ListPoolsResponse* response) {
  auto pools = broker_->operators().ListPools(request->tenant(), request->device_uuid());
  if (!pools.ok()) return ToAnswer(pools.status());
  for (const BrokerOperators::PoolView& pool : *pools) *response->add_pools() = ToProto(pool);
  return grpc::Status::OK;
}

grpc::Status AdminService::SetPool(grpc::ServerContext* context, const v1::SetPoolRequest* request,
                                   v1::PoolInfo* response) {
  absl::StatusOr<PoolChange> change = FromProto(*request);
  if (!change.ok()) return ToAnswer(change.status());
  auto pool = broker_->operators().SetPool(request->tenant(), request->device_uuid(), *change);
  if (!pool.ok()) return ToAnswer(pool.status());
  spdlog::info("pool of tenant {} changed: {}", request->tenant(), request->ShortDebugString());
  Audit(context, {.event = AuditEvent::kPoolSet,
                  .tenant = request->tenant(),
                  .device = pool->device_uuid,
                  .changes = {request->ShortDebugString()}});
  *response = ToProto(*pool);
  return grpc::Status::OK;
}

grpc::Status AdminService::TrimPool(grpc::ServerContext* context,
                                    const v1::TrimPoolRequest* request, v1::PoolInfo* response) {
  auto pool = broker_->operators().TrimPool(request->tenant(), request->device_uuid(),
                                            request->keep_bytes());
  if (!pool.ok()) return ToAnswer(pool.status());
  Audit(context, {.event = AuditEvent::kPoolTrimmed,
                  .tenant = request->tenant(),
                  .device = pool->device_uuid});
  *response = ToProto(*pool);
  return grpc::Status::OK;
}

grpc::Status AdminService::WatchEvents(grpc::ServerContext* context,
                                       const v1::WatchEventsRequest* request,
                                       grpc::ServerWriter<v1::EventRecord>* writer) {
  return hooks_.events->Serve(
      *request, [context] { return context->IsCancelled(); },
      [writer](const v1::EventRecord& record) { return writer->Write(record); });
}

grpc::Status AdminService::Trace(grpc::ServerContext* context, const v1::TraceRequest* request,
                                 grpc::ServerWriter<v1::TraceChunk>* writer) {
  spdlog::info("an operator traces the daemon for {} ms", request->duration_ms());
  return hooks_.traces->Serve(
      *request, {.cancelled = [context] { return context->IsCancelled(); },
                 .write = [writer](const v1::TraceChunk& chunk) { return writer->Write(chunk); },
                 .cancel = [context] { context->TryCancel(); }});
}

grpc::Status AdminService::Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                                 v1::GetStatusResponse* response) {
  broker_->operators().SetDraining(!request->resume());
  spdlog::info(request->resume() ? "admitting again" : "draining: new requests are refused");
  Audit(context, {.event = request->resume() ? AuditEvent::kAdmitting : AuditEvent::kDraining});
  AnswerStatus(response);
  return grpc::Status::OK;
}

}  // namespace gpumemd
