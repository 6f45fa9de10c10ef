// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/peer_book.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumemd {
namespace {

constexpr absl::Duration kRemembered = absl::Seconds(10);
// gRPC's name for a peer whose socket has no name.
constexpr char kNameless[] = "unix:";

// As gRPC names the peer of this socket.
std::string NameOf(int socket) {
  sockaddr_un address{};
  socklen_t size = sizeof(address);
  const bool known = getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  constexpr size_t kPath = offsetof(sockaddr_un, sun_path);
  if (!known || size <= kPath + 1 || address.sun_path[0] != '\0') return kNameless;
  return absl::StrCat(
      "unix-abstract:",
      std::string(address.sun_path + 1, std::min<size_t>(size, sizeof(address)) - kPath - 1));
}

}  // namespace

void PeerBook::Connected(uint64_t connection, int socket, const PeerIdentity& peer) {
  Entry entry{.name = NameOf(socket), .who = {.uid = peer.uid, .pid = peer.pid}};
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    it = it->second.ended + kRemembered < now ? entries_.erase(it) : std::next(it);
  }
  entries_.insert_or_assign(connection, std::move(entry));
}

void PeerBook::Ended(uint64_t connection) {
  absl::MutexLock lock(&mutex_);
  if (auto it = entries_.find(connection); it != entries_.end()) it->second.ended = absl::Now();
}

std::vector<AuditOperator> PeerBook::Find(const std::string& name) const {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  std::vector<AuditOperator> found;
  for (const auto& [connection, entry] : entries_) {
    if (entry.name != name || entry.ended + kRemembered < now) continue;
    if (std::find(found.begin(), found.end(), entry.who) == found.end()) {
      found.push_back(entry.who);
    }
  }
  return found;
}

}  // namespace gpumemd
