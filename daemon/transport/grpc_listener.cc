// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/grpc_listener.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/http2_refusal.h"
#include "common/node_clock.h"
#include "daemon/log/log.h"
#include "daemon/transport/descriptor_reserve.h"
#include "daemon/transport/meter/call_window.h"
#include "daemon/transport/meter/metered_sockets.h"
#include "daemon/transport/peer/peer.h"
#include "daemon/transport/peer/peer_socket.h"
#include "daemon/transport/shut_down.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kStopKey = 1;

// How often the connections are looked at that gRPC has yet to close. One that waits for its turn
// to end is among them: its peer has hung up, or was cut.
constexpr absl::Duration kLookAtClosing = absl::Milliseconds(10);

// Then the ends of connections have their turn, however many more wait.
constexpr int kAcceptsPerRound = 16;

// Calls never wait.
std::shared_ptr<CallWindow> WindowForAll() {
  constexpr uint64_t kMost = uint64_t{1} << 20;
  return std::make_shared<CallWindow>(
      CallWindowOptions{.max_calls = kMost, .max_calls_alone = kMost});
}

UniqueFd OpenSpare() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void Add(int epoll, int fd, uint32_t events, uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> AcceptorOf(
    grpc::ServerBuilder* builder) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  return builder->experimental().AddExternalConnectionAcceptor(Type::FROM_FD,
                                                               grpc::InsecureServerCredentials());
}

}  // namespace

GrpcListener::GrpcListener(UniqueFd listener, Prepare prepare, Started started,
                           GrpcListenerOptions options)
    : listener_(std::move(listener)),
      options_(std::move(options)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      spare_(OpenSpare()),
      calls_(WindowForAll()),
      prepare_(std::move(prepare)),
      started_(std::move(started)),
      next_key_(kStopKey + 1),
      users_(options_.users) {
  RefuseDescriptors(listener_.get());
  Add(epoll_.get(), listener_.get(), EPOLLIN, kListenerKey);
  Add(epoll_.get(), stop_.get(), EPOLLIN, kStopKey);
}

GrpcListener::~GrpcListener() {
  StopAccepting();
  Shutdown(absl::InfinitePast());
}

void GrpcListener::Start() {
  thread_ = std::thread([this] { Serve(); });
}

void GrpcListener::StopAccepting() {
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
  listener_.reset();
}

void GrpcListener::Shutdown(absl::Time deadline) {
  std::vector<grpc::Server*> servers;
  for (auto& [uid, user] : servers_) servers.push_back(user.server.get());
  ShutDown(servers, deadline);
  servers_.clear();
}

absl::StatusOr<GrpcListener::UserServer*> GrpcListener::ServerOf(uid_t uid) {
  if (const auto found = servers_.find(uid); found != servers_.end()) return &found->second;
  if (servers_.size() >= options_.max_users) {
    const auto idle = std::min_element(
        servers_.begin(), servers_.end(),
        [](const auto& a, const auto& b) { return a.second.idle_since < b.second.idle_since; });
    if (idle->second.idle_since == absl::InfiniteFuture()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(servers_.size(), " users are connected, and there may be no more"));
    }
    ShutDown({idle->second.server.get()}, absl::InfinitePast());
    servers_.erase(idle);
  }
  grpc::ServerBuilder builder;
  UserServer user{.acceptor = AcceptorOf(&builder), .idle_since = gpumem::NodeTime()};
  prepare_(builder);
  user.server = builder.BuildAndStart();
  if (user.server == nullptr) {
    return absl::InternalError("gRPC could not start a server; see the daemon's log");
  }
  started_(*user.server);
  return &servers_.emplace(uid, std::move(user)).first->second;
}

absl::Duration GrpcListener::EndIdle(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  const size_t ended = absl::erase_if(servers_, [&](const auto& each) {
    const UserServer& user = each.second;
    const absl::Time end = user.idle_since + options_.linger;
    if (end > now) {
      next = std::min(next, end);
      return false;
    }
    ShutDown({user.server.get()}, absl::InfinitePast());
    return true;
  });
  // malloc(3) would keep what calls have needed at their peak.
  if (ended > 0) malloc_trim(0);
  return next - now;
}

void GrpcListener::Serve() {
  std::array<epoll_event, 64> events;
  while (true) {
    const absl::Duration sleep = std::min(
        EndIdle(gpumem::NodeTime()), closing_.empty() ? absl::InfiniteDuration() : kLookAtClosing);
    const int timeout_ms =
        sleep == absl::InfiniteDuration()
            ? -1
            : static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(sleep, absl::Milliseconds(1))));
    const int n = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
    for (int i = 0; i < n; ++i) {
      const uint64_t key = events[i].data.u64;
      if (key == kStopKey) return;
      if (key == kListenerKey) continue;
      Cut(key);
      // gRPC has ended it if it exceeded the budget.
      const auto cut = connections_.find(key);
      if (cut != connections_.end()) CutFlood(cut->second.uid);
    }
    // After the ends, so that they make room; nothing is lost by looking in vain.
    CountClosed();
    LetNextEnd();
    AcceptSome();
  }
}

void GrpcListener::AcceptSome() {
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      Accept(std::move(fd));
      continue;
    }
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (errno != EMFILE && errno != ENFILE) return;
    // Out of descriptors: a connection left waiting would wake this thread for ever.
    spare_.reset();
    {
      const UniqueFd refused(
          accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      Refuse(refused, nullptr, NoDescriptors());
    }
    spare_ = OpenSpare();
  }
}

void GrpcListener::Accept(UniqueFd fd) {
  absl::StatusOr<PeerIdentity> peer = CredentialsOf(fd.get());
  if (!peer.ok()) return;
  if (options_.admits) {
    if (absl::Status admitted = options_.admits(fd.get(), *peer); !admitted.ok()) {
      Refuse(fd, &*peer, admitted);
      if (options_.on_refused) options_.on_refused(*peer, admitted);
      return;
    }
  }
  if (users_.connections(peer->uid) >= options_.max_connections_per_uid) CountClosed();
  if (const uint32_t of_user = users_.connections(peer->uid);
      of_user >= options_.max_connections_per_uid) {
    return Refuse(fd, &*peer,
                  absl::ResourceExhaustedError(absl::StrCat("uid ", peer->uid, " has ", of_user,
                                                            " connections, and may have no more")));
  }
  CutFlood(peer->uid);
  absl::StatusOr<ConnectedUsers::Limits> limits = users_.LimitsOf(peer->uid, gpumem::NodeTime());
  if (!limits.ok()) return Refuse(fd, &*peer, limits.status());
  if (absl::Status room = MakeRoom(); !room.ok()) return Refuse(fd, &*peer, room);
  const absl::StatusOr<UserServer*> server = ServerOf(peer->uid);
  if (!server.ok()) return Refuse(fd, &*peer, server.status());
  absl::StatusOr<std::shared_ptr<ApiLine>> line = ApiLine::Of(fd);
  if (!line.ok()) return Refuse(fd, &*peer, line.status());
  if (absl::Status metered = MeterSocket(fd.get(), limits->frames, calls_, limits->ends);
      !metered.ok()) {
    return Refuse(fd, &*peer, metered);
  }
  const uint64_t key = next_key_++;
  if (options_.on_connected) options_.on_connected(key, fd.get(), *peer);
  Add(epoll_.get(), (*line)->duplicate(), EPOLLRDHUP | EPOLLHUP | EPOLLONESHOT, key);
  connections_.emplace(key, Connection{*std::move(line), peer->uid});
  users_.Connected(peer->uid);
  (*server)->idle_since = absl::InfiniteFuture();

  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_.get();
  connection.fd = fd.release();  // gRPC's now
  (*server)->acceptor->HandleNewConnection(&connection);
}

void GrpcListener::Refuse(const UniqueFd& fd, const PeerIdentity* peer, const absl::Status& why) {
  if (!fd.valid()) return;
  const std::string bytes = gpumem::Http2Refusal(why);
  // It fits into the empty buffer of a new connection.
  send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (peer == nullptr) {
    LogLimited(spdlog::level::warn, "refused connections", std::nullopt, "refused a connection: {}",
               std::string(why.message()));
  } else {
    LogLimited(spdlog::level::warn, "refused connections", peer->uid,
               "refused a connection of uid {} (pid {}): {}", peer->uid, peer->pid,
               std::string(why.message()));
  }
}

absl::Status GrpcListener::MakeRoom() {
  if (connections_.size() >= options_.max_connections) CountClosed();
  if (connections_.size() < options_.max_connections) return absl::OkStatus();
  if (closing_.size() >= options_.max_connections) {
    return absl::ResourceExhaustedError(absl::StrCat(
        closing_.size(), " connections are being closed, and there may be no more; try again"));
  }
  absl::flat_hash_map<uid_t, uint32_t> open;  // there are some: not all are in closing_
  for (const auto& [key, connection] : connections_) {
    if (!connection.line->is_cut()) ++open[connection.uid];
  }
  const auto greediest = std::max_element(
      open.begin(), open.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto its = std::find_if(connections_.begin(), connections_.end(), [&](const auto& each) {
    return each.second.uid == greediest->first && !each.second.line->is_cut();
  });
  LogLimited(spdlog::level::warn, "connections ended to make room", greediest->first,
             "too many connections: ended one of the {} of uid {}", greediest->second,
             greediest->first);
  Cut(its->first);
  return absl::OkStatus();
}

void GrpcListener::Cut(uint64_t key) {
  auto it = connections_.find(key);
  if (it == connections_.end() || it->second.line->is_cut()) return;
  it->second.line->Cut();
  closing_.push_back(key);
}

void GrpcListener::CutFlood(uid_t uid) {
  if (!users_.TakeFlood(uid, gpumem::NodeTime())) return;
  for (const auto& [key, connection] : connections_) {
    if (connection.uid == uid) Cut(key);
  }
  LogLimited(spdlog::level::warn, "cut floods", uid,
             "processes of uid {} flood the daemon with frames of HTTP/2: cut all of their gRPC "
             "connections; new ones are refused for {}",
             uid, absl::FormatDuration(options_.users.pause));
}

void GrpcListener::CountClosed() {
  absl::flat_hash_set<uid_t> users;
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(),
                                [&](uint64_t key) {
                                  auto it = connections_.find(key);
                                  if (!it->second.line->Closed()) return false;
                                  users.insert(it->second.uid);
                                  users_.Ended(it->second.uid, gpumem::NodeTime());
                                  connections_.erase(it);
                                  if (options_.on_ended) options_.on_ended(key);
                                  return true;
                                }),
                 closing_.end());
  // gRPC may have read the frames of a connection after it was cut.
  for (uid_t uid : users) {
    CutFlood(uid);
    if (users_.connections(uid) == 0) servers_.at(uid).idle_since = gpumem::NodeTime();
  }
}

void GrpcListener::LetNextEnd() {
  if (closing_.empty()) return;
  for (const std::shared_ptr<CallWindow>& window : users_.WindowsWithHeld()) ResumeReads(window);
}

}  // namespace gpumemd
