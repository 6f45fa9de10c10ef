// SPDX-License-Identifier: Apache-2.0
// Shared parts of this folder's tests: a service manager that a test plays, and child processes.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/restart/fd_store/fd_store.h"

#define EXPECT_CODE(expression, wanted)                   \
  do {                                                    \
    const absl::Status& is = (expression);                \
    EXPECT_EQ(is.code(), absl::StatusCode::wanted) << is; \
  } while (false)

namespace gpumemd {

using gpumem::UniqueFd;

struct Message {
  std::string text;
  std::vector<UniqueFd> fds;
};

// The manager's end of the notify socket.
class Manager {
 public:
  explicit Manager(bool is_abstract = false) {
    socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    if (is_abstract) {
      address_ = absl::StrCat("@gpumem-fd-store-test-", ::getpid());
    } else {
      char folder[] = "/tmp/gpumem-test-XXXXXX";
      folder_ = ::mkdtemp(folder);
      address_ = absl::StrCat(folder_, "/notify");
    }
    memcpy(name.sun_path, address_.data(), address_.size());
    if (is_abstract) name.sun_path[0] = '\0';
    const size_t size = offsetof(sockaddr_un, sun_path) + address_.size() + (is_abstract ? 0 : 1);
    EXPECT_EQ(
        ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&name), static_cast<socklen_t>(size)), 0);
  }
  ~Manager() {
    if (folder_.empty()) return;
    ::unlink(address_.c_str());
    ::rmdir(folder_.c_str());
  }

  const std::string& address() const { return address_; }
  void Leave() { socket_.reset(); }

  bool HasMessage() const {
    pollfd ready = {socket_.get(), POLLIN, 0};
    return ::poll(&ready, 1, 0) > 0;
  }

  // The next one; waits for it.
  Message Receive() const {
    char text[4096];
    std::vector<char> control(CMSG_SPACE(253 * sizeof(int)));
    iovec bytes = {text, sizeof(text)};
    msghdr header = {.msg_iov = &bytes,
                     .msg_iovlen = 1,
                     .msg_control = control.data(),
                     .msg_controllen = control.size()};
    const ssize_t size = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    if (size < 0) return {"nothing"};
    Message message{std::string(text, static_cast<size_t>(size))};
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        message.fds.emplace_back(fd);
      }
    }
    return message;
  }

  // Returns the store of this process as if the manager had started it.
  std::unique_ptr<FdStore> Start() const {
    ::setenv("NOTIFY_SOCKET", address_.c_str(), 1);
    absl::StatusOr<std::unique_ptr<FdStore>> store = FdStore::FromEnvironment();
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

 private:
  UniqueFd socket_;
  std::string address_, folder_;
};

inline UniqueFd NewFile() { return UniqueFd(::memfd_create("test", MFD_CLOEXEC)); }

inline ino_t Inode(int fd) {
  struct stat info = {};
  EXPECT_EQ(::fstat(fd, &info), 0);
  return info.st_ino;
}

inline int OpenDescriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  int count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// Returns the exit code of `work` in a child process, which has separate descriptors and
// environment.
inline int InChild(const std::function<int()>& work) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(work());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace gpumemd
