// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/host_ipc_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/mapping/host_ipc.h"
#include "common/start_thread.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// Openers send their request as soon as they have connected; these limits are for those that do
// not.
constexpr int kMaxOfUser = 64;
constexpr size_t kMaxAskers = 512;
// Pause before accepting again if no descriptor is left for a connection.
constexpr int kPauseMs = 100;

// Debian 12's headers do not name it.
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

// Closes unwanted descriptors. They are taken, not dropped, because the last close of a TCP socket
// takes as long as its owner has requested with SO_LINGER.
void CloseFds(msghdr* header) {
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number;  // the control data need not be aligned for int
      std::memcpy(&number, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      const UniqueFd fd(number);
      const linger none{};
      setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    }
  }
}

// Returns the request on a connection: empty at its end, or if malformed. Absent if none has come
// yet.
std::optional<std::string> Receive(int socket) {
  char bytes[sizeof(gpumem::ExportData) + 1];
  alignas(cmsghdr) char control[CMSG_SPACE(gpumem::kMaxMessageFds * sizeof(int))];
  iovec part = {bytes, sizeof(bytes)};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0) return errno == EAGAIN ? std::nullopt : std::make_optional<std::string>();
  CloseFds(&header);
  if (header.msg_controllen != 0 || size != sizeof(gpumem::ExportData)) return "";
  return std::string(bytes, static_cast<size_t>(size));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostIpcServer>> HostIpcServer::Start(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InternalError(absl::StrCat("the socket path ", path, " is too long: ",
                                            sizeof(address.sun_path) - 1, " bytes at most"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!socket.valid() || !stop.valid()) {
    return absl::ResourceExhaustedError(absl::ErrnoToStatus(errno, "socket").message());
  }
  // Kernels since Linux 6.16 refuse descriptors here. On older ones a descriptor that takes long to
  // close can block the thread that answers, and nothing else.
  const int no = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
  // Left by one that was killed: the folder belongs to one daemon.
  unlink(path.c_str());
  // Any bearer of the 64 bytes may open their memory, as with CUDA.
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0666) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    return absl::InternalError(
        absl::ErrnoToStatus(errno, absl::StrCat("listening on ", path)).message());
  }
  std::unique_ptr<HostIpcServer> server(new HostIpcServer(std::move(socket), std::move(stop)));
  server->file_ = SocketFile::At(path);
  absl::StatusOr<std::thread> thread =
      gpumem::StartThread([server = server.get()] { server->Serve(); });
  if (!thread.ok()) return thread.status();
  server->thread_ = *std::move(thread);
  return server;
}

HostIpcServer::~HostIpcServer() {
  file_.Remove();
  if (!thread_.joinable()) return;  // it was never started
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void HostIpcServer::Add(const gpumem::ExportData& handle, UniqueFd memory) {
  absl::MutexLock lock(&mutex_);
  memory_[handle] = std::move(memory);
}

void HostIpcServer::Remove(const gpumem::ExportData& handle) {
  absl::MutexLock lock(&mutex_);
  memory_.erase(handle);
}

void HostIpcServer::Serve() {
  while (true) {
    std::vector<pollfd> ready = {{stop_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    for (const Asker& asker : askers_) ready.push_back({asker.socket.get(), POLLIN, 0});
    if (poll(ready.data(), ready.size(), -1) < 0) continue;
    if (ready[0].revents != 0) return;
    // Existing connections come before new ones.
    auto polled = ready.begin() + 2;
    for (auto asker = askers_.begin(); asker != askers_.end(); ++polled) {
      const std::optional<std::string> question =
          polled->revents == 0 ? std::nullopt : Receive(asker->socket.get());
      if (question.has_value()) {
        Answer(*question, asker->socket.get());
        asker = askers_.erase(asker);
      } else {
        ++asker;
      }
    }
    if (ready[1].revents != 0 && !Accept()) poll(ready.data(), 1, kPauseMs);
  }
}

bool HostIpcServer::Accept() {
  UniqueFd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return true;
    if (askers_.empty()) return false;
    askers_.pop_front();
    return true;
  }
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return true;
  const auto is_his = [&peer](const Asker& asker) { return asker.user == peer.uid; };
  if (std::count_if(askers_.begin(), askers_.end(), is_his) >= kMaxOfUser) {
    askers_.erase(std::find_if(askers_.begin(), askers_.end(), is_his));
  } else if (askers_.size() >= kMaxAskers) {
    askers_.pop_front();
  }
  askers_.push_back({std::move(socket), peer.uid});
  return true;
}

void HostIpcServer::Answer(absl::string_view question, int asker) {
  gpumem::ExportData handle = {};
  if (question.size() == handle.size()) {
    std::memcpy(handle.data(), question.data(), handle.size());
    absl::MutexLock lock(&mutex_);
    const auto found = memory_.find(handle);
    // Whether the peer takes it does not matter.
    if (found == memory_.end()) {
      gpumem::SendMessage(asker, gpumem::kHostIpcGone, {}, absl::InfinitePast()).IgnoreError();
    } else {
      gpumem::SendMessage(asker, gpumem::kHostIpcOpened, {found->second.get()},
                          absl::InfinitePast())
          .IgnoreError();
    }
  }
  // Takes its further messages, too, so that this thread's close() does not close their
  // descriptors.
  shutdown(asker, SHUT_RD);
  for (std::optional<std::string> more = Receive(asker); more.has_value() && !more->empty();) {
    more = Receive(asker);
  }
}

}  // namespace gpumemd
