// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Broker that suspend leases, or exchange their segments. Resume may wait
// for memory (broker_service.cc).
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/session_call.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

template <typename Request>
std::vector<LeaseId> LeasesOf(const Request& request) {
  std::vector<LeaseId> leases;
  leases.reserve(static_cast<size_t>(request.lease_ids_size()));
  for (uint64_t lease : request.lease_ids()) leases.push_back(LeaseId{lease});
  return leases;
}

}  // namespace

grpc::ServerUnaryReactor* BrokerService::PrepareSuspend(Context* context, const Bytes* request,
                                                        Bytes* response) {
  return Serve<v1::PrepareSuspendRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::PrepareSuspendRequest& prepare,
             bool) -> std::optional<absl::StatusOr<v1::PrepareSuspendResponse>> {
        auto reserved = broker_->suspensions().Prepare(call, LeasesOf(prepare));
        if (!reserved.ok()) return reserved.status();
        v1::PrepareSuspendResponse answer;
        answer.set_suspension_id(reserved->id);
        answer.set_bytes(reserved->bytes);
        return answer;
      });
}

grpc::ServerUnaryReactor* BrokerService::Suspend(Context* context, const Bytes* request,
                                                 Bytes* response) {
  return Serve<v1::SuspendRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::SuspendRequest& suspend,
             bool may_wait) -> std::optional<absl::StatusOr<v1::SuspendResponse>> {
        if (!may_wait) return std::nullopt;  // it copies
        auto suspended =
            broker_->suspensions().Suspend(call, LeasesOf(suspend), suspend.suspension_id());
        if (!suspended.ok()) return suspended.status();
        v1::SuspendResponse answer;
        answer.set_moved_bytes(suspended->moved_bytes);
        answer.set_resident_bytes(suspended->resident_bytes);
        answer.set_dropped_bytes(suspended->dropped_bytes);
        return answer;
      });
}

grpc::ServerUnaryReactor* BrokerService::CancelSuspend(Context* context, const Bytes* request,
                                                       Bytes* response) {
  return Serve<v1::CancelSuspendRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::CancelSuspendRequest& cancel,
             bool) -> std::optional<absl::StatusOr<v1::CancelSuspendResponse>> {
        broker_->suspensions().Cancel(call, cancel.suspension_id());
        return v1::CancelSuspendResponse();
      });
}

grpc::ServerUnaryReactor* BrokerService::ExchangeLeases(Context* context, const Bytes* request,
                                                        Bytes* response) {
  return Serve<v1::ExchangeLeasesRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::ExchangeLeasesRequest& exchange,
             bool) -> std::optional<absl::StatusOr<v1::ExchangeLeasesResponse>> {
        std::vector<Exchanges::Pair> pairs;
        pairs.reserve(static_cast<size_t>(exchange.pairs_size()));
        for (const v1::ExchangeLeasesRequest::Pair& pair : exchange.pairs()) {
          pairs.push_back({.lease = LeaseId{pair.lease_id()},
                           .other = LeaseId{pair.other_lease_id()},
                           .segment = SegmentId{pair.segment_id()},
                           .other_segment = SegmentId{pair.other_segment_id()}});
        }
        absl::Status exchanged =
            broker_->suspensions().Exchange(call, pairs, exchange.check_only());
        if (!exchanged.ok()) return exchanged;
        return v1::ExchangeLeasesResponse();
      });
}

grpc::ServerUnaryReactor* BrokerService::ReportActivity(Context* context, const Bytes* request,
                                                        Bytes* response) {
  return Serve<v1::ReportActivityRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::ReportActivityRequest&,
             bool) -> std::optional<absl::StatusOr<v1::ReportActivityResponse>> {
        broker_->suspensions().ReportActivity(call);
        return v1::ReportActivityResponse();
      });
}

}  // namespace gpumemd
