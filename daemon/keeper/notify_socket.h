// SPDX-License-Identifier: Apache-2.0
// The socket on which the daemon sends messages to its keeper.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/unique_fd.h"

namespace gpumemd::keeper {

// In a separate folder that only this user can enter: others cannot even fill its queue. (All users
// could read an abstract name in /proc/net/unix.) Not thread-safe.
class NotifySocket {
 public:
  struct Received {
    pid_t sender = 0;  // as the kernel reports it (SCM_CREDENTIALS in unix(7)); 0: unknown
    std::string text;
    std::vector<gpumem::UniqueFd> fds;
    bool is_whole = false;  // false: text or descriptors are missing
  };

  // Makes the socket. Nullopt, and a sentence in `error`, if that fails.
  static std::optional<NotifySocket> Make(std::string& error);
  NotifySocket(NotifySocket&& other) noexcept;
  NotifySocket& operator=(NotifySocket&&) = delete;
  ~NotifySocket();  // removes the folder

  const std::string& path() const { return path_; }
  int fd() const { return socket_.get(); }
  // Returns the next message; nullopt if none has come. Never waits.
  std::optional<Received> Receive();

 private:
  NotifySocket(std::string path, gpumem::UniqueFd socket)
      : path_(std::move(path)), socket_(std::move(socket)) {}
  std::string path_;  // empty: moved away
  gpumem::UniqueFd socket_;
};

// Passes status messages on to the manager of the keeper itself, if it has one: $NOTIFY_SOCKET,
// which is removed from the environment. Never waits, and ignores all errors, since the messages
// are only informative.
class OuterManager {
 public:
  OuterManager();
  void Say(std::string_view text) const;

 private:
  gpumem::UniqueFd socket_;  // none: no manager
};

}  // namespace gpumemd::keeper
