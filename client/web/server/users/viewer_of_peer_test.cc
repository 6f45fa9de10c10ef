// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/users/viewer_of_peer.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace gpumem::web {
namespace {

// Has a child process run `act`. Returns its exit code; -1: it was ended by a signal.
template <typename Act>
int RunInChild(Act act) {
  const pid_t child = fork();
  if (child == 0) _exit(act());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Enters a PID namespace for the next child, as a container's, with the same user seen from here.
bool LeavePidNamespace() {
  return unshare(CLONE_NEWPID) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0;
}

// A listening socket in the abstract namespace.
class Door {
 public:
  Door() : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sa_family_t family = AF_UNIX;  // the kernel chooses a name
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&family), sizeof(family)), 0);
    EXPECT_EQ(listen(fd_.get(), 8), 0);
  }
  // Returns a connection to it; invalid if there is none.
  UniqueFd Enter() const {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    if (getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return {};
    return fd;
  }
  UniqueFd Accept() const { return UniqueFd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

 private:
  const UniqueFd fd_;
};

TEST(ViewerOfPeerTest, TheOwnUserSeesAll) {
  const Door door;
  const UniqueFd client = door.Enter(), server = door.Accept();
  const absl::StatusOr<Viewer> viewer = ViewerAt(server.get(), {});
  ASSERT_TRUE(viewer.ok()) << viewer.status();
  EXPECT_EQ(viewer->uid, geteuid());
  EXPECT_TRUE(viewer->sees_all);
}

TEST(ViewerOfPeerTest, AProcessOfAnotherPidNamespaceSeesSome) {
  if (RunInChild([] { return LeavePidNamespace() ? 0 : 1; }) != 0) {
    GTEST_SKIP() << "no PID namespace can be made here";
  }
  const Door door;
  const pid_t child = fork();
  if (child == 0) {
    if (!LeavePidNamespace()) _exit(1);
    _exit(RunInChild([&] {
      const UniqueFd client = door.Enter();
      char byte = 0;
      return client.valid() && read(client.get(), &byte, 1) == 0 ? 0 : 1;  // until it is closed
    }));
  }
  UniqueFd server = door.Accept();
  const absl::StatusOr<Viewer> viewer = ViewerAt(server.get(), {getegid()});
  server.reset();
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(viewer.ok()) << viewer.status();
  EXPECT_EQ(viewer->uid, geteuid());
  EXPECT_FALSE(viewer->sees_all);
}

TEST(ViewerOfPeerTest, SubordinateUidsHaveNoAccount) {
  const absl::StatusOr<bool> root = HasAccount(0), other = HasAccount(2'000'000'123);
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_TRUE(*root);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(*other);
}

TEST(ViewerOfPeerTest, AProcessThatHasEndedSeesSome) {
  const Door door;
  EXPECT_EQ(RunInChild([&] { return door.Enter().valid() ? 0 : 1; }), 0);
  const UniqueFd server = door.Accept();
  const absl::StatusOr<Viewer> viewer = ViewerAt(server.get(), {getegid()});
  ASSERT_TRUE(viewer.ok()) << viewer.status();
  EXPECT_EQ(viewer->uid, geteuid());
  EXPECT_FALSE(viewer->sees_all);
}

}  // namespace
}  // namespace gpumem::web
