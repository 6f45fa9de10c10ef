#include "daemon/transport/grpc_listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kStopKey = 1;

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
      acceptor_(AcceptorOf(builder)),
      next_key_(kStopKey + 1) {
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
    AcceptAll();
  }
}

void GrpcListener::AcceptAll() {
  while (true) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      // Out of descriptors: the limits below keep that from happening while the daemon's
      // own limit is sane. Waking again at once would not help; the next end will.
      if (errno != EAGAIN) spdlog::warn("cannot accept: {}", strerror(errno));
      return;
    }
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    if (connections_.size() >= options_.max_connections ||
        by_uid_[peer.uid] >= options_.max_connections_per_uid) {
      spdlog::warn("refused a connection of uid {} (pid {}): it has {} of {} open", peer.uid,
                   peer.pid, by_uid_[peer.uid], connections_.size());
      continue;
    }
    UniqueFd watched(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!watched.valid()) continue;
    const uint64_t key = next_key_++;
    Add(epoll_.get(), watched.get(), EPOLLRDHUP | EPOLLHUP | EPOLLONESHOT, key);
    connections_.emplace(key, Connection{std::move(watched), peer.uid});
    ++by_uid_[peer.uid];

    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener_.get();
    connection.fd = fd.release();  // gRPC's now
    acceptor_->HandleNewConnection(&connection);
  }
}

void GrpcListener::Ended(uint64_t key) {
  auto it = connections_.find(key);
  if (it == connections_.end()) return;
  auto count = by_uid_.find(it->second.uid);
  if (--count->second == 0) by_uid_.erase(count);
  connections_.erase(it);
}

}  // namespace gpumemd
