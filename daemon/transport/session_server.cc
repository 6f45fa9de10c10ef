// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/session_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/denial.h"
#include "daemon/log/log.h"
#include "daemon/transport/descriptor_reserve.h"
#include "daemon/transport/peer/peer_socket.h"
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

UniqueFd OpenSpare() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

v1::ServerMessage RefusalOf(const absl::Status& why) {
  v1::ServerMessage message;
  message.mutable_refusal()->set_code(static_cast<int>(why.code()));
  message.mutable_refusal()->set_message(Printable(why.message()));
  message.mutable_refusal()->set_try_again(gpumem::IsTryAgain(why));
  if (auto denial = gpumem::DenialOf(why)) *message.mutable_refusal()->mutable_denial() = *denial;
  return message;
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
      rules_(std::make_shared<const std::vector<Rule>>(std::move(rules))) {
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
  rules_ = std::make_shared<const std::vector<Rule>>(std::move(rules));
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
        Close(connection, absl::UnavailableError("its process has ended"));
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
  Close(silent,
        absl::ResourceExhaustedError(
            "too many connections have not sent Hello, and this one is the oldest of them"));
}

void SessionServer::OnSocket(const ConnectionPtr& connection) {
  if (connection->socket == nullptr) return;  // closed; its process is still watched
  if (!connection->welcomed) return OnHello(connection);
  absl::StatusOr<std::string> message = ReceiveFromClient(connection->socket->get());
  if (absl::IsDeadlineExceeded(message.status())) return;
  Close(connection, message.ok() ? absl::InvalidArgumentError(
                                       "a client must not send messages on this socket after Hello")
                                 : message.status());
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
    } else if (absl::IsUnavailable(why) && !gpumem::IsTryAgain(why)) {
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
