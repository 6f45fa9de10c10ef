// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/audit/audit_text.h"
#include "daemon/log/ready_write.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// How long the journal may keep one entry waiting before it counts as an error.
constexpr int kJournalTimeoutMs = 1000;
// How long standard error may take for one line before it counts as an error.
constexpr absl::Duration kStderrDeadline = absl::Seconds(1);

// Writes lines. Writes the rest of a partly written line before the next.
class LineWriter {
 public:
  // `record` makes the line, unless one is under way: then it is that record's.
  absl::Status Write(int fd, const AuditRecord& record) {
    if (rest_.empty()) rest_ = ToJson(record) + "\n";
    while (!rest_.empty()) {
      const ssize_t n = ::write(fd, rest_.data(), rest_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return absl::ErrnoToStatus(errno, "cannot write the audit");
      rest_.erase(0, static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

 private:
  std::string rest_;
};

absl::StatusOr<UniqueFd> OpenFile(const std::string& path) {
  // Not to wait for a reader, should it be a pipe.
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640));
  if (!fd.valid()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path, " for the audit"));
  }
  return fd;
}

class FileOutput final : public AuditOutput {
 public:
  FileOutput(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Write(const AuditRecord& record) override {
    if (reopen_.exchange(false)) {
      absl::StatusOr<UniqueFd> fd = OpenFile(path_);
      if (!fd.ok()) {
        reopen_ = true;
        return fd.status();
      }
      fd_ = *std::move(fd);
    }
    return writer_.Write(fd_.get(), record);
  }
  void Reopen() override { reopen_ = true; }

 private:
  const std::string path_;
  UniqueFd fd_;
  LineWriter writer_;
  std::atomic<bool> reopen_ = false;
};

class StderrOutput final : public AuditOutput {
 public:
  absl::Status Write(const AuditRecord& record) override {
    if (rest_.empty()) rest_ = ToJson(record) + "\n";
    absl::string_view rest = rest_;
    const ReadyWrite written = WriteWithin(STDERR_FILENO, &rest, kStderrDeadline);
    const int error = errno;
    rest_.erase(0, rest_.size() - rest.size());
    switch (written) {
      case ReadyWrite::kDone:
        return absl::OkStatus();
      case ReadyWrite::kBlocked:
        return absl::DeadlineExceededError(
            "cannot write the audit: no process reads standard error");
      case ReadyWrite::kFailed:
        break;
    }
    return absl::ErrnoToStatus(error, "cannot write the audit");
  }

 private:
  std::string rest_;  // of a line that was written in part
};

// A sealed memfd of the entry, for one that is larger than a datagram may be.
UniqueFd AsMemfd(absl::string_view entry) {
  UniqueFd fd(::memfd_create("gpumem-audit", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return fd;
  if (::write(fd.get(), entry.data(), entry.size()) != static_cast<ssize_t>(entry.size()))
    return {};
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  return fd;
}

class JournalOutput final : public AuditOutput {
 public:
  explicit JournalOutput(const std::string& path)
      : path_(path), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    address_.sun_family = AF_UNIX;
    if (path.size() < sizeof(address_.sun_path)) {
      std::memcpy(address_.sun_path, path.data(), path.size());
    }
  }

  absl::Status Write(const AuditRecord& record) override {
    const std::string entry = ToJournal(record);
    int error = Send(entry, -1);
    if (error == EMSGSIZE || error == ENOBUFS) {
      const UniqueFd memfd = AsMemfd(entry);
      if (memfd.valid()) error = Send("", memfd.get());
    }
    if (error == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(error,
                               absl::StrCat("cannot write the audit to the journal (", path_, ")"));
  }

 private:
  // 0, or errno. To its path each time: a journal that is started again has another socket.
  int Send(absl::string_view bytes, int fd) {
    iovec data{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_name = &address_;
    message.msg_namelen = sizeof(address_);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (fd < 0) {
      message.msg_iov = &data;
      message.msg_iovlen = 1;
    } else {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
    }
    for (bool waited = false;; waited = true) {
      if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) return 0;
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || waited) return errno;
      // A datagram socket that is not connected is always writable to poll(2): connected for a
      // moment, it waits for room in that queue (unix(7)).
      if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address_),
                    sizeof(address_)) != 0) {
        return errno;
      }
      pollfd room{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
      ::poll(&room, 1, kJournalTimeoutMs);
      const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
      (void)::connect(socket_.get(), &nobody, sizeof(nobody));
    }
  }

  const std::string path_;
  const UniqueFd socket_;
  sockaddr_un address_{};
};

}  // namespace

absl::StatusOr<std::unique_ptr<AuditOutput>> OpenAuditFile(const std::string& path) {
  absl::StatusOr<UniqueFd> fd = OpenFile(path);
  if (!fd.ok()) return fd.status();
  return std::make_unique<FileOutput>(path, *std::move(fd));
}

std::unique_ptr<AuditOutput> AuditToStderr() { return std::make_unique<StderrOutput>(); }

std::unique_ptr<AuditOutput> AuditToJournal(const std::string& socket) {
  return std::make_unique<JournalOutput>(socket);
}

bool StderrIsJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat info;
  return stream != nullptr && fstat(STDERR_FILENO, &info) == 0 &&
         absl::StrCat(info.st_dev, ":", info.st_ino) == stream;
}

}  // namespace gpumemd
