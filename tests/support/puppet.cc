// SPDX-License-Identifier: Apache-2.0
#include "tests/support/puppet.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "daemon/restart/fd_store/fd_crates.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "tests/support/child.h"

namespace gpumem::testing {
namespace {

using gpumemd::FdCrates;
using gpumemd::FdStore;
using gpumemd::NamedFd;

constexpr absl::Duration kWait = absl::Seconds(60);

UniqueFd FileWith(absl::string_view text) {
  UniqueFd file(memfd_create("puppet", MFD_CLOEXEC));
  (void)!write(file.get(), text.data(), text.size());
  return file;
}

std::string TextIn(int fd) {
  char text[256];
  const ssize_t size = pread(fd, text, sizeof(text), 0);
  return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
}

// Sends a datagram as it is, without FdStore's checks.
std::string SendRaw(const std::string& address, const std::string& text, int count) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path, address.data(), address.size());
  socklen_t size = offsetof(sockaddr_un, sun_path) + static_cast<socklen_t>(address.size());
  if (address[0] == '@') name.sun_path[0] = '\0';
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&name), size) != 0) return "cannot connect";
  std::vector<UniqueFd> files;
  std::vector<int> fds;
  for (int i = 0; i < count; ++i) fds.push_back(files.emplace_back(FileWith("raw")).get());
  return SendMessage(socket.get(), text, fds, absl::Now() + kWait).ToString();
}

class Service {
 public:
  // First thing in the process, as FdStore wants it.
  Service() {
    if (const char* address = getenv("NOTIFY_SOCKET")) address_ = address;
    absl::StatusOr<std::unique_ptr<FdStore>> store = FdStore::FromEnvironment();
    if (!store.ok()) {
      dprintf(STDERR_FILENO, "%s\n", store.status().ToString().c_str());
      _exit(3);
    }
    store_ = *std::move(store);
    rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    std::vector<NamedFd> inherited = store_->TakeInherited();
    crates_ = std::make_unique<FdCrates>(*store_);
    absl::StatusOr<std::vector<NamedFd>> packed = crates_->Adopt(inherited);
    if (!packed.ok()) {
      dprintf(STDERR_FILENO, "%s\n", packed.status().ToString().c_str());
      _exit(6);
    }
    for (NamedFd& one : *packed) inherited.push_back(std::move(one));
    for (NamedFd& one : inherited) {
      names_.push_back(one.name);
      fds_.emplace(std::move(one.name), std::move(one.fd));
    }
    store_
        ->Watch([this](const absl::Status& why) {
          why_ = why;
          lost_.Notify();
        })
        .IgnoreError();
  }

  int Serve(int channel) {
    while (true) {
      const absl::StatusOr<UnixMessage> message = ReceiveMessage(channel, absl::InfiniteFuture());
      if (!message.ok()) return 4;  // the test is over
      const std::vector<std::string> words =
          absl::StrSplit(message->bytes, absl::MaxSplits(' ', 2));
      const auto word = [&](size_t i) { return i < words.size() ? words[i] : std::string(); };
      int number = 0;
      (void)absl::SimpleAtoi(absl::EndsWith(word(0), "-many") ? word(2) : word(1), &number);
      if (word(0) == "exit") _exit(number);
      Say(channel, Answer(word(0), word(1), word(2), number));
    }
  }

 private:
  std::string Answer(const std::string& command, const std::string& first,
                     const std::string& second, int number) {
    if (command == "names") return absl::StrCat(absl::StrJoin(names_, ","), ".");
    if (command == "read") {
      const auto found = fds_.find(first);
      return found == fds_.end() ? "none" : TextIn(found->second.get());
    }
    if (command == "close") return absl::StrCat(fds_.erase(first));
    if (command == "store") {
      UniqueFd file = FileWith(second);
      const absl::Status status = store_->Store(first, file.get());
      fds_.emplace(first, std::move(file));
      return status.ToString();
    }
    if (command == "store-again") {
      const auto found = fds_.find(first);
      return found == fds_.end() ? "none" : store_->Store(second, found->second.get()).ToString();
    }
    if (command == "store-many") {
      for (int i = 0; i < number; ++i) {
        const UniqueFd file = FileWith(absl::StrCat(i));
        const absl::Status status = store_->Store(absl::StrCat(first, i), file.get());
        if (!status.ok()) return status.ToString();
      }
      return store_->Barrier(absl::Minutes(1)).ToString();
    }
    if (command == "remove-many") {
      std::vector<std::string> names;
      for (int i = 0; i < number; ++i) names.push_back(absl::StrCat(first, i));
      return store_->RemoveAndWait(names, absl::Minutes(1)).ToString();
    }
    if (command == "pack") {
      UniqueFd file = FileWith(second);
      const absl::Status status = crates_->Store(first, file.get());
      fds_.emplace(first, std::move(file));
      return status.ToString();
    }
    if (command == "unpack") return crates_->Remove(first).ToString();
    if (command == "pack-many" || command == "unpack-many") {
      for (int i = 0; i < number; ++i) {
        const std::string name = absl::StrCat(first, i);
        const absl::Status status = command == "pack-many"
                                        ? crates_->Store(name, FileWith(absl::StrCat(i)).get())
                                        : crates_->Remove(name);
        if (!status.ok()) return status.ToString();
      }
      return "OK";
    }
    if (command == "remove") return store_->Remove(first).ToString();
    if (command == "barrier") return store_->Barrier(absl::Minutes(1)).ToString();
    if (command == "check-room") return store_->CheckRoom(absl::Minutes(1)).ToString();
    if (command == "ready") return store_->NotifyReady(first).ToString();
    if (command == "capacity") return absl::StrCat(store_->capacity().value_or(0));
    if (command == "fds") return absl::StrCat(CountFds(getpid()));
    if (command == "env") {
      const char* value = getenv(first.c_str());
      return value == nullptr ? "none" : value;
    }
    if (command == "lost") {
      return lost_.WaitForNotificationWithTimeout(kWait) ? why_.ToString() : "not lost";
    }
    if (command == "raw") return SendRaw(address_, second, number);
    if (command == "raw-child") {
      const pid_t pid = fork();
      if (pid == 0) _exit(SendRaw(address_, second, number) == "OK" ? 0 : 1);
      int status = 0;
      waitpid(pid, &status, 0);
      return status == 0 ? "OK" : "the child could not send it";
    }
    return absl::StrCat("no such command: ", command);
  }

  std::string address_;
  std::unique_ptr<FdStore> store_;
  std::unique_ptr<FdCrates> crates_;
  std::vector<std::string> names_;
  std::multimap<std::string, UniqueFd> fds_;
  absl::Status why_;
  absl::Notification lost_;
};

}  // namespace

std::string Puppet::Ask(absl::string_view command) const {
  Say(channel_.get(), std::string(command));
  return Hear(channel_.get());
}

void Puppet::Exit(int code) const {
  Say(channel_.get(), absl::StrCat("exit ", code));
  AwaitEnd();
}

void Puppet::Kill(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

void Puppet::AwaitEnd() const {
  pollfd closed = {channel_.get(), POLLIN, 0};
  poll(&closed, 1, static_cast<int>(absl::ToInt64Milliseconds(kWait)));
}

absl::StatusOr<std::unique_ptr<PuppetStage>> PuppetStage::Open(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/puppet");
  absl::StatusOr<UniqueFd> listener = ListenUnix(path, SOCK_SEQPACKET, 0600);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<PuppetStage>(new PuppetStage(path, *std::move(listener)));
}

absl::StatusOr<Puppet> PuppetStage::Next() {
  pollfd ready = {listener_.get(), POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kWait))) <= 0) {
    return absl::DeadlineExceededError("the service did not come to the test");
  }
  UniqueFd channel(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (!channel.valid() || getsockopt(channel.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return absl::ErrnoToStatus(errno, "accept4");
  }
  return Puppet(std::move(channel), peer.pid);
}

int RunPuppet(const std::string& path) {
  Service service;
  const absl::StatusOr<UniqueFd> channel = ConnectUnix(path, SOCK_SEQPACKET);
  return channel.ok() ? service.Serve(channel->get()) : 5;
}

}  // namespace gpumem::testing
