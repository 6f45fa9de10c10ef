// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/fd_store/fd_crates.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/unix_channel.h"
#include "daemon/restart/fd_store/fd_name.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

constexpr size_t kMaxName = 255;
// Room for the contents of a crate, 1.5 KiB each with the kernel's overhead, and to spare.
constexpr int kQueueBytes = 256 * 1024;
// Prefix of a mark, in place of a descriptor, that Adopt() has put in.
constexpr absl::string_view kMark = "!";

absl::Status Put(const UniqueFd& in, absl::string_view name, int fd) {
  // It never waits: a queue that is full is an error.
  absl::Status put = gpumem::SendMessage(
      in.get(), name, fd < 0 ? absl::Span<const int>() : absl::MakeConstSpan(&fd, 1),
      absl::InfinitePast());
  if (!absl::IsDeadlineExceeded(put)) return put;
  return absl::InternalError(absl::StrCat("a crate has no room for ", FdCrates::kCrateSize,
                                          " descriptors; raise "
                                          "net.core.wmem_max"));
}

// Returns the front descriptor, which stays there; nullopt: the queue is empty.
absl::StatusOr<std::optional<NamedFd>> Look(const UniqueFd& out) {
  char name[kMaxName];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec bytes = {name, sizeof(name)};
  msghdr header = {};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t size;
  do {
    size = ::recvmsg(out.get(), &header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  // ECONNRESET: this is the end that nothing goes into, and the other one is closed.
  if (size < 0 && errno != EAGAIN && errno != ECONNRESET) {
    return absl::ErrnoToStatus(errno, "cannot read a crate");
  }
  if (size <= 0) return std::nullopt;
  NamedFd front{.name = std::string(name, static_cast<size_t>(size))};
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof(int));
    front.fd.reset(fd);
  }
  if (!front.fd.valid() && !absl::StartsWith(front.name, kMark)) {
    return absl::ResourceExhaustedError(
        "this process may not open the descriptors that are stored for it; raise its limit of "
        "open files");
  }
  return front;
}

// Takes out the front descriptor.
void Drop(const UniqueFd& out) {
  // The kernel closes descriptors for which there is no room.
  char name[kMaxName];
  iovec bytes = {name, sizeof(name)};
  msghdr header = {};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  while (::recvmsg(out.get(), &header, MSG_DONTWAIT) < 0 && errno == EINTR) {
  }
}

bool IsCrateEnd(const UniqueFd& end) {
  int type = 0, domain = 0;
  socklen_t size = sizeof(int);
  return ::getsockopt(end.get(), SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
         ::getsockopt(end.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
         type == SOCK_SEQPACKET && domain == AF_UNIX;
}

bool HasContent(const UniqueFd& end) {
  pollfd ready = {end.get(), POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FdCrates::Crate>> FdCrates::MakeCrate(uint64_t number,
                                                                     absl::Duration timeout) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a socket pair");
  }
  auto crate = std::make_unique<Crate>();
  crate->in.reset(ends[0]);
  crate->out.reset(ends[1]);
  // As much of it as the system allows.
  (void)::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &kQueueBytes, sizeof(kQueueBytes));
  // First the crate, then its contents; both ends or none (except if the store is full).
  absl::Status stored = store_.Store(ToString({.kind = kKind, .number = number}),
                                     absl::Span<const int>(ends), timeout);
  if (!stored.ok()) return stored;
  return crate;
}

void FdCrates::Add(uint64_t number, std::unique_ptr<Crate> crate) {
  with_room_.push_back(crate.get());
  crates_.emplace(number, std::move(crate));
}

absl::Status FdCrates::AddCrate(absl::Duration timeout) {
  uint64_t number;
  {
    absl::MutexLock lock(&mutex_);
    number = next_++;
  }
  absl::StatusOr<std::unique_ptr<Crate>> made = MakeCrate(number, timeout);
  if (!made.ok()) return made.status();
  absl::MutexLock lock(&mutex_);
  Add(number, *std::move(made));
  return absl::OkStatus();
}

absl::Status FdCrates::Store(absl::string_view name, int fd) {
  absl::MutexLock lock(&mutex_);
  return StoreLocked(name, fd);
}

absl::StatusOr<bool> FdCrates::StoreInRoom(absl::string_view name, int fd) {
  absl::MutexLock lock(&mutex_);
  return StoreInRoomLocked(name, fd);
}

absl::Status FdCrates::StoreLocked(absl::string_view name, int fd) {
  absl::StatusOr<bool> stored = StoreInRoomLocked(name, fd);
  if (stored.ok() && !*stored) {
    const uint64_t number = next_++;
    absl::StatusOr<std::unique_ptr<Crate>> made = MakeCrate(number, FdStore::kTimeout);
    if (!made.ok()) return made.status();
    Add(number, *std::move(made));
    stored = StoreInRoomLocked(name, fd);
  }
  return stored.status();
}

absl::StatusOr<bool> FdCrates::StoreInRoomLocked(absl::string_view name, int fd) {
  if (name.empty() || name.size() > kMaxName || absl::StartsWith(name, kMark) ||
      ::fcntl(fd, F_GETFD) < 0) {
    return absl::InvalidArgumentError(
        "a descriptor to store has to be open, with a name of 1 to 255 bytes that does not begin "
        "with '!'");
  }
  if (where_.contains(name)) {
    return absl::AlreadyExistsError(absl::StrCat("a descriptor is stored as ", name, " already"));
  }
  if (with_room_.empty()) return false;
  Crate* const crate = with_room_.back();
  if (absl::Status put = Put(crate->in, name, fd); !put.ok()) return put;
  crate->content.emplace_back(name);
  if (crate->content.size() == kCrateSize) with_room_.pop_back();
  where_.emplace(name, crate);
  return true;
}

absl::Status FdCrates::Remove(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  const auto found = where_.find(name);
  if (found == where_.end()) {
    return absl::NotFoundError(absl::StrCat("no descriptor is stored as ", name));
  }
  Crate& crate = *found->second;
  while (crate.content.front() != name) {
    absl::StatusOr<std::optional<NamedFd>> front = Look(crate.out);
    if (!front.ok()) return front.status();
    if (!front->has_value() || (*front)->name != crate.content.front()) {
      return absl::InternalError("a crate does not hold what was put into it");
    }
    if (absl::Status put = Put(crate.in, (*front)->name, (*front)->fd.get()); !put.ok()) return put;
    crate.content.push_back(std::move(crate.content.front()));
    crate.content.pop_front();
    Drop(crate.out);
  }
  if (crate.content.size() == kCrateSize) with_room_.push_back(&crate);
  Drop(crate.out);
  crate.content.pop_front();
  where_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedFd>> FdCrates::Adopt(std::vector<NamedFd>& inherited) {
  absl::MutexLock lock(&mutex_);
  std::map<uint64_t, std::vector<UniqueFd>> ends;
  std::vector<NamedFd> others;
  for (NamedFd& one : inherited) {
    const std::optional<FdName> name = ParseFdName(one.name);
    if (name.has_value() && name->kind == kKind && IsCrateEnd(one.fd)) {
      ends[name->number].push_back(std::move(one.fd));
      next_ = std::max(next_, name->number + 1);
    } else {
      others.push_back(std::move(one));
    }
  }
  inherited = std::move(others);

  std::vector<NamedFd> found;
  std::vector<std::pair<uint64_t, UniqueFd>> halves;
  for (auto& [number, both] : ends) {
    // Only the contents tell which end is which.
    if (both.size() > 1 && HasContent(both[0])) std::swap(both[0], both[1]);
    if (both.size() == 1) {
      halves.emplace_back(number, std::move(both[0]));
      continue;
    }
    auto crate = std::make_unique<Crate>();
    crate->in = std::move(both[0]);
    crate->out = std::move(both[1]);
    absl::Status adopted = AdoptWhole(number, std::move(crate), found);
    if (!adopted.ok()) return adopted;
  }
  // The manager had no room for their other ends: nothing more fits into them.
  for (const auto& [number, out] : halves) {
    if (absl::Status moved = AdoptHalf(number, out, found); !moved.ok()) return moved;
  }
  return found;
}

absl::Status FdCrates::AdoptWhole(uint64_t number, std::unique_ptr<Crate> adopted,
                                  std::vector<NamedFd>& found) {
  Crate* const crate = crates_.emplace(number, std::move(adopted)).first->second.get();
  // All that is in it goes round once: until the mark, which is ours and no dead process's, is in
  // front.
  uint64_t chance = 0;
  if (::getrandom(&chance, sizeof(chance), 0) != sizeof(chance)) {
    return absl::ErrnoToStatus(errno, "getrandom");
  }
  const std::string mark = absl::StrCat(kMark, absl::Hex(chance));
  if (absl::Status put = Put(crate->in, mark, -1); !put.ok()) return put;
  while (true) {
    absl::StatusOr<std::optional<NamedFd>> front = Look(crate->out);
    if (!front.ok()) return front.status();
    if (!front->has_value()) {
      return absl::InternalError(absl::StrCat("the ends of crate ", number, " are no pair"));
    }
    NamedFd& one = **front;
    const bool is_mark = absl::StartsWith(one.name, kMark), is_last = one.name == mark;
    if (!is_mark && !where_.contains(one.name)) {
      if (absl::Status put = Put(crate->in, one.name, one.fd.get()); !put.ok()) return put;
      crate->content.push_back(one.name);
      where_.emplace(one.name, crate);
      found.push_back(std::move(one));
    }
    Drop(crate->out);
    if (is_last) break;
  }
  if (crate->content.size() < kCrateSize) with_room_.push_back(crate);
  return absl::OkStatus();
}

absl::Status FdCrates::AdoptHalf(uint64_t number, const UniqueFd& out,
                                 std::vector<NamedFd>& found) {
  while (true) {
    absl::StatusOr<std::optional<NamedFd>> front = Look(out);
    if (!front.ok()) return front.status();
    if (!front->has_value()) break;
    NamedFd& one = **front;
    if (!absl::StartsWith(one.name, kMark) && !where_.contains(one.name)) {
      if (absl::Status stored = StoreLocked(one.name, one.fd.get()); !stored.ok()) return stored;
      found.push_back(std::move(one));
    }
    Drop(out);
  }
  return store_.Remove(ToString({.kind = kKind, .number = number}));
}

size_t FdCrates::size() const {
  absl::MutexLock lock(&mutex_);
  return where_.size();
}

bool FdCrates::full() const {
  absl::MutexLock lock(&mutex_);
  return with_room_.empty();
}

size_t FdCrates::crates() const {
  absl::MutexLock lock(&mutex_);
  return crates_.size();
}

}  // namespace gpumemd
