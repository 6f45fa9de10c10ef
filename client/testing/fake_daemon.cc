#include "client/testing/fake_daemon.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"

namespace gpumem::internal {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

// Beside the session socket; only the daemon itself connects to it.
constexpr char kGrpcSocket[] = "grpc.sock";

v1::Device TheDevice() {
  v1::Device device;
  device.set_device_uuid(FakeDaemon::kDevice);
  device.set_name("fake");
  device.set_backend(v1::BACKEND_HOST);
  device.set_capacity_bytes(1 << 30);
  device.set_granularity_bytes(FakeDaemon::kGranularity);
  for (v1::Kind kind : {v1::KIND_VMM, v1::KIND_MEMPOOL, v1::KIND_IPC}) device.add_kinds(kind);
  return device;
}

v1::Device ThePinnedDevice() {
  v1::Device device = TheDevice();
  device.set_device_uuid(FakeDaemon::kPinnedDevice);
  device.clear_kinds();
  device.add_kinds(v1::KIND_PINNED);
  return device;
}

bool HasFd(const v1::Lease& lease) {
  return lease.kind() == v1::KIND_VMM || lease.kind() == v1::KIND_PINNED;
}

std::string TokenOf(uint64_t session) { return absl::StrCat("token\xff", session); }

// Returns a ticket that encodes its lease, in 32 bytes.
std::string TicketOf(uint64_t lease) {
  std::string ticket = absl::StrCat(lease);
  ticket.resize(32, ' ');
  return ticket;
}

}  // namespace

size_t OpenFds() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

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
    return grpc::Status::OK;
  }

  grpc::Status Reconcile(grpc::ServerContext* context, const v1::ReconcileRequest* request,
                         v1::ReconcileResponse* response) override {
    ++daemon_->reconcile_calls_;
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

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
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

FakeDaemon::FakeDaemon(Script script) : script_(std::move(script)) {
  char name[] = "/tmp/fake-daemon-XXXXXX";
  runtime_dir_ = ::mkdtemp(name);
  Serve();
}

void FakeDaemon::Serve() {
  ++generation_;
  next_delivery_ = 1;  // as a daemon that starts
  service_ = std::make_unique<Service>(this);
  listener_ = ListenUnix(SocketPath(runtime_dir_, kSessionSocket), SOCK_SEQPACKET, 0600).value();
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + SocketPath(runtime_dir_, kGrpcSocket),
                           grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  acceptor_ = std::thread([this] { Accept(); });
}

FakeDaemon::~FakeDaemon() {
  Crash();
  std::filesystem::remove_all(runtime_dir_);
}

void FakeDaemon::Accept() {
  while (true) {
    pollfd wait = {listener_.get(), POLLIN, 0};
    ::poll(&wait, 1, -1);
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) return;  // Crash() has closed the listener
    Meet(std::move(socket));
  }
}

void FakeDaemon::Meet(UniqueFd socket) {
  v1::Hello hello;
  if (!script_.hello) {
    hello = ReadHello(socket.get());
    if (!hello.resume_token().empty()) return Resume(std::move(socket), hello);
  }
  std::unique_lock lock(mutex_);
  sessions_.push_back({.socket = std::move(socket)});
  const uint64_t session = sessions_.size();
  const int fd = sessions_.back().socket.get();
  lock.unlock();
  if (!script_.hello) {
    Send(fd, Welcome(session));
  } else if (!script_.hello(fd, session)) {
    Hangup(session);
  }
}

void FakeDaemon::Resume(UniqueFd socket, const v1::Hello& hello) {
  if (script_.resume && !script_.resume(socket.get(), hello)) return;
  std::lock_guard lock(mutex_);
  for (uint64_t id = 1; id <= sessions_.size(); ++id) {
    Known& known = sessions_[id - 1];
    if (hello.resume_token() != TokenOf(id) || known.state == Known::State::kGone) continue;
    // A client that has lost its gRPC connection resumes while its socket is open.
    if (known.socket.valid()) ::shutdown(known.socket.get(), SHUT_RDWR);
    v1::ServerMessage message = Welcome(id);
    message.mutable_welcome()->set_resumed(true);
    message.mutable_welcome()->set_generation(generation_);
    known.state = Known::State::kBack;
    ++resumes_;
    Send(socket.get(), message);
    known.socket = std::move(socket);
    return;
  }
  v1::ServerMessage message;
  message.mutable_refusal()->set_code(static_cast<int>(grpc::StatusCode::NOT_FOUND));
  message.mutable_refusal()->set_message("this daemon does not know the session");
  Send(socket.get(), message);
}

int FakeDaemon::SocketOf(uint64_t session) {
  std::lock_guard lock(mutex_);
  return sessions_.at(session - 1).socket.get();
}

std::vector<v1::Lease> FakeDaemon::GrantedFor(uint64_t session, uint64_t request) {
  std::vector<v1::Lease> leases;
  if (request == 0) return leases;
  std::lock_guard lock(mutex_);
  for (const auto& [id, held] : leases_) {
    if (held.session == session && held.request == request) leases.push_back(held.lease);
  }
  return leases;
}

void FakeDaemon::SetOwner(const std::vector<v1::Lease>& leases, uint64_t session,
                          uint64_t request) {
  std::lock_guard lock(mutex_);
  for (const v1::Lease& lease : leases) {
    leases_.at(lease.lease_id()).session = session;
    leases_.at(lease.lease_id()).request = request;
  }
}

std::vector<v1::Device> FakeDaemon::Devices() const {
  if (!script_.devices.empty()) return script_.devices;
  return {TheDevice(), ThePinnedDevice()};
}

grpc::Status FakeDaemon::Grant(uint64_t session, const v1::AcquireRequest& request,
                               v1::AcquireResponse* response) {
  const std::vector<v1::Lease> leases = GrantSilently(session, request, response);
  std::vector<int> fds;
  for (const v1::Lease& lease : leases) fds.push_back(Memory(lease));
  Deliver(session, response->delivery_id(), leases, fds);
  return grpc::Status::OK;
}

std::vector<v1::Lease> FakeDaemon::GrantSilently(uint64_t session,
                                                 const v1::AcquireRequest& request,
                                                 v1::AcquireResponse* response) {
  const uint64_t bytes = (request.bytes() + kGranularity - 1) / kGranularity * kGranularity;
  const v1::Kind kind = request.kind() == v1::KIND_UNSPECIFIED ? v1::KIND_VMM : request.kind();
  std::vector<v1::Lease> leases = GrantedFor(session, request.request_id());
  if (leases.empty()) {
    for (uint32_t i = 0; i < std::max(request.count(), 1u); ++i) {
      leases.push_back(NewLease(bytes, kind, request.revocable()));
    }
    SetOwner(leases, session, request.request_id());
  }
  for (const v1::Lease& lease : leases) *response->add_leases() = lease;
  response->set_delivery_id(NewDeliveryId());
  return leases;
}

v1::Lease FakeDaemon::NewLease(uint64_t bytes, v1::Kind kind, bool revocable) {
  v1::Lease lease;
  lease.set_kind(kind);
  UniqueFd fd;
  if (HasFd(lease)) {
    fd.reset(::memfd_create("segment", MFD_CLOEXEC));
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) < 0) abort();
  }
  std::lock_guard lock(mutex_);
  lease.set_lease_id(next_lease_++);
  lease.set_segment_id(lease.lease_id() + 1000);
  lease.set_device_uuid(kind == v1::KIND_PINNED ? kPinnedDevice : kDevice);
  if (!grant_on_.empty()) lease.set_device_uuid(grant_on_);
  lease.set_size_bytes(bytes);
  lease.set_tenant("testers");
  lease.set_revocable(revocable);
  leases_[lease.lease_id()] = {.lease = lease, .memory = std::move(fd)};
  return lease;
}

int FakeDaemon::Memory(const v1::Lease& lease) {
  std::lock_guard lock(mutex_);
  const auto found = leases_.find(lease.lease_id());
  return found == leases_.end() ? -1 : found->second.memory.get();
}

void FakeDaemon::Deliver(uint64_t session, uint64_t delivery_id,
                         const std::vector<v1::Lease>& leases, absl::Span<const int> fds) {
  v1::Delivery delivery;
  delivery.set_delivery_id(delivery_id);
  for (const v1::Lease& lease : leases) {
    delivery.add_lease_ids(lease.lease_id());
    if (HasFd(lease)) delivery.add_fd_lease_ids(lease.lease_id());
  }
  Deliver(session, delivery, fds);
}

void FakeDaemon::Deliver(uint64_t session, const v1::Delivery& delivery,
                         absl::Span<const int> fds) {
  v1::ServerMessage message;
  *message.mutable_delivery() = delivery;
  Send(SocketOf(session), message, fds);
}

v1::Hello FakeDaemon::ReadHello(int socket) {
  v1::Hello hello;
  absl::StatusOr<UnixMessage> message = ReceiveMessage(socket, absl::Now() + kLong);
  if (message.ok()) hello.ParseFromString(message->bytes);
  return hello;
}

v1::ServerMessage FakeDaemon::Welcome(uint64_t session) const {
  v1::ServerMessage message = WelcomeTo(session);
  message.mutable_welcome()->clear_devices();
  for (const v1::Device& device : Devices()) *message.mutable_welcome()->add_devices() = device;
  return message;
}

v1::ServerMessage FakeDaemon::WelcomeTo(uint64_t session) {
  v1::ServerMessage message;
  v1::Welcome* welcome = message.mutable_welcome();
  welcome->set_protocol_version(kProtocolVersion);
  welcome->set_session_id(session);
  welcome->set_token(TokenOf(session));
  welcome->set_tenant("testers");
  welcome->set_daemon_version("9.9");
  welcome->set_rule("everybody");
  for (const v1::Device& device : {TheDevice(), ThePinnedDevice()}) {
    *welcome->add_devices() = device;
  }
  return message;
}

UniqueFd FakeDaemon::ConnectGrpc(int session) {
  sockaddr_un address = {};
  socklen_t size = sizeof(address);
  if (::getsockname(session, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const std::string path = address.sun_path;
  return ConnectUnix(SocketPath(path.substr(0, path.rfind('/')), kGrpcSocket), SOCK_STREAM,
                     absl::Now() + kLong)
      .value_or(UniqueFd());
}

void FakeDaemon::Send(int socket, const v1::ServerMessage& message, absl::Span<const int> fds) {
  UniqueFd grpc;
  if (message.has_welcome() && fds.empty()) {
    grpc = ConnectGrpc(socket);
    const int fd = grpc.get();
    if (grpc.valid()) return Send(socket, message, absl::MakeConstSpan(&fd, 1));
    ::shutdown(socket, SHUT_RDWR);  // as a daemon that ends at that moment
    return;
  }
  // A client that has gone does not receive it.
  SendMessage(socket, message.SerializeAsString(), fds, absl::Now() + kLong).IgnoreError();
}

void FakeDaemon::SetTenant(uint64_t lease_id, const std::string& tenant) {
  std::lock_guard lock(mutex_);
  leases_.at(lease_id).lease.set_tenant(tenant);
}

void FakeDaemon::SetKind(uint64_t lease_id, v1::Kind kind) {
  std::lock_guard lock(mutex_);
  leases_.at(lease_id).lease.set_kind(kind);
}

void FakeDaemon::GrantOn(const std::string& device_uuid) {
  std::lock_guard lock(mutex_);
  grant_on_ = device_uuid;
}

void FakeDaemon::ReplaceHandles(const std::string& bytes) {
  std::lock_guard lock(mutex_);
  for (auto& [id, registered] : events_) registered.event.set_handle(bytes);
}

void FakeDaemon::Tell(const v1::Event& event) {
  std::lock_guard lock(mutex_);
  told_.push_back(event);
  watches_changed_.notify_all();
}

void FakeDaemon::ForgetEvents() {
  std::lock_guard lock(mutex_);
  told_.clear();
}

void FakeDaemon::EndWatches(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  watches_end_ = status;
  watches_changed_.notify_all();
}

void FakeDaemon::KeepWatches() {
  std::lock_guard lock(mutex_);
  watches_end_.reset();
}

void FakeDaemon::AwaitWatches(size_t count) {
  std::unique_lock lock(mutex_);
  watches_changed_.wait(lock, [&] { return watches_ == count; });
}

void FakeDaemon::Goodbye(uint64_t session, const std::string& reason, bool stopping) {
  v1::ServerMessage message;
  message.mutable_goodbye()->set_reason(reason);
  message.mutable_goodbye()->set_stopping(stopping);
  Send(SocketOf(session), message);
  if (!stopping) Hangup(session);
}

void FakeDaemon::Hangup(uint64_t session) {
  std::lock_guard lock(mutex_);
  sessions_.at(session - 1).socket.reset();
  sessions_.at(session - 1).state = Known::State::kGone;
}

void FakeDaemon::Crash() {
  if (!acceptor_.joinable()) return;
  ::shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  listener_.reset();
  const auto hang_up = [this] {
    std::lock_guard lock(mutex_);
    for (const Known& known : sessions_) ::shutdown(known.socket.get(), SHUT_RDWR);
  };
  if (generation_ % 2 == 0) hang_up();
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  hang_up();
  std::lock_guard lock(mutex_);
  for (Known& known : sessions_) {
    known.socket.reset();
    if (known.state != Known::State::kGone) known.state = Known::State::kAway;
  }
}

void FakeDaemon::ComeBack(bool remembers) {
  server_.reset();
  if (!remembers) {
    std::lock_guard lock(mutex_);
    for (Known& known : sessions_) known.state = Known::State::kGone;
    leases_.clear();
    events_.clear();
  }
  Serve();
}

void FakeDaemon::LoseLease(uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  leases_.erase(lease_id);
}

uint64_t FakeDaemon::granted() {
  std::lock_guard lock(mutex_);
  return next_lease_ - 1;
}

size_t FakeDaemon::live_leases() {
  std::lock_guard lock(mutex_);
  return leases_.size();
}

size_t FakeDaemon::live_events() {
  std::lock_guard lock(mutex_);
  return events_.size();
}

}  // namespace gpumem::internal
