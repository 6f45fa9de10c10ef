#include "daemon/transport/broker_service.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/grpc_status.h"
#include "daemon/transport/convert.h"

namespace gpumemd {
namespace {

using gpumem::ToGrpcStatus;
namespace v1 = gpumem::v1;

// How long an Acquire waits, at most, for memory that the driver is about to have back.
constexpr absl::Duration kDisposalWait = absl::Seconds(10);

absl::string_view TokenOf(const grpc::ServerContextBase& context) {
  auto it = context.client_metadata().find(gpumem::kTokenMetadata);
  if (it == context.client_metadata().end()) return {};
  return {it->second.data(), it->second.size()};
}

// Gives the reason and ends.
class RefusedWatch final : public grpc::ServerWriteReactor<v1::Event> {
 public:
  explicit RefusedWatch(const absl::Status& why) { Finish(ToGrpcStatus(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::Status BrokerService::ListDevices(grpc::ServerContext*, const v1::ListDevicesRequest*,
                                        v1::ListDevicesResponse* response) {
  for (const Broker::DeviceView& device : broker_->Devices(/*ask_driver=*/true)) {
    *response->add_devices() = ToProto(device);
  }
  return grpc::Status::OK;
}

grpc::Status BrokerService::Acquire(grpc::ServerContext* context,
                                    const v1::AcquireRequest* request,
                                    v1::AcquireResponse* response) {
  absl::StatusOr<Broker::Call> call = broker_->Authenticate(TokenOf(*context));
  if (!call.ok()) return ToGrpcStatus(call.status());
  absl::StatusOr<std::optional<Kind>> kind = FromProto(request->kind());
  if (!kind.ok()) return ToGrpcStatus(kind.status());
  const AcquireSpec spec{.device_uuid = request->device_uuid(),
                         .bytes = request->bytes(),
                         .kind = *kind,
                         .count = std::max(request->count(), 1u)};
  const absl::Time deadline =
      std::min(absl::FromChrono(context->deadline()), absl::Now() + kDisposalWait);
  const uint64_t delivery = next_delivery_++;
  absl::StatusOr<std::vector<LeaseView>> leases =
      broker_->Acquire(*call, spec, deadline, [&](const std::vector<Broker::Handover>& handovers) {
        return sessions_->Deliver(call->session(), delivery, handovers);
      });
  if (!leases.ok()) return ToGrpcStatus(leases.status());
  for (const LeaseView& lease : *leases) *response->add_leases() = ToProto(lease);
  response->set_delivery_id(delivery);
  return grpc::Status::OK;
}

grpc::Status BrokerService::Open(grpc::ServerContext* context, const v1::OpenRequest* request,
                                 v1::OpenResponse* response) {
  absl::StatusOr<Broker::Call> call = broker_->Authenticate(TokenOf(*context));
  if (!call.ok()) return ToGrpcStatus(call.status());
  std::vector<Secret> tickets;
  for (const std::string& text : request->tickets()) {
    Secret& ticket = tickets.emplace_back();
    if (text.size() != ticket.size()) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              absl::StrCat("a ticket is ", ticket.size(), " bytes; this has ", text.size())};
    }
    std::memcpy(ticket.data(), text.data(), ticket.size());
  }
  const uint64_t delivery = next_delivery_++;
  absl::StatusOr<std::vector<LeaseView>> leases =
      broker_->Open(*call, tickets, [&](const std::vector<Broker::Handover>& handovers) {
        return sessions_->Deliver(call->session(), delivery, handovers);
      });
  if (!leases.ok()) return ToGrpcStatus(leases.status());
  for (const LeaseView& lease : *leases) *response->add_leases() = ToProto(lease);
  response->set_delivery_id(delivery);
  return grpc::Status::OK;
}

grpc::Status BrokerService::Share(grpc::ServerContext* context, const v1::ShareRequest* request,
                                  v1::ShareResponse* response) {
  absl::StatusOr<Broker::Call> call = broker_->Authenticate(TokenOf(*context));
  if (!call.ok()) return ToGrpcStatus(call.status());
  const TicketScope scope =
      request->scope() == v1::TICKET_SCOPE_ANY ? TicketScope::kAny : TicketScope::kTenant;
  absl::StatusOr<Secret> ticket = broker_->Share(*call, LeaseId{request->lease_id()}, scope);
  if (!ticket.ok()) return ToGrpcStatus(ticket.status());
  response->set_ticket(ticket->data(), ticket->size());
  return grpc::Status::OK;
}

grpc::Status BrokerService::Release(grpc::ServerContext* context,
                                    const v1::ReleaseRequest* request, v1::ReleaseResponse*) {
  absl::StatusOr<Broker::Call> call = broker_->Authenticate(TokenOf(*context));
  if (!call.ok()) return ToGrpcStatus(call.status());
  std::vector<LeaseId> leases;
  for (uint64_t lease : request->lease_ids()) leases.push_back(LeaseId{lease});
  return ToGrpcStatus(broker_->Release(*call, leases));
}

grpc::Status BrokerService::GetUsage(grpc::ServerContext* context, const v1::GetUsageRequest*,
                                     v1::GetUsageResponse* response) {
  absl::StatusOr<Broker::Call> call = broker_->Authenticate(TokenOf(*context));
  if (!call.ok()) return ToGrpcStatus(call.status());
  absl::StatusOr<TenantView> tenant = broker_->Usage(*call);
  if (!tenant.ok()) return ToGrpcStatus(tenant.status());
  *response->mutable_usage() = ToProto(*tenant);
  *response->mutable_quota() = ToProto(tenant->quota);
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::Event>* BrokerService::Watch(grpc::CallbackServerContext* context,
                                                          const v1::WatchRequest*) {
  absl::StatusOr<Broker::Call> call = broker_->Authenticate(TokenOf(*context));
  if (!call.ok()) return new RefusedWatch(call.status());
  absl::StatusOr<std::string> tenant = broker_->TenantOf(*call);
  if (!tenant.ok()) return new RefusedWatch(tenant.status());
  return hub_->Start(context, *std::move(call), *std::move(tenant));
}

}  // namespace gpumemd
