// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/actor_identity.h"

#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "common/unique_fd.h"
#include "tests/contract/actor.h"

namespace gpumem::contract {
namespace {

constexpr uid_t kNobody = 65534;

absl::Status Errno(const char* what) { return absl::ErrnoToStatus(errno, what); }

absl::Status BecomeNobody() {
  if (setgroups(0, nullptr) != 0) return Errno("setgroups");
  if (setresgid(kNobody, kNobody, kNobody) != 0) return Errno("setresgid");
  if (setresuid(kNobody, kNobody, kNobody) != 0) return Errno("setresuid");
  // A change of user undoes it.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return Errno("prctl");
  return absl::OkStatus();
}

// As in a container: only the file system is shared, unchanged.
absl::Status EnterNamespaces() {
  if (unshare(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS) != 0) {
    return Errno("unshare");
  }
  const pid_t child = fork();  // the first in the PID namespace
  if (child < 0) return Errno("fork");
  if (child > 0) {
    int status = 0;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return Errno("prctl");
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return Errno("mount /");
  if (mount("proc", "/proc", "proc", 0, nullptr) != 0) return Errno("mount /proc");
  return absl::OkStatus();
}

}  // namespace

std::string IdentityName(Identity identity) {
  switch (identity) {
    case Identity::kSameProcess:
      return "same_process";
    case Identity::kSameUser:
      return "same_user";
    case Identity::kOtherUser:
      return "other_user";
    case Identity::kOwnNamespaces:
      return "own_namespaces";
  }
  return "unknown";
}

std::string WhyNot(Identity identity) {
  if (identity == Identity::kOtherUser && !testing::CanBeOtherUsers()) {
    return "being another user takes root";
  }
  if (identity == Identity::kOwnNamespaces) {
    // Tried out: a container's root may lack the right to make namespaces or to mount /proc.
    const pid_t child = fork();
    if (child == 0) {
      _exit(EnterNamespaces().ok() ? 0 : 1);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      return "this process may not make namespaces of its own and mount /proc in them";
    }
  }
  return "";
}

absl::Status BecomeIdentity(const std::string& name) {
  if (name == IdentityName(Identity::kOtherUser)) return BecomeNobody();
  if (name == IdentityName(Identity::kOwnNamespaces)) return EnterNamespaces();
  return absl::OkStatus();
}

}  // namespace gpumem::contract
