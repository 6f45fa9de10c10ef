#include "client/fake_daemon.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
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

v1::Device TheDevice() {
  v1::Device device;
  device.set_device_uuid(FakeDaemon::kDevice);
  device.set_name("fake");
  device.set_backend(v1::BACKEND_HOST);
  device.set_capacity_bytes(1 << 30);
  device.set_granularity_bytes(FakeDaemon::kGranularity);
  device.add_kinds(v1::KIND_VMM);
  return device;
}

std::string TokenOf(uint64_t session) { return absl::StrCat("token\xff", session); }

// A ticket says which lease it is for, in 32 bytes.
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
    *response->add_devices() = TheDevice();
    return grpc::Status::OK;
  }

  grpc::Status Acquire(grpc::ServerContext* context, const v1::AcquireRequest* request,
                       v1::AcquireResponse* response) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    return daemon_->script_.acquire ? daemon_->script_.acquire(session, *request, response)
                                    : daemon_->Grant(session, *request, response);
  }

  grpc::Status Open(grpc::ServerContext* context, const v1::OpenRequest* request,
                    v1::OpenResponse* response) override {
    const uint64_t session = SessionOf(*context);
    if (session == 0) return NoSession();
    std::vector<v1::Lease> leases;
    std::vector<UniqueFd> fds;
    std::vector<int> borrowed;
    for (const std::string& ticket : request->tickets()) {
      v1::Lease origin;
      uint64_t lease_id = 0;
      if (absl::SimpleAtoi(ticket, &lease_id)) origin.set_lease_id(lease_id);
      UniqueFd fd(::dup(daemon_->Memory(origin)));
      if (!fd.valid()) return {grpc::StatusCode::NOT_FOUND, "no such ticket"};
      leases.push_back(daemon_->NewLease(static_cast<uint64_t>(::lseek(fd.get(), 0, SEEK_END))));
      borrowed.push_back(fd.get());
      fds.push_back(std::move(fd));
      *response->add_leases() = leases.back();
    }
    response->set_delivery_id(daemon_->NewDeliveryId());
    daemon_->Deliver(session, response->delivery_id(), leases, borrowed);
    return grpc::Status::OK;
  }

  grpc::Status Share(grpc::ServerContext* context, const v1::ShareRequest* request,
                     v1::ShareResponse* response) override {
    if (SessionOf(*context) == 0) return NoSession();
    response->set_ticket(TicketOf(request->lease_id()));
    return grpc::Status::OK;
  }

  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse*) override {
    ++daemon_->release_calls_;
    if (SessionOf(*context) == 0) return NoSession();
    if (daemon_->script_.release) {
      grpc::Status status = daemon_->script_.release(*request);
      if (!status.ok()) return status;
    }
    std::lock_guard lock(daemon_->mutex_);
    for (uint64_t id : request->lease_ids()) {
      if (daemon_->memory_.count(id) == 0) return {grpc::StatusCode::NOT_FOUND, "no such lease"};
    }
    for (uint64_t id : request->lease_ids()) daemon_->memory_.erase(id);
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

 private:
  static grpc::Status NoSession() { return {grpc::StatusCode::UNAUTHENTICATED, "no session"}; }

  uint64_t SessionOf(const grpc::ServerContext& context) {
    const auto token = context.client_metadata().find(kTokenMetadata);
    if (token == context.client_metadata().end()) return 0;
    std::lock_guard lock(daemon_->mutex_);
    for (uint64_t id = 1; id <= daemon_->sockets_.size(); ++id) {
      if (token->second == grpc::string_ref(TokenOf(id))) return id;
    }
    return 0;
  }

  FakeDaemon* const daemon_;
};

FakeDaemon::FakeDaemon(Script script)
    : script_(std::move(script)), service_(std::make_unique<Service>(this)) {
  char name[] = "/tmp/fake-daemon-XXXXXX";
  runtime_dir_ = ::mkdtemp(name);
  listener_ = ListenUnix(SocketPath(runtime_dir_, kSessionSocket), SOCK_SEQPACKET, 0600).value();
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + SocketPath(runtime_dir_, kApiSocket),
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
    if (!socket.valid()) return;  // Crash() has shut the listener down
    std::unique_lock lock(mutex_);
    sockets_.push_back(std::move(socket));
    const uint64_t session = sockets_.size();
    const int fd = sockets_.back().get();
    lock.unlock();
    if (!script_.hello) {
      ReadHello(fd);
      Send(fd, WelcomeTo(session));
    } else if (!script_.hello(fd, session)) {
      Hangup(session);
    }
  }
}

int FakeDaemon::SocketOf(uint64_t session) {
  std::lock_guard lock(mutex_);
  return sockets_.at(session - 1).get();
}

grpc::Status FakeDaemon::Grant(uint64_t session, const v1::AcquireRequest& request,
                               v1::AcquireResponse* response) {
  const uint64_t bytes = (request.bytes() + kGranularity - 1) / kGranularity * kGranularity;
  std::vector<v1::Lease> leases;
  std::vector<int> fds;
  for (uint32_t i = 0; i < std::max(request.count(), 1u); ++i) {
    leases.push_back(NewLease(bytes));
    fds.push_back(Memory(leases.back()));
    *response->add_leases() = leases.back();
  }
  response->set_delivery_id(NewDeliveryId());
  Deliver(session, response->delivery_id(), leases, fds);
  return grpc::Status::OK;
}

v1::Lease FakeDaemon::NewLease(uint64_t bytes) {
  UniqueFd fd(::memfd_create("segment", MFD_CLOEXEC));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) < 0) abort();
  v1::Lease lease;
  std::lock_guard lock(mutex_);
  lease.set_lease_id(next_lease_++);
  lease.set_segment_id(lease.lease_id() + 1000);
  lease.set_device_uuid(kDevice);
  lease.set_kind(v1::KIND_VMM);
  lease.set_size_bytes(bytes);
  lease.set_tenant("testers");
  memory_[lease.lease_id()] = std::move(fd);
  return lease;
}

int FakeDaemon::Memory(const v1::Lease& lease) {
  std::lock_guard lock(mutex_);
  const auto found = memory_.find(lease.lease_id());
  return found == memory_.end() ? -1 : found->second.get();
}

void FakeDaemon::Deliver(uint64_t session, uint64_t delivery_id,
                         const std::vector<v1::Lease>& leases, absl::Span<const int> fds) {
  v1::ServerMessage message;
  message.mutable_delivery()->set_delivery_id(delivery_id);
  for (const v1::Lease& lease : leases) {
    message.mutable_delivery()->add_lease_ids(lease.lease_id());
  }
  Send(SocketOf(session), message, fds);
}

v1::Hello FakeDaemon::ReadHello(int socket) {
  v1::Hello hello;
  absl::StatusOr<UnixMessage> message = ReceiveMessage(socket, absl::Now() + kLong);
  if (message.ok()) hello.ParseFromString(message->bytes);
  return hello;
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
  *welcome->add_devices() = TheDevice();
  return message;
}

void FakeDaemon::Send(int socket, const v1::ServerMessage& message, absl::Span<const int> fds) {
  // A client that is gone does not hear it.
  SendMessage(socket, message.SerializeAsString(), fds, absl::Now() + kLong).IgnoreError();
}

void FakeDaemon::Goodbye(uint64_t session, const std::string& reason) {
  v1::ServerMessage message;
  message.mutable_goodbye()->set_reason(reason);
  Send(SocketOf(session), message);
  Hangup(session);
}

void FakeDaemon::Hangup(uint64_t session) {
  std::lock_guard lock(mutex_);
  sockets_.at(session - 1).reset();
}

void FakeDaemon::Crash() {
  if (acceptor_.joinable()) {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    listener_.reset();
  }
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  std::lock_guard lock(mutex_);
  for (UniqueFd& socket : sockets_) socket.reset();
  memory_.clear();
}

size_t FakeDaemon::live_leases() {
  std::lock_guard lock(mutex_);
  return memory_.size();
}

}  // namespace gpumem::internal
