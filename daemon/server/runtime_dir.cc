// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/runtime_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// Makes the folder and its parents. True if it was missing.
absl::StatusOr<bool> MakeRuntimeDir(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos && slash > 0) {
      absl::StatusOr<bool> parent = MakeRuntimeDir(path.substr(0, slash));
      if (!parent.ok()) return parent.status();
    }
    if (mkdir(path.c_str(), 0755) == 0) return true;
    if (errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the runtime folder ", path));
    }
    if (stat(path.c_str(), &found) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the state of ", path));
    }
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder"));
  }
  return false;
}

// True for root's files if this process is in a user namespace without root: they show the kernel's
// overflow uid (user_namespaces(7)), and no process of the namespace can have it. Files of other
// users outside it show the same uid and cannot be distinguished.
bool ShowsAsRootOutside(uid_t owner) {
  uid_t overflow = 0;
  if (!(std::ifstream("/proc/sys/kernel/overflowuid") >> overflow) || owner != overflow)
    return false;
  std::ifstream map("/proc/self/uid_map");
  bool any = false;
  for (uint64_t inside, outside, count; map >> inside >> outside >> count;) {
    any = true;
    if (outside == 0 || (owner >= inside && owner - inside < count)) return false;
  }
  return any;
}

bool IsTrusted(uid_t owner) {
  return owner == geteuid() || owner == 0 || ShowsAsRootOutside(owner);
}

// Checks the folders on the way to the runtime folder, links among them.
class WayChecker {
 public:
  explicit WayChecker(const std::string& runtime_dir) : runtime_dir_(runtime_dir) {}

  // Walks the path part by part as the kernel does (path_resolution(7)), so that each visited
  // folder is checked: also if a link leads to a link.
  absl::Status Check() const {
    constexpr int kMostLinks = 40;  // the kernel's
    std::error_code error;
    std::filesystem::path at = "/";
    std::deque<std::string> rest;
    const auto go = [&](const std::filesystem::path& path) {
      if (path.is_absolute()) at = "/";
      rest.insert(rest.begin(), path.begin(), path.end());
    };
    go(std::filesystem::absolute(runtime_dir_, error));
    if (error) return CannotLook(runtime_dir_, error.value());
    for (int links = 0; !rest.empty();) {
      const std::string part = std::move(rest.front());
      rest.pop_front();
      if (part.empty() || part == "." || part == "/") continue;
      if (part == "..") {
        at = at.parent_path();
        continue;
      }
      struct stat found;
      if (absl::Status safe = CheckFolder(at); !safe.ok()) return safe;
      const std::filesystem::path next = at / part;
      if (lstat(next.c_str(), &found) != 0) return CannotLook(next, errno);
      if (!S_ISLNK(found.st_mode)) {
        at = next;
        continue;
      }
      // A link's mode means nothing. In a sticky folder its owner can replace it.
      if (!IsTrusted(found.st_uid)) return OwnedBy(found.st_uid, next);
      const std::filesystem::path target = std::filesystem::read_symlink(next, error);
      if (error) return CannotLook(next, error.value());
      if (++links > kMostLinks) {
        return absl::FailedPreconditionError(
            absl::StrCat("too many links on the way to the runtime folder ", runtime_dir_));
      }
      go(target);
    }
    return absl::OkStatus();
  }

 private:
  // The owner of a parent folder, and users who may write to it, can rename its entries, unless
  // it is sticky: then only their owners can.
  absl::Status CheckFolder(const std::string& parent) const {
    struct stat found;
    if (lstat(parent.c_str(), &found) != 0) return CannotLook(parent, errno);
    if (!IsTrusted(found.st_uid)) return OwnedBy(found.st_uid, parent);
    if ((found.st_mode & S_ISVTX) != 0) return absl::OkStatus();
    if ((found.st_mode & S_IWOTH) != 0) return Refuse("any user may write to", parent);
    if ((found.st_mode & S_IWGRP) != 0 && found.st_gid != 0 && found.st_gid != getegid()) {
      return Refuse(absl::StrCat("group ", found.st_gid, " may write to"), parent);
    }
    return absl::OkStatus();
  }

  absl::Status OwnedBy(uid_t owner, const std::string& what) const {
    return Refuse(absl::StrCat("uid ", owner, " owns and may change"), what);
  }
  absl::Status Refuse(const std::string& who, const std::string& what) const {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " ", what, ", on the way to the runtime folder ", runtime_dir_,
                     ", and so replace the folder with the daemon's sockets; use a folder whose "
                     "parents only root and the daemon's user can change"));
  }
  static absl::Status CannotLook(const std::string& at, int error) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot read the state of ", at));
  }

  const std::string& runtime_dir_;
};

// A user who may write to the folder could replace the daemon's socket.
absl::Status CheckRuntimeDir(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the state of ", path));
  }
  if (!IsTrusted(found.st_uid)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the runtime folder ", path, " belongs to uid ", found.st_uid,
        ", which could replace the daemon's sockets; use a folder of the daemon's user"));
  }
  const bool group_writes =
      (found.st_mode & S_IWGRP) != 0 && found.st_gid != 0 && found.st_gid != getegid();
  if (group_writes) {
    return absl::FailedPreconditionError(
        absl::StrCat("group ", found.st_gid, " may write to the runtime folder ", path,
                     " and so replace the daemon's sockets; use a folder that only its owner may "
                     "write to (chmod g-w)"));
  }
  if ((found.st_mode & S_IWOTH) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("any user may write to the runtime folder ", path,
                     " and so replace the daemon's sockets; use a folder that only its owner may "
                     "write to (chmod o-w)"));
  }
  return WayChecker(path).Check();
}

// Leaves word in the folder that a daemon has made it.
void MarkAsMade(const std::string& folder) {
  const std::string mark = absl::StrCat(folder, "/", RuntimeDir::kMadeMark);
  // Without it the folder stays when the last daemon goes.
  const UniqueFd made(open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
}

bool IsMarkedAsMade(const std::string& folder) {
  struct stat found;
  return lstat(absl::StrCat(folder, "/", RuntimeDir::kMadeMark).c_str(), &found) == 0;
}

}  // namespace

absl::StatusOr<RuntimeDir> RuntimeDir::Open(const std::string& path) {
  RuntimeDir dir;
  absl::StatusOr<bool> made = MakeRuntimeDir(path);
  if (!made.ok()) return made.status();
  if (*made) dir.folder_ = path;
  if (absl::Status safe = CheckRuntimeDir(path); !safe.ok()) return safe;
  if (*made) {
    MarkAsMade(path);
  } else if (IsMarkedAsMade(path)) {
    dir.kept_folder_ = path;
  }
  return dir;
}

RuntimeDir& RuntimeDir::operator=(RuntimeDir&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(kept_folder_, other.kept_folder_);
  return *this;
}

RuntimeDir::~RuntimeDir() {
  if (folder_.empty()) return;
  unlink(absl::StrCat(folder_, "/", kMadeMark).c_str());
  rmdir(folder_.c_str());
}

void RuntimeDir::Serves() {
  if (!kept_folder_.empty()) folder_ = std::exchange(kept_folder_, {});
}

void RuntimeDir::LeaveForNext() { folder_.clear(); }

}  // namespace gpumemd
