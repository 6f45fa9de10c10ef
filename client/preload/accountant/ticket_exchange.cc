// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/ticket_exchange.h"

#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace gpumem::preload {
namespace {

constexpr char kMagic[8] = {'g', 'p', 'u', 'm', 'e', 'm', '\0', '\1'};
// A peer of the same user that connects and says nothing holds the others up for so long.
constexpr timeval kPatience = {.tv_sec = 1, .tv_usec = 0};
// Tickets of blocks in 1,000 segments.
constexpr size_t kLongestTicket = size_t{64} << 10;

struct Packed {
  char magic[8];
  unsigned char name[16];
  unsigned char key[16];
  unsigned char zero[24];
};
static_assert(sizeof(Packed) == sizeof(GpumemIpcHandle));

Packed Unpack(const GpumemIpcHandle& handle) {
  Packed packed;
  std::memcpy(&packed, &handle, sizeof(packed));
  return packed;
}

absl::string_view View(const unsigned char (&bytes)[16]) {
  return {reinterpret_cast<const char*>(bytes), sizeof(bytes)};
}

struct Address {
  sockaddr_un address = {};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Address AddressOf(absl::string_view name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  // An abstract name begins with a 0, and its length counts.
  const std::string text = absl::StrCat("gpumem-ipc-", absl::BytesToHexString(name));
  std::memcpy(result.address.sun_path + 1, text.data(), text.size());
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return result;
}

bool IsTrusted(int peer) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         (credentials.uid == geteuid() || credentials.uid == 0);
}

void SetPatience(int socket) {
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
}

bool FillRandom(void* bytes, size_t size) {
  return getrandom(bytes, size, 0) == static_cast<ssize_t>(size);
}

}  // namespace

absl::StatusOr<GpumemIpcHandle> TicketExchange::Offer(uint64_t base, const std::string& ticket) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = Start(); !status.ok()) return status;
  auto [it, is_new] = keys_.try_emplace(base);
  if (is_new && !FillRandom(it->second.data(), it->second.size())) {
    keys_.erase(it);
    return absl::UnavailableError("there are no random numbers");
  }
  offered_[it->second] = {.base = base, .ticket = ticket};
  Packed packed = {};
  std::memcpy(packed.magic, kMagic, sizeof(kMagic));
  std::memcpy(packed.name, name_.data(), sizeof(packed.name));
  std::memcpy(packed.key, it->second.data(), sizeof(packed.key));
  GpumemIpcHandle handle;
  std::memcpy(&handle, &packed, sizeof(handle));
  return handle;
}

void TicketExchange::Withdraw(uint64_t base) {
  absl::MutexLock lock(&mutex_);
  const auto it = keys_.find(base);
  if (it == keys_.end()) return;
  offered_.erase(it->second);
  keys_.erase(it);
}

bool TicketExchange::IsOurs(const GpumemIpcHandle& handle) {
  return std::memcmp(handle.bytes, kMagic, sizeof(kMagic)) == 0;
}

absl::StatusOr<std::string> TicketExchange::Fetch(const GpumemIpcHandle& handle) {
  const Packed packed = Unpack(handle);
  const int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (server < 0) return absl::NotFoundError("no socket could be made");
  const absl::Cleanup close_server = [&] { close(server); };
  SetPatience(server);
  const Address address = AddressOf(View(packed.name));
  std::string ticket(kLongestTicket, '\0');
  // The name is unguessable, but handles may be passed on: the ticket is of the same user or none.
  if (connect(server, address.get(), address.length) != 0 || !IsTrusted(server) ||
      send(server, packed.key, sizeof(packed.key), MSG_NOSIGNAL) != sizeof(packed.key)) {
    return absl::NotFoundError("the process that made the handle is not reachable");
  }
  const ssize_t length = recv(server, ticket.data(), ticket.size(), 0);
  if (length <= 0) return absl::NotFoundError("the block is not offered any more");
  ticket.resize(static_cast<size_t>(length));
  return ticket;
}

absl::Status TicketExchange::Start() {
  if (socket_ >= 0) return absl::OkStatus();
  const int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  absl::Cleanup close_server = [&] { close(server); };
  if (server < 0 || !FillRandom(name_.data(), name_.size())) {
    return absl::UnavailableError("no socket could be made");
  }
  const Address address = AddressOf({reinterpret_cast<const char*>(name_.data()), name_.size()});
  if (bind(server, address.get(), address.length) != 0 || listen(server, 16) != 0) {
    return absl::UnavailableError("no socket could be made");
  }
  std::move(close_server).Cancel();
  socket_ = server;
  // The program's signals are for the program's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { Serve(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return absl::OkStatus();
}

void TicketExchange::Serve() {
  int server;
  {
    absl::MutexLock lock(&mutex_);
    server = socket_;
  }
  while (true) {
    const int peer = accept4(server, nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) continue;
    const absl::Cleanup close_peer = [&] { close(peer); };
    Key key;
    SetPatience(peer);
    if (!IsTrusted(peer) || recv(peer, key.data(), key.size(), 0) != sizeof(key)) continue;
    const std::string ticket = TicketOf(key);
    (void)send(peer, ticket.data(), ticket.size(), MSG_NOSIGNAL);
  }
}

std::string TicketExchange::TicketOf(const Key& key) const {
  absl::MutexLock lock(&mutex_);
  const auto it = offered_.find(key);
  return it == offered_.end() ? std::string() : it->second.ticket;
}

}  // namespace gpumem::preload
