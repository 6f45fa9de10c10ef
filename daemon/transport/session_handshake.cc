// SPDX-License-Identifier: Apache-2.0
// The session server's answer to Hello: a new session, or one that its client resumes.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/denial.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "common/version.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/failpoint.h"
#include "daemon/core/identity/rules.h"
#include "daemon/transport/peer/peer_socket.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/session_server.h"
#include "proto/gpumem/v1/session.pb.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
namespace v1 = gpumem::v1;

constexpr size_t kMaxClientName = 64;

}  // namespace

void SessionServer::OnHello(const ConnectionPtr& connection) {
  absl::MutexLock lock(&hello_mutex_);
  if (parks_) {
    // It would wake this thread again and again.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket->get(), nullptr);
    return;
  }
  absl::StatusOr<std::string> message = ReceiveFromClient(connection->socket->get());
  if (absl::IsDeadlineExceeded(message.status())) return;
  absl::Status welcome = message.ok() ? Welcome(connection, *message) : message.status();
  if (!welcome.ok()) Close(connection, welcome);
}

absl::Status SessionServer::Welcome(const ConnectionPtr& connection, const std::string& message) {
  v1::Hello hello;
  if (!hello.ParseFromString(message)) {
    return absl::InvalidArgumentError("the first message on this socket must be a Hello");
  }
  if (hello.protocol_version() != gpumem::kProtocolVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "the client speaks protocol version ", hello.protocol_version(), ", this daemon (",
        GPUMEM_VERSION, ") speaks ", gpumem::kProtocolVersion, "; use a libgpumem that matches"));
  }
  for (const auto& [what, name, most] : {std::tuple("client", &hello.client_name(), kMaxClientName),
                                         std::tuple("tenant", &hello.tenant(), kMaxTenantName)}) {
    if (name->size() <= most && *name == Printable(*name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a ", what, "'s name is at most ", most, " printable characters"));
  }
  const bool resumes = !hello.resume_token().empty();
  ApiServers::Connection api;
  absl::StatusOr<Broker::NewSession> session =
      resumes ? Resume(connection, hello.resume_token(), &api) : Open(connection, hello, &api);
  if (!session.ok()) return session.status();
  greeting_.remove(connection);
  connection->welcomed = true;
  connection->session = session->id;
  const TenantMatch& match = connection->match;
  {
    absl::MutexLock lock(&mutex_);
    sessions_[session->id] = connection;
  }
  Failpoint("welcome-before");
  v1::ServerMessage reply;
  v1::Welcome& welcome = *reply.mutable_welcome();
  welcome.set_protocol_version(gpumem::kProtocolVersion);
  welcome.set_session_id(ToInt(session->id));
  welcome.set_token(session->token.data(), session->token.size());
  welcome.set_tenant(match.tenant);
  welcome.set_daemon_version(GPUMEM_VERSION);
  welcome.set_rule(match.rule);
  welcome.set_resumed(resumes);
  welcome.set_generation(options_.generation);
  for (const BrokerViews::DeviceView& device : broker_->views().Devices(/*ask_driver=*/false)) {
    if (IsHostTier(device.info)) continue;  // for operators alone
    // Without the peers: with many devices the message would not fit into a packet.
    v1::Device& added = *welcome.add_devices();
    added = ToProto(device);
    added.clear_peers();
  }
  spdlog::debug("session {}{}: {} (pid {}, uid {}) is tenant {} by {}", ToInt(session->id),
                resumes ? " is resumed" : "", connection->peer.command,
                connection->peer.identity.pid, connection->peer.identity.uid, match.tenant,
                match.rule);
  std::vector<int> fds;
  if (api.client_end.valid()) fds.push_back(api.client_end.get());
  absl::Status sent = gpumem::SendMessage(connection->socket->get(), reply.SerializeAsString(), fds,
                                          absl::InfinitePast());
  // After that the client works at its end at the same time.
  if (sent.ok() && api.serve != nullptr) api.serve();
  return sent;
}

absl::Status SessionServer::ConnectApi(Connection& connection, ApiServers::Connection* api) {
  if (options_.connect_api == nullptr) return absl::OkStatus();
  absl::StatusOr<ApiServers::Connection> connected = options_.connect_api(
      connection.peer.identity.uid, broker_->tenants().BooksOf(connection.match.tenant));
  if (!connected.ok()) return connected.status();
  *api = *std::move(connected);
  connection.api = api->line;
  return absl::OkStatus();
}

absl::StatusOr<TenantMatch> SessionServer::Match(const PeerIdentity& peer,
                                                 const std::string& wished) {
  std::shared_ptr<const std::vector<Rule>> rules;
  {
    absl::MutexLock lock(&mutex_);
    rules = rules_;
  }
  const auto is_made = [this](absl::string_view tenant) {
    return broker_->tenants().IsMadeByOperator(tenant);
  };
  // The rules know no tenant that a session has made. They decide about the one above it, and its
  // maker's user may begin in it.
  const std::optional<std::string> ruled = broker_->tenants().RuledBy(wished, peer.uid);
  const auto pods =
      options_.pods == nullptr ? std::make_shared<const KnownPods>() : options_.pods->known();
  absl::StatusOr<TenantMatch> match =
      MatchTenant(*rules, peer, ruled.value_or(wished), is_made, *pods);
  if (match.ok() && ruled) match->tenant = wished;
  return match;
}

absl::StatusOr<Broker::NewSession> SessionServer::Open(const ConnectionPtr& connection,
                                                       const v1::Hello& hello,
                                                       ApiServers::Connection* api) {
  absl::StatusOr<TenantMatch> match = Match(connection->peer.identity, hello.tenant());
  if (absl::IsUnavailable(match.status())) {
    absl::Status undecided = match.status();
    gpumem::MarkTryAgain(&undecided);
    return undecided;
  }
  if (!match.ok()) {
    if (options_.audit != nullptr) {
      const Peer& peer = connection->peer;
      options_.audit->Record({.time = absl::Now(),
                              .event = AuditEvent::kRefused,
                              .pid = peer.identity.pid,
                              .uid = peer.identity.uid,
                              .client = hello.client_name(),
                              .command = peer.command,
                              .call = "connect",
                              .why = Printable(match.status().message())});
    }
    return match.status();
  }
  // An ambiguity of a cgroup is reported with the path, which other users choose.
  match->rule = Printable(match->rule);
  connection->match = *match;
  const SessionDetails details = {.peer = connection->peer.identity,
                                  .client_name = hello.client_name(),
                                  .command = connection->peer.command,
                                  .rule = match->rule,
                                  .certain = connection->peer.certain,
                                  .connect_id = hello.connect_id()};
  // Makes no gRPC connection for a client that gets no session.
  if (absl::Status room = broker_->CheckRoomForSession(match->tenant, details); !room.ok()) {
    return room;
  }
  if (absl::Status connected = ConnectApi(*connection, api); !connected.ok()) return connected;
  return broker_->OpenSession(match->tenant, details);
}

absl::StatusOr<Broker::NewSession> SessionServer::Resume(const ConnectionPtr& connection,
                                                         const std::string& token,
                                                         ApiServers::Connection* api) {
  ConnectionPtr old;
  if (const absl::StatusOr<SessionId> id = broker_->SessionOf(token); id.ok()) {
    old = FindSession(*id);
  }
  if (old != nullptr) {
    connection->match = old->match;
    // Before anything changes: the session outlives a refusal.
    if (absl::Status connected = ConnectApi(*connection, api); !connected.ok()) return connected;
  }
  absl::StatusOr<Broker::Resumed> resumed =
      broker_->Resume(token, connection->peer.identity, connection->peer.certain);
  if (!resumed.ok()) return resumed.status();
  connection->reconciled = false;
  if (old != nullptr) Replace(old);
  Broker::NewSession session{.id = resumed->id};
  std::memcpy(session.token.data(), token.data(), session.token.size());
  return session;
}

void SessionServer::Replace(const ConnectionPtr& old) {
  // Its process is watched by the new connection from now on.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, old->peer.pidfd.get(), nullptr);
  std::shared_ptr<const UniqueFd> socket;
  {
    absl::MutexLock lock(&mutex_);
    socket = std::exchange(old->socket, nullptr);
    sessions_.erase(old->session);  // the new one takes its place once it is welcomed
    connections_.erase(old->key);
  }
  if (socket != nullptr) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket->get(), nullptr);
    shutdown(socket->get(), SHUT_RDWR);
  }
  // Ends its calls and watches.
  if (old->api != nullptr) old->api->Cut();
  on_ended_(old->session);
}

}  // namespace gpumemd
