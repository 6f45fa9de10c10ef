// SPDX-License-Identifier: Apache-2.0
// gpumem.v1.Admin: translates the operators' calls.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/quota_control.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/identity/pods.h"
#include "daemon/transport/service/event_stream.h"
#include "daemon/transport/service/trace_stream.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"

namespace gpumemd {

class AdminService : public gpumem::v1::Admin::Service {
 public:
  // Functions of the server that the broker lacks. Thread-safe.
  struct Hooks {
    std::function<void(gpumem::v1::GetStatusResponse&)> fill_status;
    std::function<absl::StatusOr<gpumem::v1::GetHistoryResponse>(
        const gpumem::v1::GetHistoryRequest&)>
        history;
    std::function<absl::StatusOr<gpumem::v1::ReloadResponse>(const std::vector<AuditOperator>& by)>
        reload;
    // Returns what `reload` would, and changes nothing.
    std::function<absl::StatusOr<gpumem::v1::ReloadResponse>()> check_reload;
    // Returns the possible callers, by the context's peer(): PeerBook::Find.
    std::function<std::vector<AuditOperator>(const std::string& peer)> who;
    AuditSink* audit = nullptr;      // outlives this
    EventStreams* events = nullptr;  // the same
    PodBook* pods = nullptr;         // the same
    TraceStreams* traces = nullptr;  // the same
  };
  // `broker` and `quotas` outlive this.
  AdminService(Broker* broker, QuotaControl* quotas, Hooks hooks)
      : broker_(broker), quotas_(quotas), hooks_(std::move(hooks)) {}

  grpc::Status GetStatus(grpc::ServerContext* context, const gpumem::v1::GetStatusRequest* request,
                         gpumem::v1::GetStatusResponse* response) override;
  grpc::Status ListTenants(grpc::ServerContext* context,
                           const gpumem::v1::ListTenantsRequest* request,
                           gpumem::v1::ListTenantsResponse* response) override;
  grpc::Status ListSessions(grpc::ServerContext* context,
                            const gpumem::v1::ListSessionsRequest* request,
                            gpumem::v1::ListSessionsResponse* response) override;
  grpc::Status ListSegments(grpc::ServerContext* context,
                            const gpumem::v1::ListSegmentsRequest* request,
                            gpumem::v1::ListSegmentsResponse* response) override;
  grpc::Status ListHolders(grpc::ServerContext*, const gpumem::v1::ListHoldersRequest* request,
                           gpumem::v1::ListHoldersResponse* response) override;
  grpc::Status ListWaiting(grpc::ServerContext*, const gpumem::v1::ListWaitingRequest* request,
                           gpumem::v1::ListWaitingResponse* response) override;
  grpc::Status ListPublications(grpc::ServerContext*,
                                const gpumem::v1::ListPublicationsRequest* request,
                                gpumem::v1::ListPublicationsResponse* response) override;
  grpc::Status GetPublication(grpc::ServerContext*,
                              const gpumem::v1::GetPublicationRequest* request,
                              gpumem::v1::GetPublicationResponse* response) override;
  grpc::Status Unpublish(grpc::ServerContext*, const gpumem::v1::UnpublishRequest* request,
                         gpumem::v1::UnpublishResponse* response) override;
  grpc::Status GetQuota(grpc::ServerContext* context, const gpumem::v1::GetQuotaRequest* request,
                        gpumem::v1::GetQuotaResponse* response) override;
  // Calls about tenants made at run time (admin_tenants.cc).
  grpc::Status CreateTenant(grpc::ServerContext* context,
                            const gpumem::v1::CreateTenantRequest* request,
                            gpumem::v1::TenantInfo* response) override;
  grpc::Status UpdateTenant(grpc::ServerContext* context,
                            const gpumem::v1::UpdateTenantRequest* request,
                            gpumem::v1::TenantInfo* response) override;
  grpc::Status EndTenant(grpc::ServerContext* context, const gpumem::v1::EndTenantRequest* request,
                         gpumem::v1::EndTenantResponse* response) override;
  grpc::Status GetTenantUsage(grpc::ServerContext* context,
                              const gpumem::v1::GetTenantUsageRequest* request,
                              gpumem::v1::GetTenantUsageResponse* response) override;
  grpc::Status GetHistory(grpc::ServerContext* context,
                          const gpumem::v1::GetHistoryRequest* request,
                          gpumem::v1::GetHistoryResponse* response) override;
  // Calls about Kubernetes' pods (admin_pods.cc).
  grpc::Status SetPods(grpc::ServerContext* context, const gpumem::v1::SetPodsRequest* request,
                       gpumem::v1::SetPodsResponse* response) override;
  grpc::Status ListPods(grpc::ServerContext* context, const gpumem::v1::ListPodsRequest* request,
                        gpumem::v1::ListPodsResponse* response) override;
  grpc::Status SetQuota(grpc::ServerContext* context, const gpumem::v1::SetQuotaRequest* request,
                        gpumem::v1::GetQuotaResponse* response) override;
  grpc::Status UnsetQuota(grpc::ServerContext* context,
                          const gpumem::v1::UnsetQuotaRequest* request,
                          gpumem::v1::GetQuotaResponse* response) override;
  grpc::Status Reload(grpc::ServerContext* context, const gpumem::v1::ReloadRequest* request,
                      gpumem::v1::ReloadResponse* response) override;
  grpc::Status CheckReload(grpc::ServerContext* context,
                           const gpumem::v1::CheckReloadRequest* request,
                           gpumem::v1::ReloadResponse* response) override;
  grpc::Status Trim(grpc::ServerContext* context, const gpumem::v1::TrimRequest* request,
                    gpumem::v1::TrimResponse* response) override;
  grpc::Status ListPools(grpc::ServerContext* context, const gpumem::v1::ListPoolsRequest* request,
                         gpumem::v1::ListPoolsResponse* response) override;
  grpc::Status SetPool(grpc::ServerContext* context, const gpumem::v1::SetPoolRequest* request,
                       gpumem::v1::PoolInfo* response) override;
  grpc::Status TrimPool(grpc::ServerContext* context, const gpumem::v1::TrimPoolRequest* request,
                        gpumem::v1::PoolInfo* response) override;
  grpc::Status WatchEvents(grpc::ServerContext* context,
                           const gpumem::v1::WatchEventsRequest* request,
                           grpc::ServerWriter<gpumem::v1::EventRecord>* writer) override;
  grpc::Status Trace(grpc::ServerContext* context, const gpumem::v1::TraceRequest* request,
                     grpc::ServerWriter<gpumem::v1::TraceChunk>* writer) override;
  grpc::Status SuspendSession(grpc::ServerContext* context,
                              const gpumem::v1::SuspendSessionRequest* request,
                              gpumem::v1::SuspendSessionResponse* response) override;
  grpc::Status ResumeSession(grpc::ServerContext* context,
                             const gpumem::v1::ResumeSessionRequest* request,
                             gpumem::v1::ResumeSessionResponse* response) override;
  grpc::Status DemoteSession(grpc::ServerContext* context,
                             const gpumem::v1::DemoteSessionRequest* request,
                             gpumem::v1::DemoteSessionResponse* response) override;
  grpc::Status PromoteSession(grpc::ServerContext* context,
                              const gpumem::v1::PromoteSessionRequest* request,
                              gpumem::v1::PromoteSessionResponse* response) override;
  grpc::Status SuspendPublication(grpc::ServerContext* context,
                                  const gpumem::v1::SuspendPublicationRequest* request,
                                  gpumem::v1::SuspendPublicationResponse* response) override;
  grpc::Status ResumePublication(grpc::ServerContext* context,
                                 const gpumem::v1::ResumePublicationRequest* request,
                                 gpumem::v1::ResumePublicationResponse* response) override;
  grpc::Status Drain(grpc::ServerContext* context, const gpumem::v1::DrainRequest* request,
                     gpumem::v1::GetStatusResponse* response) override;

  // Ends waits for sessions soon, and all later ones (admin_suspensions.cc).
  void EndWaits() { ended_ = true; }

 private:
  void AnswerStatus(gpumem::v1::GetStatusResponse* response);
  gpumem::v1::TenantInfo Describe(const TenantView& tenant) const;
  std::vector<AuditOperator> Caller(const grpc::ServerContext* context) const;
  // Records the caller's action in the audit.
  void Audit(const grpc::ServerContext* context, AuditRecord record) const;
  // Asks the session to suspend, resume, demote or promote, and waits until it has. Audits it.
  // `request`: of the call for that action.
  template <typename Request>
  absl::StatusOr<BrokerOperators::Moved> MoveSession(const grpc::ServerContext* context,
                                                     SuspensionRequests::Action action,
                                                     const Request& request);
  void AuditPublication(const grpc::ServerContext* context, AuditEvent event,
                        const std::string& name,
                        const BrokerSuspensions::PublicationMoved& moved) const;

  Broker* const broker_;
  QuotaControl* const quotas_;
  const Hooks hooks_;
  std::atomic<bool> ended_{false};
};

}  // namespace gpumemd
