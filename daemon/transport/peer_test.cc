#include "daemon/transport/peer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace gpumemd {
namespace {

TEST(ParseCgroup, Unified) {
  EXPECT_EQ(ParseCgroup("0::/system.slice/infer.service\n"), "/system.slice/infer.service");
  EXPECT_EQ(ParseCgroup("0::/\n"), "/");
}

TEST(ParseCgroup, HybridTakesTheHierarchyThatIsInUse) {
  // systemd's own hierarchy, mirrored in the unified one.
  EXPECT_EQ(ParseCgroup("12:memory:/user.slice\n1:name=systemd:/user.slice/a.scope\n"
                        "0::/user.slice/a.scope\n"),
            "/user.slice/a.scope");
  // The unified hierarchy is mounted, and nobody is in its groups.
  EXPECT_EQ(ParseCgroup("12:memory:/docker/123\n1:name=systemd:/docker/123\n0::/\n"),
            "/docker/123");
}

TEST(ParseCgroup, Legacy) {
  EXPECT_EQ(ParseCgroup("4:memory:/slurm/uid_1/job_2\n3:cpu,cpuacct:/\n"), "/slurm/uid_1/job_2");
}

TEST(ParseCgroup, PathsMayHoldColons) {
  EXPECT_EQ(ParseCgroup("0::/a.slice/cri-containerd:x:y\n"), "/a.slice/cri-containerd:x:y");
}

TEST(ParseCgroup, NothingOfUse) {
  EXPECT_EQ(ParseCgroup(""), "");
  EXPECT_EQ(ParseCgroup("garbage\n"), "");
}

TEST(ParseStartTime, IsCountedFromTheEndOfTheName) {
  const std::string rest = " S 1 2 2 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 8675309 1000 300\n";
  EXPECT_EQ(ParseStartTime("4242 (sh)" + rest), 8675309u);
  EXPECT_EQ(ParseStartTime("4242 (a) b (c) 1 2)" + rest), 8675309u);
  EXPECT_EQ(ParseStartTime(""), 0u);
  EXPECT_EQ(ParseStartTime("4242 (sh) S 1 2"), 0u);
}

TEST(IdentifyPeer, KnowsItsPeer) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  auto peer = IdentifyPeer(ends[0]);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->identity.pid, getpid());
  EXPECT_EQ(peer->identity.uid, geteuid());
  EXPECT_EQ(peer->identity.gid, getegid());
  EXPECT_GT(peer->identity.start_time, 0u);
  EXPECT_FALSE(peer->command.empty());
  pollfd alive{peer->pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&alive, 1, 0), 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(IdentifyPeer, RefusesWhatIsNoUnixSocket) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_FALSE(IdentifyPeer(pipe_ends[0]).ok());
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace gpumemd
