// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Admin that ask a session to suspend, resume, demote or promote its memory,
// and those that suspend or resume a publication.
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

using Action = SuspensionRequests::Action;

// How an action is named in the log and in the audit.
struct Words {
  const char* done;
  AuditEvent event;
};

Words WordsOf(Action action) {
  switch (action) {
    case Action::kSuspend:
      return {"suspended", AuditEvent::kLeasesSuspended};
    case Action::kResume:
      return {"resumed", AuditEvent::kLeasesResumed};
    case Action::kDemote:
      return {"demoted", AuditEvent::kLeasesDemoted};
    case Action::kPromote:
      break;
  }
  return {"promoted", AuditEvent::kLeasesPromoted};
}

}  // namespace

template <typename Request>
absl::StatusOr<BrokerOperators::Moved> AdminService::MoveSession(const grpc::ServerContext* context,
                                                                 Action action,
                                                                 const Request& request) {
  const SessionId session{request.session_id()};
  const absl::Time deadline = DeadlineOf(context, request.timeout_ms());
  absl::StatusOr<BrokerOperators::Moved> moved = broker_->operators().MoveSession(
      session, action, request.tag(), deadline, [&] { return ended_ || context->IsCancelled(); });
  if (ended_ && absl::IsCancelled(moved.status())) {
    return absl::UnavailableError("the daemon ends; the session may still do it");
  }
  if (!moved.ok()) return moved;
  const Words words = WordsOf(action);
  spdlog::info("session {} of tenant {} has {} {} leases on an operator's request",
               request.session_id(), moved->tenant, words.done, moved->leases);
  Audit(context, {.event = words.event,
                  .tenant = moved->tenant,
                  .session = session,
                  .bytes = moved->bytes,
                  .count = moved->segments});
  return moved;
}

grpc::Status AdminService::SuspendSession(grpc::ServerContext* context,
                                          const v1::SuspendSessionRequest* request,
                                          v1::SuspendSessionResponse* response) {
  const auto moved = MoveSession(context, Action::kSuspend, *request);
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
  const auto moved = MoveSession(context, Action::kResume, *request);
  if (!moved.ok()) return ToAnswer(moved.status());
  response->set_resumed_leases(static_cast<uint32_t>(moved->leases));
  response->set_resumed_bytes(moved->bytes);
  return grpc::Status::OK;
}

grpc::Status AdminService::DemoteSession(grpc::ServerContext* context,
                                         const v1::DemoteSessionRequest* request,
                                         v1::DemoteSessionResponse* response) {
  const auto moved = MoveSession(context, Action::kDemote, *request);
  if (!moved.ok()) return ToAnswer(moved.status());
  response->set_demoted_leases(static_cast<uint32_t>(moved->leases));
  response->set_demoted_bytes(moved->bytes);
  return grpc::Status::OK;
}

grpc::Status AdminService::PromoteSession(grpc::ServerContext* context,
                                          const v1::PromoteSessionRequest* request,
                                          v1::PromoteSessionResponse* response) {
  const auto moved = MoveSession(context, Action::kPromote, *request);
  if (!moved.ok()) return ToAnswer(moved.status());
  response->set_promoted_leases(static_cast<uint32_t>(moved->leases));
  response->set_promoted_bytes(moved->bytes);
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
  BrokerSuspensions::PublicationMoved moved;
  const absl::Status suspended = broker_->suspensions().SuspendPublication(request->name(), moved);
  // What has moved is recorded whatever came then.
  if (suspended.ok() || moved.segments > 0) {
    AuditPublication(context, AuditEvent::kPublicationSuspended, request->name(), moved);
  }
  if (!suspended.ok()) return ToAnswer(suspended);
  response->set_version(moved.version);
  response->set_moved_segments(static_cast<uint32_t>(moved.segments));
  response->set_moved_bytes(moved.bytes);
  return grpc::Status::OK;
}

grpc::Status AdminService::ResumePublication(grpc::ServerContext* context,
                                             const v1::ResumePublicationRequest* request,
                                             v1::ResumePublicationResponse* response) {
  BrokerSuspensions::PublicationMoved moved;
  const absl::Status resumed = broker_->suspensions().ResumePublication(
      request->name(), DeadlineOf(context, request->timeout_ms()),
      [&] { return ended_ || context->IsCancelled(); }, moved);
  if (resumed.ok() || moved.segments > 0) {
    AuditPublication(context, AuditEvent::kPublicationResumed, request->name(), moved);
  }
  if (ended_ && absl::IsCancelled(resumed)) {
    return ToAnswer(absl::UnavailableError("the daemon ends"));
  }
  if (!resumed.ok()) return ToAnswer(resumed);
  response->set_version(moved.version);
  response->set_resumed_segments(static_cast<uint32_t>(moved.segments));
  response->set_resumed_bytes(moved.bytes);
  return grpc::Status::OK;
}

}  // namespace gpumemd
