// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/fd_store/fd_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/start_thread.h"
#include "common/unix_channel.h"
#include "daemon/restart/fd_store/manager_environment.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

constexpr int kFirstInherited = 3;  // SD_LISTEN_FDS_START
constexpr char kProbe[] = "probe";
// A newer manager closes refused descriptors in a separate thread, after the barrier.
constexpr absl::Duration kRefusalTime = absl::Milliseconds(50);
// Removals between two rests: some milliseconds of the manager's time.
constexpr size_t kPortion = 64;

// FDNAME= takes these only (sd_pid_notify_with_fds(3)).
absl::Status CheckName(absl::string_view name) {
  const bool is_printable = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c)) && c != ':';
  });
  if (!name.empty() && name.size() <= 255 && is_printable) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the name of a stored descriptor has to be 1 to 255 printable ASCII characters without ':'");
}

std::string StoreMessage(absl::string_view name) {
  // FDPOLL=0, or systemd would drop descriptors that report a hang-up.
  return absl::StrCat("FDSTORE=1\nFDPOLL=0\nFDNAME=", name);
}

std::string OneLine(absl::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return line;
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> Pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  return std::make_pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

// True if the other end of the pipe is closed, now or by `deadline`.
bool OtherEndCloses(int end, absl::Time deadline) {
  while (true) {
    pollfd closed = {end, 0, 0};
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    timespec timeout = absl::ToTimespec(std::min(left, absl::Hours(1)));
    const int ready = ::ppoll(&closed, 1, &timeout, nullptr);
    if (ready > 0) return (closed.revents & (POLLHUP | POLLERR)) != 0;
    if (ready < 0 && errno != EINTR) return false;
    if (ready == 0 && absl::Now() >= deadline) return false;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<FdStore>> FdStore::FromEnvironment() {
  absl::StatusOr<ManagerEnvironment> environment = TakeManagerEnvironment();
  if (!environment.ok()) return environment.status();
  const int count = static_cast<int>(environment->fd_names.size());
  for (int fd = kFirstInherited; fd < kFirstInherited + count; ++fd) {
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("LISTEN_FDS says that this process got ", count, " descriptors, but number ",
                     fd, " is not open; only the service manager may set it (sd_listen_fds(3))"));
  }

  auto store = std::make_unique<FdStore>();
  {
    absl::MutexLock lock(&store->mutex_);
    for (int i = 0; i < count; ++i) {
      store->inherited_.push_back({std::move(environment->fd_names[static_cast<size_t>(i)]),
                                   UniqueFd(kFirstInherited + i)});
    }
  }
  if (environment->notify_socket.empty()) return store;
  store->present_ = true;
  store->capacity_ = environment->capacity;
  store->watchdog_ = environment->watchdog;
  store->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!store->wake_.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  absl::StatusOr<ManagerSocket> socket = ManagerSocket::Connect(environment->notify_socket);
  if (absl::IsUnavailable(socket.status())) {
    store->MarkLost(socket.status());
  } else if (!socket.ok()) {
    return socket.status();
  } else {
    store->socket_ = *std::move(socket);
  }
  if (environment->keeper_pid != 0) {
    store->keeper_pid_ = environment->keeper_pid;
    store->keeper_.reset(static_cast<int>(::syscall(SYS_pidfd_open, store->keeper_pid_, 0)));
    // Asked after that: the pidfd is the parent's then, and not of a later process's.
    if (!store->keeper_.valid() || ::getppid() != store->keeper_pid_) {
      store->keeper_.reset();
      store->MarkLost(absl::UnavailableError("gpumem-keeper ended while this process started"));
    }
  }
  return store;
}

FdStore::~FdStore() { StopWatching(); }

void FdStore::StopWatching() {
  if (!watcher_.joinable()) return;
  stop_ = true;
  ::eventfd_write(wake_.get(), 1);
  watcher_.join();
}

std::vector<NamedFd> FdStore::TakeListeners() {
  absl::MutexLock lock(&mutex_);
  const auto listens = [](const NamedFd& each) {
    int accepts = 0;
    socklen_t size = sizeof(accepts);
    return ::getsockopt(each.fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) == 0 &&
           accepts != 0;
  };
  const auto first = std::stable_partition(inherited_.begin(), inherited_.end(),
                                           [&](const NamedFd& each) { return !listens(each); });
  std::vector<NamedFd> listeners(std::make_move_iterator(first),
                                 std::make_move_iterator(inherited_.end()));
  inherited_.erase(first, inherited_.end());
  return listeners;
}

std::vector<NamedFd> FdStore::TakeInherited() {
  std::vector<NamedFd> inherited;
  {
    absl::MutexLock lock(&mutex_);
    inherited = std::exchange(inherited_, {});
  }
  // Of a process that ended while it asked for room. Removed before this one asks: a removal ends
  // all of this name.
  const auto is_probe = [](const NamedFd& each) { return each.name == kProbe; };
  if (std::erase_if(inherited, is_probe) > 0) Remove(kProbe).IgnoreError();
  return inherited;
}

absl::Status FdStore::Watch(std::function<void(const absl::Status&)> on_lost) {
  if (!present_) return absl::OkStatus();
  on_lost_ = std::move(on_lost);
  absl::StatusOr<std::thread> watcher = gpumem::StartThread([this] { WatchLoop(); });
  if (!watcher.ok()) return watcher.status();
  watcher_ = *std::move(watcher);
  return absl::OkStatus();
}

void FdStore::WatchLoop() {
  while (!stop_ && !lost_) {
    // No keeper: number -1, which poll(2) passes over.
    pollfd ready[] = {{wake_.get(), POLLIN, 0}, {keeper_.get(), POLLIN, 0}};
    if (::poll(ready, 2, -1) > 0 && ready[1].revents != 0) {
      MarkLost(absl::UnavailableError("gpumem-keeper has ended"));
    }
  }
  if (!lost_) return;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    why = why_lost_;
  }
  on_lost_(why);
}

void FdStore::MarkLost(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (lost_) return;
    why_lost_ = why;
    lost_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
}

absl::Status FdStore::Send(absl::string_view message, absl::Span<const int> fds,
                           absl::Time deadline) {
  if (!present_) {
    return absl::FailedPreconditionError(
        "no service manager keeps descriptors for this process; run it as a systemd service with "
        "FileDescriptorStoreMax=, or by gpumem-keeper");
  }
  if (lost_) {
    absl::MutexLock lock(&mutex_);
    return why_lost_;
  }
  absl::Status sent = socket_->Send(message, fds, deadline);
  if (absl::IsUnavailable(sent)) MarkLost(sent);
  return sent;
}

absl::Status FdStore::Store(absl::string_view name, int fd, absl::Duration timeout) {
  return Store(name, absl::MakeConstSpan(&fd, 1), timeout);
}

absl::Status FdStore::Store(absl::string_view name, absl::Span<const int> fds,
                            absl::Duration timeout) {
  if (absl::Status named = CheckName(name); !named.ok()) return named;
  const absl::Time deadline = absl::Now() + timeout;
  while (!fds.empty()) {
    const absl::Span<const int> portion = fds.first(std::min(fds.size(), gpumem::kMaxMessageFds));
    if (absl::Status sent = Send(StoreMessage(name), portion, deadline); !sent.ok()) return sent;
    fds.remove_prefix(portion.size());
  }
  return absl::OkStatus();
}

absl::Status FdStore::Remove(absl::string_view name, absl::Duration timeout) {
  if (absl::Status named = CheckName(name); !named.ok()) return named;
  return Send(absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name), {}, absl::Now() + timeout);
}

absl::Status FdStore::RemoveAndWait(absl::Span<const std::string> names, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!names.empty()) {
    const absl::Time start = absl::Now();
    const absl::Span<const std::string> portion = names.first(std::min(names.size(), kPortion));
    for (const std::string& name : portion) {
      if (absl::Status sent = Remove(name, deadline - absl::Now()); !sent.ok()) return sent;
    }
    if (absl::Status handled = BarrierUntil(deadline); !handled.ok()) return handled;
    names.remove_prefix(portion.size());
    if (!names.empty()) absl::SleepFor(absl::Now() - start);
  }
  return absl::OkStatus();
}

absl::Status FdStore::Barrier(absl::Duration timeout) {
  return BarrierUntil(absl::Now() + timeout);
}

absl::Status FdStore::BarrierUntil(absl::Time deadline) {
  absl::StatusOr<std::pair<UniqueFd, UniqueFd>> pipe = Pipe();
  if (!pipe.ok()) return pipe.status();
  auto& [ours, theirs] = *pipe;
  if (absl::Status sent = Send("BARRIER=1", {theirs.get()}, deadline); !sent.ok()) return sent;
  theirs.reset();
  if (OtherEndCloses(ours.get(), deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      "the service manager has not handled all messages in time; it is stuck or overloaded");
}

absl::Status FdStore::CheckRoom(absl::Duration timeout) {
  return Probe(1, kRefusalTime, absl::Now() + timeout);
}

absl::Status FdStore::CheckRoomNow(size_t descriptors, absl::Duration timeout) {
  return Probe(descriptors, absl::ZeroDuration(), absl::Now() + timeout);
}

absl::Status FdStore::Probe(size_t descriptors, absl::Duration refusal_time, absl::Time deadline) {
  // RESOURCE_EXHAUSTED is the manager's answer alone.
  const auto no_answer = [](const absl::Status& why) {
    if (!absl::IsResourceExhausted(why)) return why;
    return absl::AbortedError(
        absl::StrCat("the service manager cannot be asked for room: ", why.message()));
  };
  absl::MutexLock lock(&probe_mutex_);
  std::vector<UniqueFd> ours, theirs;
  std::vector<int> numbers;
  for (size_t i = 0; i < descriptors; ++i) {
    absl::StatusOr<std::pair<UniqueFd, UniqueFd>> pipe = Pipe();
    if (!pipe.ok()) return no_answer(pipe.status());
    numbers.push_back(pipe->first.get());
    theirs.push_back(std::move(pipe->first));
    ours.push_back(std::move(pipe->second));
  }
  if (absl::Status sent = Send(StoreMessage(kProbe), numbers, deadline); !sent.ok()) {
    return no_answer(sent);
  }
  theirs.clear();
  if (absl::Status handled = BarrierUntil(deadline); !handled.ok()) {
    // It may have it, or get it yet.
    Remove(kProbe, absl::ZeroDuration()).IgnoreError();
    return no_answer(handled);
  }
  const absl::Time until = absl::Now() + refusal_time;
  const bool refused = std::any_of(ours.begin(), ours.end(), [&](const UniqueFd& end) {
    return OtherEndCloses(end.get(), until);
  });
  if (absl::Status removed = Remove(kProbe, deadline - absl::Now()); !removed.ok()) {
    return no_answer(removed);
  }
  // A manager that has just ended has closed the pipe, too; then the removal found no receiver.
  if (!refused) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      "the service manager does not keep a further descriptor for this process; raise "
      "FileDescriptorStoreMax= (or gpumem-keeper's --max-fds), and see that this is the service's "
      "main process");
}

absl::Status FdStore::Notify(absl::string_view message) {
  if (!present_) return absl::OkStatus();
  return Send(message, {}, absl::Now() + kTimeout);
}

absl::Status FdStore::NotifyReady(absl::string_view status) {
  return Notify(absl::StrCat("READY=1\nSTATUS=", OneLine(status)));
}

absl::Status FdStore::NotifyAlive(absl::string_view status) {
  if (!present_) return absl::OkStatus();
  return Send(status.empty() ? "WATCHDOG=1" : absl::StrCat("WATCHDOG=1\nSTATUS=", OneLine(status)),
              {}, absl::InfinitePast());
}

absl::Status FdStore::NotifyReloading() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return Notify(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=",
                             absl::ToInt64Microseconds(absl::DurationFromTimespec(now))));
}

absl::Status FdStore::NotifyStopping(absl::string_view status) {
  return Notify(absl::StrCat("STOPPING=1\nSTATUS=", OneLine(status)));
}

}  // namespace gpumemd
