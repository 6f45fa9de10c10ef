#include "daemon/transport/grpc_listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <tuple>
#include <utility>

#include "daemon/transport/peer.h"
#include "daemon/transport/peer_socket.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kStopKey = 1;

// Then the ends of connections have their turn, however many more wait.
constexpr int kAcceptsPerRound = 16;

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

GrpcListener::GrpcListener(UniqueFd listener, grpc::ServerBuilder* builder,
                           GrpcListenerOptions options)
    : listener_(std::move(listener)),
      options_(options),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      spare_(OpenSpare()),
      acceptor_(AcceptorOf(builder)),
      next_key_(kStopKey + 1) {
  RefuseDescriptors(listener_.get());
  Add(epoll_.get(), listener_.get(), EPOLLIN, kListenerKey);
  Add(epoll_.get(), stop_.get(), EPOLLIN, kStopKey);
}

GrpcListener::~GrpcListener() {
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void GrpcListener::Start() {
  thread_ = std::thread([this] { Serve(); });
}

void GrpcListener::Serve() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int n = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
    for (int i = 0; i < n; ++i) {
      const uint64_t key = events[i].data.u64;
      if (key == kStopKey) return;
      if (key != kListenerKey) Ended(key);
    }
    // After the ends, so that they make room; nothing is lost by looking in vain.
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
    UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)).reset();
    spare_ = OpenSpare();
  }
}

void GrpcListener::Accept(UniqueFd fd) {
  absl::StatusOr<PeerIdentity> peer = CredentialsOf(fd.get());
  if (!peer.ok()) return;
  if (options_.admits && !options_.admits(*peer)) {
    spdlog::warn("refused a connection of uid {} (pid {}): it is not admitted to this socket",
                 peer->uid, peer->pid);
    if (options_.on_refused) options_.on_refused(*peer);
    return;
  }
  auto& of_user = by_uid_[peer->uid];
  if (of_user >= options_.max_connections_per_uid) {
    spdlog::warn("refused a connection of uid {} (pid {}): it has {} of {} open", peer->uid,
                 peer->pid, of_user, connections_.size());
    return;
  }
  if (connections_.size() >= options_.max_connections) EndOneOfTheGreediest();
  UniqueFd watched(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!watched.valid()) return;
  const uint64_t key = next_key_++;
  if (options_.on_connected) options_.on_connected(key, fd.get(), *peer);
  Add(epoll_.get(), watched.get(), EPOLLRDHUP | EPOLLHUP | EPOLLONESHOT, key);
  connections_.emplace(key, Connection{std::move(watched), peer->uid});
  ++of_user;

  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_.get();
  connection.fd = fd.release();  // gRPC's now
  acceptor_->HandleNewConnection(&connection);
}

void GrpcListener::EndOneOfTheGreediest() {
  uid_t greediest = 0;
  uint32_t most = 0;
  for (const auto& [uid, count] : by_uid_) {
    if (count > most) std::tie(greediest, most) = std::tuple(uid, count);
  }
  for (const auto& [key, connection] : connections_) {
    if (connection.uid != greediest) continue;
    spdlog::warn("too many connections: ended one of the {} of uid {}", most, greediest);
    shutdown(connection.fd.get(), SHUT_RDWR);
    return Ended(key);
  }
}

void GrpcListener::Ended(uint64_t key) {
  auto it = connections_.find(key);
  if (it == connections_.end()) return;
  auto count = by_uid_.find(it->second.uid);
  if (--count->second == 0) by_uid_.erase(count);
  connections_.erase(it);
  if (options_.on_ended) options_.on_ended(key);
}

}  // namespace gpumemd
