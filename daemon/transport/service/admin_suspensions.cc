// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Admin that ask a session to suspend its memory, or to resume it, and those
// that do it to a publication.
#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/ids.h"
#include "daemon/transport/service/admin_service.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/service/unary_call.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

constexpr absl::Duration kTimeout = absl::Seconds(30);  // of a request that names none

absl::Time DeadlineOf(const grpc::ServerContext* context, uint64_t timeout_ms) {
  const absl::Duration timeout = timeout_ms == 0 ? kTimeout : FromMilliseconds(timeout_ms);
  return std::min(absl::Now() + timeout, absl::FromChrono(context->deadline()));
}

}  // namespace

absl::StatusOr<BrokerOperators::Moved> AdminService::MoveSession(const grpc::ServerContext* context,
                                                                 uint64_t session, bool resume,
                                                                 absl::string_view tag,
                                                                 uint64_t timeout_ms) {
  const absl::Time deadline = DeadlineOf(context, timeout_ms);
  absl::StatusOr<BrokerOperators::Moved> moved = broker_->operators().MoveSession(
      SessionId{session}, resume, tag, deadline, [&] { return ended_ || context->IsCancelled(); });
  if (ended_ && absl::IsCancelled(moved.status())) {
    return absl::UnavailableError("the daemon ends; the session may still do it");
  }
  if (!moved.ok()) return moved;
  spdlog::info("session {} of tenant {} has {} {} leases on an operator's request", session,
               moved->tenant, resume ? "resumed" : "suspended", moved->leases);
  Audit(context, {.event = resume ? AuditEvent::kLeasesResumed : AuditEvent::kLeasesSuspended,
                  .tenant = moved->tenant,
                  .session = SessionId{session},
                  .bytes = moved->bytes,
                  .count = moved->segments});
  return moved;
}

grpc::Status AdminService::SuspendSession(grpc::ServerContext* context,
                                          const v1::SuspendSessionRequest* request,
                                          v1::SuspendSessionResponse* response) {
  const auto moved = MoveSession(context, request->session_id(), /*resume=*/false, request->tag(),
                                 request->timeout_ms());
  if (!moved.ok()) return ToAnswer(moved.status());
  response->set_suspended_leases(static_cast<uint32_t>(moved->leases));
  response->set_moved_bytes(moved->bytes);
  response->set_resident_bytes(moved->resident_bytes);
  response->set_dropped_bytes(moved->dropped_bytes);
  return grpc::Status::OK;
}

grpc::Status AdminService::ResumeSession(grpc::ServerContext* context,
                                         const v1::ResumeSessionRequest* request,
                                         v1::ResumeSessionResponse* response) {
  const auto moved = MoveSession(context, request->session_id(), /*resume=*/true, request->tag(),
                                 request->timeout_ms());
  if (!moved.ok()) return ToAnswer(moved.status());
  response->set_resumed_leases(static_cast<uint32_t>(moved->leases));
  response->set_resumed_bytes(moved->bytes);
  return grpc::Status::OK;
}

void AdminService::AuditPublication(const grpc::ServerContext* context, AuditEvent event,
                                    const std::string& name,
                                    const BrokerSuspensions::PublicationMoved& moved) const {
  spdlog::info("publication {}, version {}: {} segments were {} by an operator", name,
               moved.version, moved.segments,
               event == AuditEvent::kPublicationSuspended ? "suspended" : "resumed");
  Audit(context, {.event = event,
                  .tenant = moved.tenant,
                  .publication = name,
                  .version = moved.version,
                  .bytes = moved.bytes,
                  .count = moved.segments});
}

grpc::Status AdminService::SuspendPublication(grpc::ServerContext* context,
                                              const v1::SuspendPublicationRequest* request,
                                              v1::SuspendPublicationResponse* response) {
  const auto moved = broker_->suspensions().SuspendPublication(request->name());
  if (!moved.ok()) return ToAnswer(moved.status());
  AuditPublication(context, AuditEvent::kPublicationSuspended, request->name(), *moved);
  response->set_version(moved->version);
  response->set_moved_segments(static_cast<uint32_t>(moved->segments));
  response->set_moved_bytes(moved->bytes);
  return grpc::Status::OK;
}

grpc::Status AdminService::ResumePublication(grpc::ServerContext* context,
                                             const v1::ResumePublicationRequest* request,
                                             v1::ResumePublicationResponse* response) {
  const auto moved = broker_->suspensions().ResumePublication(
      request->name(), DeadlineOf(context, request->timeout_ms()),
      [&] { return ended_ || context->IsCancelled(); });
  if (ended_ && absl::IsCancelled(moved.status())) {
    return ToAnswer(absl::UnavailableError("the daemon ends"));
  }
  if (!moved.ok()) return ToAnswer(moved.status());
  AuditPublication(context, AuditEvent::kPublicationResumed, request->name(), *moved);
  response->set_version(moved->version);
  response->set_resumed_segments(static_cast<uint32_t>(moved->segments));
  response->set_resumed_bytes(moved->bytes);
  return grpc::Status::OK;
}

}  // namespace gpumemd
