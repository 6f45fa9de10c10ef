// The socket that the daemon speaks to its keeper by.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/unique_fd.h"

namespace gpumemd::keeper {

// In a folder of its own that only this user can enter: others cannot even fill its queue. (An
// abstract name would be readable by all in /proc/net/unix.) Not thread-safe.
class NotifySocket {
 public:
  struct Received {
    pid_t sender = 0;  // by the kernel's word (SCM_CREDENTIALS in unix(7)); 0: unknown
    std::string text;
    std::vector<gpumem::UniqueFd> fds;
    bool is_whole = false;  // else text or descriptors are missing
  };

  // Nullopt, and in `error` a sentence, where it cannot be made.
  static std::optional<NotifySocket> Make(std::string& error);
  NotifySocket(NotifySocket&& other) noexcept;
  NotifySocket& operator=(NotifySocket&&) = delete;
  ~NotifySocket();  // removes the folder

  const std::string& path() const { return path_; }
  int fd() const { return socket_.get(); }
  // The next message; nullopt where none has come. Never waits.
  std::optional<Received> Receive();

 private:
  NotifySocket(std::string path, gpumem::UniqueFd socket)
      : path_(std::move(path)), socket_(std::move(socket)) {}
  std::string path_;  // empty: moved away
  gpumem::UniqueFd socket_;
};

// Passes words on to the manager of the keeper itself, if it has one: $NOTIFY_SOCKET, which is
// removed from the environment. Never waits, and ignores all errors: they are only words.
class OuterManager {
 public:
  OuterManager();
  void Say(std::string_view text) const;

 private:
  gpumem::UniqueFd socket_;  // none: no manager
};

}  // namespace gpumemd::keeper
