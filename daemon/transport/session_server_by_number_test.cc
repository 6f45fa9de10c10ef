// SPDX-License-Identifier: Apache-2.0
// The session server as it is on kernels that know peers by number alone (before 6.5). All else
// about it is in tests/system/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "daemon/device/host_device.h"
#include "daemon/transport/session_server.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

class ByNumberTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto self = IdentifySelf();
    // Until it has been running for a tick of the kernel's clock.
    while (self.ok() && absl::StrContains(self->identity.cgroup.unknown(), "just started")) {
      self = IdentifySelf();
    }
    ASSERT_TRUE(self.ok()) << self.status();
    if (self->identity.cgroup.Value(CgroupFact::kPath).empty()) {
      GTEST_SKIP() << "this process's own cgroup is ambiguous or unknown";
    }
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = uint64_t{2} << 20}));
    options.random = [this] {
      Secret secret{};
      secret[0] = static_cast<uint8_t>(++randoms_);
      secret[1] = static_cast<uint8_t>(randoms_ >> 8);
      return secret;
    };
    broker_ = std::make_unique<Broker>(std::move(options));
    char folder[] = "/tmp/gpumem-by-number-XXXXXX";  // short enough for a socket's name
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/socket";
    auto listener = gpumem::ListenUnix(path_, SOCK_SEQPACKET, 0600);
    ASSERT_TRUE(listener.ok()) << listener.status();
    server_ = std::make_unique<SessionServer>(
        *std::move(listener), broker_.get(),
        std::vector<Rule>{{.tenant = "known", .cgroup = "/*", .description = "rule 1"},
                          {.tenant = "nobody", .description = "rule 2"}},
        [](SessionId) {}, SessionServerOptions{.peers_by_number = true});
    server_->Start();
  }
  void TearDown() override {
    server_.reset();
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }

  static absl::StatusOr<Peer> IdentifySelf() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) abort();
    const gpumem::UniqueFd one(ends[0]), other(ends[1]);
    return IdentifyPeer(one.get(), {.queue_empty_at = BootTime(), .by_number = true});
  }

  // The Welcome of a new connection, which is put into `kept` if that is given.
  v1::Welcome Connect(gpumem::UniqueFd* kept = nullptr) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    auto socket = gpumem::ConnectUnix(path_, SOCK_SEQPACKET, deadline);
    v1::Hello hello;
    hello.set_protocol_version(gpumem::kProtocolVersion);
    if (!socket.ok() ||
        !gpumem::SendMessage(socket->get(), hello.SerializeAsString(), {}, deadline).ok()) {
      return {};
    }
    auto packet = gpumem::ReceiveMessage(socket->get(), deadline);
    v1::ServerMessage answer;
    if (!packet.ok() || !answer.ParseFromString(packet->bytes)) return {};
    if (kept != nullptr) *kept = *std::move(socket);
    return answer.welcome();
  }

  std::string folder_, path_;
  unsigned randoms_ = 0;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<SessionServer> server_;
};

TEST_F(ByNumberTest, AProcessThatWasThereBeforeIsKnownByItsCgroup) {
  // Every time, from the first.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Connect().tenant(), "known");
}

TEST_F(ByNumberTest, ASignalIsForAProcessThatIsCertainAndAlive) {
  int reports[2];
  ASSERT_EQ(pipe(reports), 0);
  const pid_t child = fork();
  if (child == 0) {
    // Keeps its sockets, so that all of its sessions live; the last one is certain.
    std::vector<gpumem::UniqueFd> sockets;
    while (true) {
      const v1::Welcome welcome = Connect(&sockets.emplace_back());
      const uint64_t report[] = {welcome.session_id(), welcome.tenant() == "known"};
      if (write(reports[1], report, sizeof(report)) != sizeof(report)) _exit(1);
      while (report[1] == 1) pause();
    }
  }
  bool certain = false;
  while (!certain) {
    uint64_t report[2] = {};
    ASSERT_EQ(read(reports[0], report, sizeof(report)), ssize_t{sizeof(report)});
    certain = report[1] == 1;
    const absl::Status signalled = server_->Signal(SessionId{report[0]}, SIGTERM);
    EXPECT_EQ(signalled.code(),
              certain ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
    // Nor is a pidfd returned with which a caller could signal it.
    if (!certain) {
      EXPECT_EQ(server_->ProcessOf(SessionId{report[0]}).status().code(),
                absl::StatusCode::kFailedPrecondition);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  EXPECT_EQ(server_->Signal(SessionId{4711}, SIGTERM).code(), absl::StatusCode::kNotFound);
  close(reports[0]);
  close(reports[1]);
}

TEST_F(ByNumberTest, AProcessJustStartedIsChargedByUidUntilItsCgroupIsKnown) {
  enum { kKnown, kStrange, kNeverKnown };
  const pid_t child = fork();
  if (child == 0) {
    const std::string by_uid = absl::StrCat("user-", geteuid());
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (absl::Now() < deadline) {
      const v1::Welcome welcome = Connect();
      if (welcome.tenant() == "known") _exit(kKnown);
      if (welcome.tenant() != by_uid ||
          !absl::StrContains(welcome.rule(), absl::StrCat("cannot confirm that process ", getpid(),
                                                          ", which has just started")) ||
          !absl::StrContains(welcome.rule(), ": billed by uid")) {
        _exit(kStrange);
      }
    }
    _exit(kNeverKnown);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kKnown);
}

}  // namespace
}  // namespace gpumemd
