// SPDX-License-Identifier: Apache-2.0
// The sockets of a FakeDaemon: how clients connect and resume, what it sends them, and how it ends.
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/endpoints.h"
#include "common/unique_fd.h"
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
  device.add_kinds(v1::KIND_HOST);
  return device;
}

}  // namespace

std::string FakeDaemon::TokenOf(uint64_t session) { return absl::StrCat("token\xff", session); }

void FakeDaemon::Serve() {
  ++generation_;
  next_delivery_ = 1;  // as a daemon that starts
  service_ = MakeService();
  listener_ = ListenUnix(SocketPath(runtime_dir_, kSessionSocket), SOCK_SEQPACKET, 0600).value();
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + SocketPath(runtime_dir_, kGrpcSocket),
                           grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  acceptor_ = std::thread([this] { Accept(); });
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

std::vector<v1::Device> FakeDaemon::Devices() const {
  if (!script_.devices.empty()) return script_.devices;
  return {TheDevice(), ThePinnedDevice()};
}

void FakeDaemon::Deliver(uint64_t session, uint64_t delivery_id,
                         const std::vector<v1::Lease>& leases, absl::Span<const int> fds) {
  const size_t parts = std::max<size_t>((leases.size() + kMaxMessageFds - 1) / kMaxMessageFds, 1);
  for (size_t part = 0, used = 0; part < parts; ++part) {
    v1::Delivery delivery;
    delivery.set_delivery_id(delivery_id);
    delivery.set_part(static_cast<uint32_t>(part));
    if (parts > 1) delivery.set_parts(static_cast<uint32_t>(parts));
    const size_t end = std::min(leases.size(), (part + 1) * kMaxMessageFds);
    for (size_t i = part * kMaxMessageFds; i < end; ++i) {
      delivery.add_lease_ids(leases[i].lease_id());
      if (HasFd(leases[i])) delivery.add_fd_lease_ids(leases[i].lease_id());
    }
    if (parts == 1) DescribeLeases(leases, &delivery);
    const auto count = static_cast<size_t>(delivery.fd_lease_ids_size());
    // A script may give other descriptors than the leases have.
    Deliver(session, delivery, parts > 1 ? fds.subspan(used, count) : fds);
    used += count;
  }
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
    leases_changed_.notify_all();
    events_.clear();
  }
  Serve();
}

}  // namespace gpumem::internal
