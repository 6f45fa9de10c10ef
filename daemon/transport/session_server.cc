#include "daemon/transport/session_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/denial.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "common/version.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/failpoint.h"
#include "daemon/log/log.h"
#include "daemon/transport/descriptor_reserve.h"
#include "daemon/transport/peer/peer_socket.h"
#include "daemon/transport/service/convert.h"
#include "proto/gpumem/v1/session.pb.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
namespace v1 = gpumem::v1;

// Values of epoll's data. For a connection: its key, and which of its two descriptors.
constexpr uint64_t kListenerId = 0;
constexpr uint64_t kStopId = 1;
constexpr uint64_t SocketId(uint64_t key) { return key * 2; }
constexpr uint64_t PidfdId(uint64_t key) { return key * 2 + 1; }

// So that existing connections get their turn, however many more wait.
constexpr int kAcceptsPerRound = 16;

// On kernels before 6.5: poll interval of an idle queue. A process that has run for longer than
// this is identified with certainty when it connects (Acceptance).
constexpr int kLookEveryMs = 100;

constexpr size_t kMaxClientName = 64;
constexpr size_t kMaxTenantName = 63;  // as the configuration has them

UniqueFd OpenSpare() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

v1::ServerMessage RefusalOf(const absl::Status& why) {
  v1::ServerMessage message;
  message.mutable_refusal()->set_code(static_cast<int>(why.code()));
  message.mutable_refusal()->set_message(Printable(why.message()));
  if (auto denial = gpumem::DenialOf(why)) *message.mutable_refusal()->mutable_denial() = *denial;
  return message;
}

absl::Status NotCertain(const Peer& peer) {
  return absl::FailedPreconditionError(
      absl::StrCat("this kernel, older than 6.5, cannot show that process ", peer.identity.pid,
                   " is the one of the session; end it by hand"));
}

absl::Status NoSuchSession(SessionId session) {
  return absl::NotFoundError(absl::StrCat("there is no session ", ToInt(session)));
}

// One message.
struct DeliveryPart {
  v1::Delivery delivery;
  std::vector<int> fds;
};

// Returns one part at least. Pool descriptors go into one part: a call makes no more than fit.
std::vector<DeliveryPart> PartsOf(uint64_t delivery_id, const Broker::Handover& handover) {
  std::vector<DeliveryPart> parts(1);
  for (const Broker::Handover::Item& item : handover.items) {
    if (parts.back().delivery.lease_ids_size() == static_cast<int>(kMaxSegmentsPerCall)) {
      parts.emplace_back();
    }
    DeliveryPart& part = parts.back();
    part.delivery.add_lease_ids(ToInt(item.lease.lease));
    if (item.fd < 0) continue;
    part.delivery.add_fd_lease_ids(ToInt(item.lease.lease));
    part.fds.push_back(item.fd);
  }
  for (const ExportedPool& pool : handover.pools) {
    parts.back().delivery.add_pool_ids(pool.id);
    parts.back().fds.push_back(pool.fd);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].delivery.set_delivery_id(delivery_id);
    if (parts.size() == 1) continue;
    parts[i].delivery.set_part(static_cast<uint32_t>(i));
    parts[i].delivery.set_parts(static_cast<uint32_t>(parts.size()));
  }
  return parts;
}

v1::ServerMessage GoodbyeOf(const absl::Status& why, bool stopping) {
  v1::ServerMessage message;
  message.mutable_goodbye()->set_stopping(stopping);
  message.mutable_goodbye()->set_reason(Printable(why.message()));
  return message;
}

}  // namespace

SessionServer::SessionServer(UniqueFd listener, Broker* broker, std::vector<Rule> rules,
                             std::function<void(SessionId)> on_ended, SessionServerOptions options)
    : listener_(std::move(listener)),
      broker_(broker),
      on_ended_(std::move(on_ended)),
      options_(options),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      spare_(OpenSpare()),
      rules_(std::move(rules)) {
  RefuseDescriptors(listener_.get());
  Watch(listener_.get(), kListenerId);
  Watch(stop_.get(), kStopId);
}

SessionServer::~SessionServer() {
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void SessionServer::Start() {
  AcceptSome();  // peers accepted after this have connected after it
  thread_ = std::thread([this] { Serve(); });
}

void SessionServer::SetRules(std::vector<Rule> rules) {
  absl::MutexLock lock(&mutex_);
  rules_ = std::move(rules);
}

void SessionServer::Adopt(SessionId session, Peer peer, TenantMatch match) {
  auto connection = std::make_shared<Connection>();
  connection->key = next_key_++;
  connection->peer = std::move(peer);
  connection->welcomed = true;
  connection->session = session;
  connection->match = std::move(match);
  {
    absl::MutexLock lock(&mutex_);
    connections_.emplace(connection->key, connection);
    sessions_.emplace(session, connection);
  }
  Watch(connection->peer.pidfd.get(), PidfdId(connection->key));
}

void SessionServer::Park() {
  absl::MutexLock lock(&hello_mutex_);
  parks_ = true;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
}

void SessionServer::LeaveSessions() {
  absl::MutexLock lock(&mutex_);
  leaves_sessions_ = true;
}

void SessionServer::Watch(int fd, uint64_t id) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void SessionServer::Serve() {
  std::array<epoll_event, 64> events;
  while (true) {
    int timeout_ms = -1;
    if (!greeting_.empty() && !parks_) {
      const absl::Duration left = greeting_.front()->greeting_ends - absl::Now();
      timeout_ms = static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1));
    }
    if (options_.peers_by_number && (timeout_ms < 0 || timeout_ms > kLookEveryMs)) {
      timeout_ms = kLookEveryMs;
    }
    const int n = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
    if (n == 0 && options_.peers_by_number) AcceptSome();
    for (int i = 0; i < n; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kStopId) return CloseAll();
      if (id == kListenerId) {
        AcceptSome();
        continue;
      }
      ConnectionPtr connection;
      {
        absl::MutexLock lock(&mutex_);
        auto it = connections_.find(id / 2);
        if (it == connections_.end()) continue;  // closed earlier in this round
        connection = it->second;
      }
      if (id == PidfdId(connection->key)) {
        // It stays readable, and the session may stay until its calls have been answered.
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->peer.pidfd.get(), nullptr);
        // First the death, so that the broker knows that nothing maps its memory.
        if (connection->welcomed) broker_->ProcessGone(connection->session);
        Close(connection, absl::UnavailableError("its process is gone"));
      } else {
        OnSocket(connection);
      }
    }
    EndExpiredGreetings();
  }
}

void SessionServer::AcceptSome() {
  for (int i = 0; i < kAcceptsPerRound && !parks_; ++i) {
    const int64_t now = BootTime();
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid() && !IsOfReserve(socket.get())) {
      Accept(std::move(socket));
      continue;
    }
    if (socket.valid()) {
      SendLast(socket.get(), RefusalOf(NoDescriptors()));
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) queue_empty_at_ = now;
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (errno != EMFILE && errno != ENFILE) return;
    // Out of descriptors: a connection left waiting would wake this thread for ever.
    spare_.reset();
    UniqueFd refused(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (refused.valid()) {
      SendLast(refused.get(), RefusalOf(NoDescriptors()));
    }
    const bool more = refused.valid();
    refused.reset();
    spare_ = OpenSpare();
    if (!more) return;
  }
}

void SessionServer::Accept(UniqueFd socket) {
  PrepareClientSocket(socket.get());
  absl::StatusOr<Peer> peer = IdentifyPeer(
      socket.get(), {.queue_empty_at = queue_empty_at_, .by_number = options_.peers_by_number});
  if (!peer.ok()) return SendLast(socket.get(), RefusalOf(peer.status()));
  MakeRoomFor(peer->identity.uid);
  auto connection = std::make_shared<Connection>();
  connection->key = next_key_++;
  connection->socket = std::make_shared<const UniqueFd>(std::move(socket));
  connection->peer = *std::move(peer);
  connection->greeting_ends = absl::Now() + options_.hello_timeout;
  greeting_.push_back(connection);
  {
    absl::MutexLock lock(&mutex_);
    connections_.emplace(connection->key, connection);
  }
  Watch(connection->socket->get(), SocketId(connection->key));
  Watch(connection->peer.pidfd.get(), PidfdId(connection->key));
}

// Evicts the connection that has been silent longest. So silent connections, however many, cannot
// keep out a client that speaks.
void SessionServer::MakeRoomFor(uid_t uid) {
  const auto of_user = [uid](const ConnectionPtr& other) {
    return other->peer.identity.uid == uid;
  };
  const auto same_user = std::count_if(greeting_.begin(), greeting_.end(), of_user);
  const bool user_full = same_user >= options_.max_greeting_per_uid;
  if (!user_full && greeting_.size() < options_.max_greeting) return;
  const ConnectionPtr silent =
      user_full ? *std::find_if(greeting_.begin(), greeting_.end(), of_user) : greeting_.front();
  OnSocket(silent);    // it may have spoken by now
  if (parks_) return;  // then its Hello is for the next daemon
  if (silent->welcomed || silent->socket == nullptr) return;
  Close(silent, absl::ResourceExhaustedError(
                    "too many connections have not said Hello, and this one has not for longest"));
}

void SessionServer::OnSocket(const ConnectionPtr& connection) {
  if (connection->socket == nullptr) return;  // closed; its process is still watched
  if (!connection->welcomed) return OnHello(connection);
  absl::StatusOr<std::string> message = ReceiveFromClient(connection->socket->get());
  if (absl::IsDeadlineExceeded(message.status())) return;
  Close(connection, message.ok() ? absl::InvalidArgumentError(
                                       "a client says nothing on this socket after Hello")
                                 : message.status());
}

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
  UniqueFd api;
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
  if (api.valid()) fds.push_back(api.get());
  return gpumem::SendMessage(connection->socket->get(), reply.SerializeAsString(), fds,
                             absl::InfinitePast());
}

absl::Status SessionServer::ConnectApi(Connection& connection, UniqueFd* api) {
  if (options_.connect_api == nullptr) return absl::OkStatus();
  absl::StatusOr<ApiServers::Connection> connected =
      options_.connect_api(connection.peer.identity.uid, connection.match.tenant);
  if (!connected.ok()) return connected.status();
  *api = std::move(connected->client_end);
  connection.api = std::move(connected->line);
  return absl::OkStatus();
}

absl::StatusOr<Broker::NewSession> SessionServer::Open(const ConnectionPtr& connection,
                                                       const v1::Hello& hello, UniqueFd* api) {
  absl::StatusOr<TenantMatch> match = [&] {
    absl::MutexLock lock(&mutex_);
    return MatchTenant(rules_, connection->peer.identity, hello.tenant());
  }();
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
                                                         const std::string& token, UniqueFd* api) {
  ConnectionPtr old;
  if (const absl::StatusOr<SessionId> id = broker_->SessionOf(token); id.ok()) {
    old = FindSession(*id);
  }
  if (old != nullptr) {
    connection->match = old->match;
    // Before anything changes: the session outlives a refusal.
    if (absl::Status connected = ConnectApi(*connection, api); !connected.ok()) return connected;
  }
  absl::StatusOr<Broker::Resumed> resumed = broker_->Resume(token, connection->peer.identity);
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

void SessionServer::Reconciled(SessionId session) {
  if (const ConnectionPtr connection = FindSession(session); connection != nullptr) {
    connection->reconciled = true;
  }
}

absl::Status SessionServer::Deliver(SessionId session, uint64_t delivery_id,
                                    const Broker::Handover& handover, bool may_wait) {
  ConnectionPtr connection;
  std::shared_ptr<const UniqueFd> socket;
  {
    absl::MutexLock lock(&mutex_);
    auto it = sessions_.find(session);
    if (it != sessions_.end()) {
      connection = it->second;
      socket = connection->socket;
    }
  }
  if (socket == nullptr) return absl::UnavailableError("the session's socket is closed");
  if (!connection->reconciled) {
    return absl::UnavailableError("the connection that this call came by has ended");
  }
  std::vector<DeliveryPart> parts = PartsOf(delivery_id, handover);
  std::optional<absl::MutexLock> one_after_another;
  if (parts.size() > 1) {
    if (!may_wait) return absl::DeadlineExceededError("it takes several messages");
    one_after_another.emplace(&connection->parts_mutex);
  }
  const absl::Time until = may_wait ? absl::Now() + options_.send_timeout : absl::InfinitePast();
  for (const DeliveryPart& part : parts) {
    v1::ServerMessage message;
    *message.mutable_delivery() = part.delivery;
    absl::Status sent =
        gpumem::SendMessage(socket->get(), message.SerializeAsString(), part.fds, until);
    if (may_wait && absl::IsDeadlineExceeded(sent)) {
      LogLimited(spdlog::level::warn, "sessions that do not read their sockets",
                 connection->peer.identity.uid, "session {} does not read its socket: dropped",
                 ToInt(session));
      shutdown(socket->get(), SHUT_RDWR);  // the serving thread sees it and ends the session
      return absl::ResourceExhaustedError(
          "the client does not read its session socket; its session is ended");
    }
    if (!sent.ok()) return sent;
    handover.partly_sent = parts.size() > 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<SessionServer::Recognition> SessionServer::WhoIs(SessionId session) {
  absl::MutexLock lock(&mutex_);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return absl::UnavailableError("the session has ended");
  return Recognition{it->second->peer.identity, it->second->match};
}

void SessionServer::Close(const ConnectionPtr& connection, const absl::Status& why) {
  std::shared_ptr<const UniqueFd> socket;
  bool leaves = false;
  {
    absl::MutexLock lock(&mutex_);
    leaves = leaves_sessions_;
    socket = std::exchange(connection->socket, nullptr);
    // A session stays, without its socket, until the broker forgets it.
    if (!connection->welcomed) connections_.erase(connection->key);
  }
  if (socket != nullptr) {
    const bool refused = !connection->welcomed && !(parks_ && absl::IsUnavailable(why));
    SendLast(socket->get(),
             refused ? RefusalOf(why) : GoodbyeOf(why, leaves || !connection->welcomed));
    // Deliver may still hold the descriptor: end it for the peer all the same.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket->get(), nullptr);
    shutdown(socket->get(), SHUT_RDWR);
    if (connection->api != nullptr) connection->api->Cut();
    if (connection->welcomed) {
      spdlog::debug("session {} ended: {}", ToInt(connection->session), Printable(why.message()));
      if (!leaves) broker_->SocketClosed(connection->session);
      on_ended_(connection->session);
    } else if (absl::IsUnavailable(why)) {
      // It went before it had asked for a session, or the daemon does.
      spdlog::debug("no session for {} (pid {}, uid {}): {}", connection->peer.command,
                    connection->peer.identity.pid, connection->peer.identity.uid,
                    Printable(why.message()));
    } else {
      LogLimited(spdlog::level::info, "refused sessions", connection->peer.identity.uid,
                 "refused {} (pid {}, uid {}): {}", connection->peer.command,
                 connection->peer.identity.pid, connection->peer.identity.uid,
                 Printable(why.message()));
    }
  }
  if (!connection->welcomed) greeting_.remove(connection);
}

SessionServer::ConnectionPtr SessionServer::FindSession(SessionId session) {
  absl::MutexLock lock(&mutex_);
  auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second;
}

absl::StatusOr<UniqueFd> SessionServer::ProcessOf(SessionId session) {
  const ConnectionPtr connection = FindSession(session);  // keeps the pidfd open
  if (connection == nullptr) return NoSuchSession(session);
  if (!connection->peer.certain) return NotCertain(connection->peer);
  UniqueFd process(fcntl(connection->peer.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (process.valid()) return process;
  return absl::ResourceExhaustedError(
      "the daemon has no file descriptors left; raise its LimitNOFILE");
}

absl::Status SessionServer::Signal(SessionId session, int signal) {
  const ConnectionPtr connection = FindSession(session);
  if (connection == nullptr) return NoSuchSession(session);
  const Peer& peer = connection->peer;
  if (!peer.certain) return NotCertain(peer);
  absl::Status sent = SignalProcess(peer.pidfd.get(), signal);
  if (sent.ok()) return sent;
  return absl::Status(sent.code(), absl::StrCat("process ", peer.identity.pid, " of session ",
                                                ToInt(session), ": ", sent.message()));
}

void SessionServer::Forget(SessionId session) {
  ConnectionPtr last;  // closes its descriptors outside the lock
  absl::MutexLock lock(&mutex_);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  last = std::move(it->second);
  sessions_.erase(it);
  connections_.erase(last->key);
}

void SessionServer::EndExpiredGreetings() {
  if (parks_) return;
  const absl::Time now = absl::Now();
  while (!greeting_.empty() && greeting_.front()->greeting_ends <= now) {
    const ConnectionPtr silent = greeting_.front();
    OnSocket(silent);  // it may have spoken by now, and waited for this thread
    if (parks_) return;
    if (silent->welcomed || silent->socket == nullptr) continue;
    Close(silent, absl::DeadlineExceededError(absl::StrCat(
                      "no Hello within ", absl::FormatDuration(options_.hello_timeout))));
  }
}

void SessionServer::CloseAll() {
  std::vector<ConnectionPtr> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, connection] : connections_) all.push_back(connection);
  }
  for (const ConnectionPtr& connection : all) {
    Close(connection, absl::UnavailableError("the daemon is stopping"));
  }
}

}  // namespace gpumemd
