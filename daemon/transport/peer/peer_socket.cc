// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/peer_socket.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

// Bounds the descriptors in flight to a client that does not read: the kernel counts them
// against the daemon. A few Deliveries fit.
constexpr int kSendBufferBytes = 16 * 1024;

// Debian 12's headers do not name it.
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

// Closes the descriptors in a message's control data; true if there were any. Only kernels that
// cannot refuse them deliver them. They are taken, not dropped, because the last close of a TCP
// socket takes as long as its owner has requested with SO_LINGER. Otherwise any user could stop the
// thread that serves all.
bool CloseFds(msghdr* header) {
  bool any = false;
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number;  // the control data need not be aligned for int
      memcpy(&number, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      const gpumem::UniqueFd fd(number);
      const linger none{};
      setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
      any = true;
    }
  }
  return any;
}

}  // namespace

void RefuseDescriptors(int listener) {
  const int no = 0;
  setsockopt(listener, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
}

void PrepareClientSocket(int socket) {
  const int send_buffer_bytes = kSendBufferBytes, yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof(send_buffer_bytes));
  setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes));
}

absl::StatusOr<std::string> ReceiveFromClient(int socket) {
  std::array<char, gpumem::kMaxMessageBytes> bytes;
  alignas(cmsghdr) char
      control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(gpumem::kMaxMessageFds * sizeof(int))];
  iovec part = {bytes.data(), bytes.size()};
  msghdr header;
  ssize_t size;
  do {
    header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // ECONNRESET is reported once, before the data that the client sent before it closed.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0 && errno == EAGAIN) return absl::DeadlineExceededError("no message yet");
  if (size < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot receive from the client: ", strerror(errno)));
  }
  const bool fds = CloseFds(&header);  // before any return
  if (fds || (header.msg_flags & MSG_CTRUNC) != 0) {
    return absl::InvalidArgumentError(
        "the message carried file descriptors; only the daemon sends them");
  }
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    return absl::DataLossError(
        absl::StrCat("the message was larger than ", gpumem::kMaxMessageBytes, " bytes"));
  }
  if (size == 0 && header.msg_controllen == 0) {
    return absl::UnavailableError("the client has closed the connection");
  }
  if (size == 0) return absl::InvalidArgumentError("the message was empty");
  return std::string(bytes.data(), static_cast<size_t>(size));
}

void SendLast(int socket, const gpumem::v1::ServerMessage& message) {
  shutdown(socket, SHUT_RD);
  absl::Status left;
  do {  // it ends: only the contents of the client's send buffer are left
    left = ReceiveFromClient(socket).status();
  } while (left.ok() || absl::IsInvalidArgument(left) || absl::IsDataLoss(left));
  gpumem::SendMessage(socket, message.SerializeAsString(), {}, absl::InfinitePast()).IgnoreError();
}

std::string Printable(absl::string_view text) {
  std::string printable(text);
  for (char& c : printable) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return printable;
}

}  // namespace gpumemd
