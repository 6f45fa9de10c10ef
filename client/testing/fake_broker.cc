// SPDX-License-Identifier: Apache-2.0
// The calls that a FakeDaemon serves.
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/testing/fake_daemon.h"
#include "common/endpoints.h"
#include "common/unique_fd.h"

namespace gpumem::internal {
namespace {

// Returns a ticket that encodes its lease, in 32 bytes.
std::string TicketOf(uint64_t lease) {
  std::string ticket = absl::StrCat(lease);
  ticket.resize(32, ' ');
  return ticket;
}

}  // namespace

class FakeDaemon::Service : public v1::Broker::Service {
 public:
  explicit Service(FakeDaemon* daemon) : daemon_(daemon) {}

  grpc::Status ListDevices(grpc::ServerContext*, const v1::ListDevicesRequest*,
                           v1::ListDevicesResponse* response) override {
    for (const v1::Device& device : daemon_->Devices()) {
      *response->add_devices() = device;
      response->mutable_devices()->rbegin()->set_context_pid(daemon_->context_pid_);
    }
    return grpc::Status::OK;
  }

  grpc::Status Acquire(grpc::ServerContext* context, const v1::AcquireRequest* request,
                       v1::AcquireResponse* response) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    if (daemon_->script_.acquire_waiting) {
      const auto is_cancelled = [context] { return context->IsCancelled(); };
      return daemon_->script_.acquire_waiting(is_cancelled, session, *request, response);
    }
    return daemon_->script_.acquire ? daemon_->script_.acquire(session, *request, response)
                                    : daemon_->Grant(session, *request, response);
  }

  grpc::Status Open(grpc::ServerContext* context, const v1::OpenRequest* request,
                    v1::OpenResponse* response) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    std::vector<v1::Lease> leases = daemon_->GrantedFor(session, request->request_id());
    std::vector<int> fds;
    if (!leases.empty()) {
      for (const v1::Lease& lease : leases) {
        *response->add_leases() = lease;
        fds.push_back(daemon_->Memory(lease));
      }
      response->set_delivery_id(daemon_->NewDeliveryId());
      daemon_->Deliver(session, response->delivery_id(), leases, fds);
      return grpc::Status::OK;
    }
    for (const std::string& ticket : request->tickets()) {
      uint64_t lease_id = 0;
      if (!absl::SimpleAtoi(ticket, &lease_id)) return NoSuch("ticket");
      std::lock_guard lock(daemon_->mutex_);
      const auto found = daemon_->leases_.find(lease_id);
      if (found == daemon_->leases_.end()) return NoSuch("ticket");
      v1::Lease lease = found->second.lease;
      if (lease.revocable() && !request->revocable()) {
        return {grpc::StatusCode::FAILED_PRECONDITION, "the segment is revocable"};
      }
      lease.set_lease_id(daemon_->next_lease_++);
      Held& held = daemon_->leases_[lease.lease_id()];
      held = {.lease = lease,
              .memory = UniqueFd(::dup(found->second.memory.get())),
              .session = session,
              .request = request->request_id()};
      leases.push_back(lease);
      if (HasFd(lease)) fds.push_back(held.memory.get());
      *response->add_leases() = lease;
    }
    response->set_delivery_id(daemon_->NewDeliveryId());
    daemon_->Deliver(session, response->delivery_id(), leases, fds);
    return grpc::Status::OK;
  }

  grpc::Status Converse(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) override {
    if (daemon_->script_.older) return {grpc::StatusCode::UNIMPLEMENTED, ""};
    if (SessionOf(*context) == 0) return NoSession();
    return daemon_->Converse(*this, context, stream);
  }

  grpc::Status Share(grpc::ServerContext* context, const v1::ShareRequest* request,
                     v1::ShareResponse* response) override {
    if (SessionOf(*context) == 0) return NoSession();
    if (daemon_->script_.share) {
      grpc::Status status = daemon_->script_.share(*request);
      if (!status.ok()) return status;
    }
    response->set_ticket(TicketOf(request->lease_id()));
    return grpc::Status::OK;
  }

  grpc::Status PrepareSuspend(grpc::ServerContext* context,
                              const v1::PrepareSuspendRequest* request,
                              v1::PrepareSuspendResponse* response) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    grpc::Status status = daemon_->script_.prepare_suspend
                              ? daemon_->script_.prepare_suspend(*request)
                              : grpc::Status::OK;
    if (status.ok()) status = daemon_->CheckHeld(session, request->lease_ids());
    std::lock_guard lock(daemon_->mutex_);
    daemon_->reservation_ = status.ok() ? daemon_->next_reservation_++ : 0;
    response->set_suspension_id(daemon_->reservation_);
    return status;
  }

  grpc::Status Suspend(grpc::ServerContext* context, const v1::SuspendRequest* request,
                       v1::SuspendResponse*) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    const auto is_cancelled = [context] { return context->IsCancelled(); };
    grpc::Status status = daemon_->script_.suspend
                              ? daemon_->script_.suspend(is_cancelled, *request)
                              : grpc::Status::OK;
    if (status.ok()) status = daemon_->CheckHeld(session, request->lease_ids());
    if (!status.ok()) return status;
    daemon_->SuspendLeases(request->lease_ids());
    return daemon_->script_.suspended ? daemon_->script_.suspended(is_cancelled) : status;
  }

  grpc::Status ReportActivity(grpc::ServerContext* context, const v1::ReportActivityRequest*,
                              v1::ReportActivityResponse*) override {
    if (SessionOf(*context) == 0) return NoSession();
    ++daemon_->activity_reports_;
    return grpc::Status::OK;
  }

  grpc::Status CancelSuspend(grpc::ServerContext* context, const v1::CancelSuspendRequest* request,
                             v1::CancelSuspendResponse*) override {
    if (SessionOf(*context) == 0) return NoSession();
    std::lock_guard lock(daemon_->mutex_);
    if (request->suspension_id() == daemon_->reservation_) daemon_->reservation_ = 0;
    return grpc::Status::OK;
  }

  grpc::Status Resume(grpc::ServerContext* context, const v1::ResumeRequest* request,
                      v1::ResumeResponse* response) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    const auto is_cancelled = [context] { return context->IsCancelled(); };
    grpc::Status status = daemon_->script_.resume_leases
                              ? daemon_->script_.resume_leases(is_cancelled, *request)
                              : grpc::Status::OK;
    if (status.ok()) status = daemon_->CheckHeld(session, request->lease_ids());
    if (!status.ok()) return status;
    daemon_->ResumeLeases(session, request->lease_ids(), response);
    return daemon_->script_.resumed ? daemon_->script_.resumed(is_cancelled) : status;
  }

  grpc::Status ExchangeLeases(grpc::ServerContext* context,
                              const v1::ExchangeLeasesRequest* request,
                              v1::ExchangeLeasesResponse*) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    const auto is_cancelled = [context] { return context->IsCancelled(); };
    grpc::Status status = daemon_->script_.exchange
                              ? daemon_->script_.exchange(is_cancelled, *request)
                              : grpc::Status::OK;
    if (status.ok()) status = daemon_->Exchange(session, *request);
    if (!status.ok() || request->check_only() || !daemon_->script_.exchanged) return status;
    return daemon_->script_.exchanged(is_cancelled);
  }

  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse*) override {
    ++daemon_->release_calls_;
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    if (daemon_->script_.release) {
      grpc::Status status = daemon_->script_.release(*request);
      if (!status.ok()) return status;
    }
    std::lock_guard lock(daemon_->mutex_);
    for (uint64_t id : request->lease_ids()) {
      if (daemon_->leases_.count(id) == 0) return NoSuch("lease");
    }
    for (uint64_t id : request->lease_ids()) daemon_->leases_.erase(id);
    const std::set<uint64_t> requests(request->request_ids().begin(), request->request_ids().end());
    std::erase_if(daemon_->leases_, [&](const auto& entry) {
      return entry.second.session == session && requests.contains(entry.second.request);
    });
    daemon_->leases_changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status Reconcile(grpc::ServerContext* context, const v1::ReconcileRequest* request,
                         v1::ReconcileResponse* response) override {
    const uint64_t session = SessionOf(*context, /*reconciles=*/true);
    if (session == 0) return NoSession();
    if (daemon_->script_.reconcile) {
      grpc::Status status =
          daemon_->script_.reconcile([context] { return context->IsCancelled(); }, *request);
      if (!status.ok()) return status;
    }
    const std::set<uint64_t> leases(request->lease_ids().begin(), request->lease_ids().end());
    const std::set<uint64_t> requests(request->request_ids().begin(), request->request_ids().end());
    std::lock_guard lock(daemon_->mutex_);
    std::erase_if(daemon_->leases_, [&](const auto& entry) {
      const Held& held = entry.second;
      return held.session == session && !leases.contains(entry.first) &&
             (held.request == 0 || !requests.contains(held.request));
    });
    for (const uint64_t id : leases) {
      const auto found = daemon_->leases_.find(id);
      if (found == daemon_->leases_.end() || found->second.session != session) {
        response->add_unknown_lease_ids(id);
      }
    }
    daemon_->sessions_[session - 1].state = Known::State::kLive;
    daemon_->leases_changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status GetUsage(grpc::ServerContext* context, const v1::GetUsageRequest*,
                        v1::GetUsageResponse* response) override {
    if (SessionOf(*context) == 0) return NoSession();
    if (daemon_->script_.usage) return daemon_->script_.usage();
    v1::Usage* usage = response->mutable_usage();
    usage->set_tenant("testers");
    usage->set_charged_bytes(12);
    usage->set_segments(3);
    usage->set_sessions(2);
    if (!daemon_->script_.device_usages.empty()) {
      usage->mutable_devices()->Assign(daemon_->script_.device_usages.begin(),
                                       daemon_->script_.device_usages.end());
      return grpc::Status::OK;
    }
    v1::DeviceUsage* device = usage->add_devices();
    device->set_device_uuid(kDevice);
    device->set_leased_bytes(5);
    device->set_retained_bytes(4);
    device->set_lingering_bytes(3);
    device->set_charged_bytes(12);
    device->set_limit_bytes(100);
    device->set_peak_bytes(50);
    return grpc::Status::OK;
  }

  grpc::Status RegisterIpcEvent(grpc::ServerContext* context,
                                const v1::RegisterIpcEventRequest* request,
                                v1::RegisterIpcEventResponse* response) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    std::unique_lock lock(daemon_->mutex_);
    Registered registered;
    registered.request = *request;
    for (const auto& [id, other] : daemon_->events_) {
      if (request->request_id() != 0 && other.request.request_id() == request->request_id() &&
          other.event.session_id() == session) {
        response->set_event_id(id);
        return grpc::Status::OK;
      }
      if (request->has_name() && other.request.name() == request->name()) {
        return {grpc::StatusCode::ALREADY_EXISTS, "the tenant has an event of that name"};
      }
    }
    if (request->has_lease_id()) {
      const auto found = daemon_->leases_.find(request->lease_id());
      if (found == daemon_->leases_.end()) return NoSuch("lease");
      registered.segment_id = found->second.lease.segment_id();
    }
    registered.event.set_event_id(daemon_->next_event_++);
    registered.event.set_device_uuid(request->device_uuid());
    registered.event.set_handle(request->handle());
    registered.event.set_session_id(session);
    response->set_event_id(registered.event.event_id());
    daemon_->events_[response->event_id()] = registered;
    lock.unlock();
    if (!daemon_->script_.register_event) return grpc::Status::OK;
    return daemon_->script_.register_event([context] { return context->IsCancelled(); });
  }

  grpc::Status GetIpcEvents(grpc::ServerContext* context, const v1::GetIpcEventsRequest* request,
                            v1::GetIpcEventsResponse* response) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    std::lock_guard lock(daemon_->mutex_);
    const auto lease = daemon_->leases_.find(request->lease_id());
    for (auto& [id, other] : daemon_->events_) {
      const bool wanted = request->has_name()
                              ? other.request.name() == request->name()
                              : lease != daemon_->leases_.end() &&
                                    other.segment_id == lease->second.lease.segment_id();
      if (!wanted) continue;
      other.handed_out |= other.event.session_id() != session;
      *response->add_events() = other.event;
    }
    return response->events_size() > 0 ? grpc::Status::OK : NoSuch("event");
  }

  grpc::Status UnregisterIpcEvent(grpc::ServerContext* context,
                                  const v1::UnregisterIpcEventRequest* request,
                                  v1::UnregisterIpcEventResponse* response) override {
    if (SessionOf(*context) == 0) return NoSession();
    std::lock_guard lock(daemon_->mutex_);
    const auto found = daemon_->events_.find(request->event_id());
    if (found == daemon_->events_.end()) return NoSuch("event");
    response->set_handed_out(found->second.handed_out);
    daemon_->events_.erase(found);
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::Event>* writer) override {
    if (SessionOf(*context) == 0) return NoSession();
    std::unique_lock lock(daemon_->mutex_);
    ++daemon_->watches_;
    daemon_->watches_changed_.notify_all();
    size_t written = 0;
    while (!daemon_->watches_end_ && !context->IsCancelled()) {
      if (written == daemon_->told_.size()) {
        // Cancellation gives no notification.
        daemon_->watches_changed_.wait_for(lock, std::chrono::milliseconds(10));
        continue;
      }
      const v1::Event event = daemon_->told_[written++];
      if (event.has_suspension_requested() && !request->accepts_suspension()) continue;
      if (event.suspension_requested().action() != 0 && !request->serves_demotion()) continue;
      lock.unlock();
      writer->Write(event);
      lock.lock();
    }
    --daemon_->watches_;
    daemon_->watches_changed_.notify_all();
    return daemon_->watches_end_.value_or(grpc::Status::CANCELLED);
  }

 private:
  static grpc::Status NoSuch(const std::string& what) {
    return {grpc::StatusCode::NOT_FOUND, "no such " + what};
  }
  static grpc::Status NoSession() { return {grpc::StatusCode::UNAUTHENTICATED, "no session"}; }

  uint64_t SessionOf(const grpc::ServerContext& context, bool reconciles = false) {
    const auto token = context.client_metadata().find(kTokenMetadata);
    if (token == context.client_metadata().end()) return 0;
    std::lock_guard lock(daemon_->mutex_);
    for (uint64_t id = 1; id <= daemon_->sessions_.size(); ++id) {
      if (token->second != grpc::string_ref(TokenOf(id))) continue;
      const Known::State state = daemon_->sessions_[id - 1].state;
      const bool early = state == Known::State::kBack && !reconciles;
      if (early) ++daemon_->early_calls_;
      return early || state == Known::State::kAway ? 0 : id;
    }
    return 0;
  }

  FakeDaemon* const daemon_;
};

std::unique_ptr<grpc::Service> FakeDaemon::MakeService() { return std::make_unique<Service>(this); }

}  // namespace gpumem::internal
