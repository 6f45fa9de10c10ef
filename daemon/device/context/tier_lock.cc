// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/tier_lock.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// A process that was killed needs this long at most to give back what it has of the driver.
constexpr absl::Duration kEndTime = absl::Seconds(10);

absl::Status SystemError(const char* call) {
  const int error = errno;
  const std::string message =
      absl::StrCat(absl::ErrnoToStatus(error, call).message(), ", for the host tier's file");
  if (error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(
        absl::StrCat(message, "; raise the daemon's limit of open files"));
  }
  if (error == ENOMEM || error == ENOLCK) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

// Returns the pid of a process that has the file locked; 0: there is none.
absl::StatusOr<pid_t> HolderOf(int tier_fd) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;  // conflicts with all others
  lock.l_whence = SEEK_SET;
  if (fcntl(tier_fd, F_OFD_GETLK, &lock) != 0) return SystemError("F_OFD_GETLK");
  return lock.l_type == F_UNLCK ? 0 : static_cast<pid_t>(lock.l_start);
}

// True if the process has ended by then.
bool AwaitExit(const UniqueFd& process, absl::Time deadline) {
  pollfd exited = {process.get(), POLLIN, 0};
  while (true) {
    const int64_t rest = absl::ToInt64Milliseconds(deadline - absl::Now());
    const int done = poll(&exited, 1, static_cast<int>(std::clamp<int64_t>(rest, 0, 1 << 30)));
    if (done > 0) return true;
    if (done == 0 && rest <= 0) return false;
  }
}

std::string NameOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

TierLock::TierLock() : low_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

absl::Status TierLock::Hold(int tier_fd) {
  struct stat info = {};
  if (fstat(tier_fd, &info) != 0) return SystemError("fstat");
  for (const File& file : files_) {
    if (file.device == info.st_dev && file.inode == info.st_ino) return absl::OkStatus();
  }
  // The daemon and the service manager share the opening of `tier_fd`, and would share its lock.
  const std::string path = absl::StrCat("/proc/self/fd/", tier_fd);
  UniqueFd opened(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened.valid()) return SystemError("open");
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = getpid();
  lock.l_len = 1;
  if (fcntl(opened.get(), F_OFD_SETLK, &lock) != 0) return SystemError("F_OFD_SETLK");
  if (low_.valid()) {
    if (dup3(opened.get(), low_.get(), O_CLOEXEC) < 0) return SystemError("dup3");
    opened = std::move(low_);  // the lock belongs to the opening, which stays
  }
  files_.push_back({info.st_dev, info.st_ino, std::move(opened)});
  return absl::OkStatus();
}

absl::Status AwaitCopiers(int tier_fd, absl::Duration grace) {
  const absl::Time deadline = absl::Now() + grace;
  while (true) {
    const absl::StatusOr<pid_t> pid = HolderOf(tier_fd);
    if (!pid.ok()) return pid.status();
    if (*pid == 0) return absl::OkStatus();
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, *pid, 0)));
    // While the lock is there, the number is still that of the copier.
    const absl::StatusOr<pid_t> same = HolderOf(tier_fd);
    if (!same.ok() || *same != *pid) continue;
    const std::string what =
        absl::StrCat("process ", *pid, " of an earlier daemon may still copy to the host tier, ",
                     "whose contents this daemon takes over");
    if (!process.valid() || NameOf(*pid) != kContextProcessName) {
      if (process.valid() && AwaitExit(process, absl::InfinitePast())) continue;
      return absl::UnavailableError(absl::StrCat(what, ", and is not visible here"));
    }
    if (AwaitExit(process, deadline)) continue;
    syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
    if (!AwaitExit(process, absl::Now() + kEndTime)) {
      return absl::UnavailableError(absl::StrCat(what, ", and does not end although it is killed"));
    }
  }
}

}  // namespace gpumemd
