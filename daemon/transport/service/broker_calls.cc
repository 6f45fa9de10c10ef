// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Broker, but for Acquire and Attach (broker_service.cc) and those about
// publications.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/views.h"
#include "daemon/transport/peer/who_am_i.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/service/session_call.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

// Returns the place of a request about interprocess events, by its oneof `place`.
template <typename Request>
Events::Place PlaceOf(const Request& request) {
  Events::Place place;
  if (request.place_case() == Request::kLeaseId) {
    place.lease = LeaseId{request.lease_id()};
  } else {
    place.name = request.name();
  }
  return place;
}

// The tenant behind those that it is under, the outermost first.
std::vector<std::string> PathOf(const Broker& broker, std::string tenant) {
  std::vector<std::string> path;
  while (!tenant.empty() && std::find(path.begin(), path.end(), tenant) == path.end()) {
    path.insert(path.begin(), tenant);
    absl::StatusOr<TenantView> view = broker.views().GetTenant(tenant);
    tenant = view.ok() ? view->quota.parent : "";
  }
  return path;
}

// Gives the reason and ends.
class RefusedWatch final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedWatch(const absl::Status& why) { Finish(ToAnswer(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* BrokerService::ListDevices(Context* context, const Bytes* request,
                                                     Bytes* response) {
  if (parks_) return new ParkedCall<Reactor>;
  Reactor* reactor = context->DefaultReactor();
  absl::StatusOr<v1::ListDevicesResponse> answer = v1::ListDevicesResponse();
  if (auto parsed = ParseRequest<v1::ListDevicesRequest>(*request); !parsed.ok()) {
    answer = parsed.status();
  } else {
    for (const BrokerViews::DeviceView& device : broker_->views().Devices(/*ask_driver=*/true)) {
      if (IsHostTier(device.info)) continue;  // for operators alone
      *answer->add_devices() = ToProto(device);
    }
  }
  Answer(reactor, response, answer);
  return reactor;
}

absl::Status BrokerService::Deliver(SessionId session, uint64_t delivery_id,
                                    const Broker::Handover& handover, bool may_wait,
                                    std::optional<uint64_t> described) {
  if (!described) return sessions_->Deliver(session, delivery_id, handover, may_wait);
  v1::Delivery description;
  description.set_request_id(*described);
  for (const Broker::Handover::Item& item : handover.items) {
    *description.add_leases() = ToProto(item.lease);
  }
  return sessions_->Deliver(session, delivery_id, handover, may_wait, &description);
}

std::optional<absl::StatusOr<v1::OpenResponse>> BrokerService::DoOpen(
    const Broker::Call& call, const v1::OpenRequest& request, bool may_wait, bool describes) {
  std::vector<Secret> tickets;
  for (const std::string& text : request.tickets()) {
    Secret& ticket = tickets.emplace_back();
    if (text.size() != ticket.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a ticket is ", ticket.size(), " bytes; this has ", text.size()));
    }
    std::memcpy(ticket.data(), text.data(), ticket.size());
  }
  v1::OpenResponse response;
  response.set_delivery_id(next_delivery_++);
  absl::StatusOr<std::vector<LeaseView>> leases = broker_->Open(
      call, tickets, request.revocable(), request.request_id(),
      [&](const Broker::Handover& handover) {
        return Deliver(call.session(), response.delivery_id(), handover, may_wait,
                       describes ? std::optional(request.request_id()) : std::nullopt);
      });
  if (!may_wait && absl::IsDeadlineExceeded(leases.status())) return std::nullopt;
  if (!leases.ok()) return leases.status();
  for (const LeaseView& lease : *leases) *response.add_leases() = ToProto(lease);
  return response;
}

grpc::ServerUnaryReactor* BrokerService::Open(Context* context, const Bytes* request,
                                              Bytes* response) {
  return Serve<v1::OpenRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::OpenRequest& open, bool may_wait) {
        return DoOpen(call, open, may_wait, /*describes=*/false);
      });
}

grpc::ServerUnaryReactor* BrokerService::Share(Context* context, const Bytes* request,
                                               Bytes* response) {
  return Serve<v1::ShareRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::ShareRequest& share,
             bool) -> std::optional<absl::StatusOr<v1::ShareResponse>> {
        if (!v1::TicketScope_IsValid(share.scope())) {
          return absl::InvalidArgumentError(absl::StrCat(
              "there is no ticket scope ", static_cast<int>(share.scope()), "; use TENANT or ANY"));
        }
        const TicketScope scope =
            share.scope() == v1::TICKET_SCOPE_ANY ? TicketScope::kAny : TicketScope::kTenant;
        absl::StatusOr<Secret> ticket =
            broker_->Share(call, LeaseId{share.lease_id()}, scope, share.given_away());
        if (!ticket.ok()) return ticket.status();
        v1::ShareResponse answer;
        answer.set_ticket(ticket->data(), ticket->size());
        return answer;
      });
}

absl::StatusOr<v1::ReleaseResponse> BrokerService::DoRelease(const Broker::Call& call,
                                                             const v1::ReleaseRequest& request) {
  std::vector<LeaseId> leases;
  for (uint64_t lease : request.lease_ids()) leases.push_back(LeaseId{lease});
  const std::vector<uint64_t> requests(request.request_ids().begin(), request.request_ids().end());
  if (absl::Status done = broker_->Release(call, leases, requests); !done.ok()) return done;
  return v1::ReleaseResponse();
}

grpc::ServerUnaryReactor* BrokerService::Release(Context* context, const Bytes* request,
                                                 Bytes* response) {
  return Serve<v1::ReleaseRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::ReleaseRequest& release, bool) {
        return std::optional(DoRelease(call, release));
      });
}

grpc::ServerUnaryReactor* BrokerService::Reconcile(Context* context, const Bytes* request,
                                                   Bytes* response) {
  if (parks_) return new ParkedCall<Reactor>;
  Reactor* reactor = context->DefaultReactor();
  const auto answer = [&]() -> absl::StatusOr<v1::ReconcileResponse> {
    auto parsed = ParseFew<v1::ReconcileRequest>(*request);
    if (!parsed.ok()) return parsed.status();
    std::vector<LeaseId> leases;
    for (uint64_t lease : parsed->lease_ids()) leases.push_back(LeaseId{lease});
    const std::vector<uint64_t> requests(parsed->request_ids().begin(),
                                         parsed->request_ids().end());
    absl::StatusOr<std::vector<LeaseId>> unknown =
        broker_->Reconcile(TokenOf(*context), leases, requests);
    if (!unknown.ok()) return unknown.status();
    if (const auto session = broker_->SessionOf(TokenOf(*context)); session.ok()) {
      sessions_->Reconciled(*session);
    }
    v1::ReconcileResponse reconciled;
    for (LeaseId lease : *unknown) reconciled.add_unknown_lease_ids(ToInt(lease));
    return reconciled;
  }();
  Answer(reactor, response, answer);
  return reactor;
}

grpc::ServerUnaryReactor* BrokerService::RegisterIpcEvent(Context* context, const Bytes* request,
                                                          Bytes* response) {
  return Serve<v1::RegisterIpcEventRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::RegisterIpcEventRequest& event,
             bool) -> std::optional<absl::StatusOr<v1::RegisterIpcEventResponse>> {
        ExportData handle;
        if (event.handle().size() != handle.size()) {
          return absl::InvalidArgumentError(absl::StrCat("a cudaIpcEventHandle_t is ",
                                                         handle.size(), " bytes; this has ",
                                                         event.handle().size()));
        }
        std::memcpy(handle.data(), event.handle().data(), handle.size());
        absl::StatusOr<IpcEventId> id = broker_->RegisterEvent(
            call, PlaceOf(event), event.device_uuid(), handle, event.request_id());
        if (!id.ok()) return id.status();
        v1::RegisterIpcEventResponse answer;
        answer.set_event_id(ToInt(*id));
        return answer;
      });
}

grpc::ServerUnaryReactor* BrokerService::GetIpcEvents(Context* context, const Bytes* request,
                                                      Bytes* response) {
  return Serve<v1::GetIpcEventsRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::GetIpcEventsRequest& wanted,
             bool) -> std::optional<absl::StatusOr<v1::GetIpcEventsResponse>> {
        absl::StatusOr<std::vector<IpcEventView>> events =
            broker_->GetEvents(call, PlaceOf(wanted));
        if (!events.ok()) return events.status();
        v1::GetIpcEventsResponse answer;
        for (const IpcEventView& event : *events) *answer.add_events() = ToProto(event);
        return answer;
      });
}

grpc::ServerUnaryReactor* BrokerService::UnregisterIpcEvent(Context* context, const Bytes* request,
                                                            Bytes* response) {
  return Serve<v1::UnregisterIpcEventRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::UnregisterIpcEventRequest& event,
             bool) -> std::optional<absl::StatusOr<v1::UnregisterIpcEventResponse>> {
        absl::StatusOr<bool> handed_out =
            broker_->UnregisterEvent(call, IpcEventId{event.event_id()});
        if (!handed_out.ok()) return handed_out.status();
        v1::UnregisterIpcEventResponse answer;
        answer.set_handed_out(*handed_out);
        return answer;
      });
}

grpc::ServerUnaryReactor* BrokerService::WhoAmI(Context* context, const Bytes* request,
                                                Bytes* response) {
  return Serve<v1::WhoAmIRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::WhoAmIRequest&,
             bool) -> std::optional<absl::StatusOr<v1::WhoAmIResponse>> {
        absl::StatusOr<SessionServer::Recognition> who = sessions_->WhoIs(call.session());
        if (!who.ok()) return who.status();
        v1::WhoAmIResponse answer = ToProto(who->peer, who->match);
        std::vector<std::string> path = PathOf(*broker_, answer.tenant());
        answer.mutable_path()->Assign(path.begin(), path.end());
        return answer;
      });
}

absl::StatusOr<v1::GetUsageResponse> BrokerService::DoGetUsage(const Broker::Call& call) {
  absl::StatusOr<TenantView> tenant = broker_->Usage(call);
  if (!tenant.ok()) return tenant.status();
  v1::GetUsageResponse answer;
  *answer.mutable_usage() = ToProto(*tenant);
  *answer.mutable_quota() = ToProto(tenant->quota);
  return answer;
}

grpc::ServerUnaryReactor* BrokerService::GetUsage(Context* context, const Bytes* request,
                                                  Bytes* response) {
  return Serve<v1::GetUsageRequest>(context, request, response,
                                    [this](const Broker::Call& call, const v1::GetUsageRequest&,
                                           bool) { return std::optional(DoGetUsage(call)); });
}

grpc::ServerUnaryReactor* BrokerService::OpenMemoryPage(Context* context, const Bytes* request,
                                                        Bytes* response) {
  return Serve<v1::OpenMemoryPageRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::OpenMemoryPageRequest&,
             bool may_wait) -> std::optional<absl::StatusOr<v1::OpenMemoryPageResponse>> {
        v1::OpenMemoryPageResponse answer;
        answer.set_delivery_id(next_delivery_++);
        const auto devices =
            broker_->tenants().OpenMemoryPage(call, [&](const Broker::Handover& handover) {
              return Deliver(call.session(), answer.delivery_id(), handover, may_wait);
            });
        if (!may_wait && absl::IsDeadlineExceeded(devices.status())) return std::nullopt;
        if (!devices.ok()) return devices.status();
        for (const std::string& uuid : *devices) answer.add_device_uuids(uuid);
        return answer;
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* BrokerService::Watch(Context* context,
                                                                 const Bytes* request) {
  if (parks_) return new ParkedCall<grpc::ServerWriteReactor<Bytes>>;
  const auto refuse = [&](const absl::Status& why) { return new RefusedWatch(why); };
  absl::StatusOr<Broker::Call> call = broker_->Authenticate(TokenOf(*context));
  if (!call.ok()) return refuse(call.status());
  const auto parsed = ParseRequest<v1::WatchRequest>(*request);
  if (!parsed.ok()) return refuse(parsed.status());
  absl::StatusOr<std::string> tenant = broker_->TenantOf(*call);
  if (!tenant.ok()) return refuse(tenant.status());
  absl::Status watches =
      call->BecomeWatch(parsed->accepts_suspension(),
                        parsed->has_swappable() ? std::optional(parsed->swappable()) : std::nullopt,
                        parsed->serves_demotion());
  if (!watches.ok()) return refuse(watches);
  const SessionId session = call->session();
  const WatchHub::Serves serves{.suspension = parsed->accepts_suspension(),
                                .demotion = parsed->serves_demotion()};
  auto* watch = hub_->Start(context, *std::move(call), *std::move(tenant), serves);
  // The session may have ended before the hub knew of its watch.
  if (!broker_->IsLive(TokenOf(*context))) hub_->SessionEnded(session);
  return watch;
}

}  // namespace gpumemd
