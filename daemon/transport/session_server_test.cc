// SPDX-License-Identifier: Apache-2.0
// Signals to the processes behind sessions. tests/system/session_socket_test.cc tests the socket
// with good and bad peers, on a whole daemon.
#include "daemon/transport/session_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/endpoints.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/views.h"
#include "daemon/device/host_device.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumemd {
namespace {

// A process with a session. It waits for signals, and is killed and reaped at its end.
class ClientProcess {
 public:
  explicit ClientProcess(const std::string& path) {
    gpumem::v1::Hello hello;
    hello.set_protocol_version(gpumem::kProtocolVersion);
    const std::string bytes = hello.SerializeAsString();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) abort();
    welcomed_.reset(pipe_ends[0]);
    const gpumem::UniqueFd theirs(pipe_ends[1]);
    pid_ = fork();
    if (pid_ != 0) return;
    // Only system calls: other threads of the parent held locks when it forked.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    char packet[4096];
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        send(fd, bytes.data(), bytes.size(), 0) < 0 || recv(fd, packet, sizeof(packet), 0) <= 0 ||
        write(theirs.get(), "w", 1) != 1) {
      _exit(1);
    }
    while (true) pause();
  }
  ~ClientProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    Wait();
  }
  ClientProcess(const ClientProcess&) = delete;
  ClientProcess& operator=(const ClientProcess&) = delete;

  // Once its session is open.
  bool Welcomed() {
    char byte;
    return read(welcomed_.get(), &byte, 1) == 1;
  }
  pid_t pid() const { return pid_; }
  // The signal that ended it; 0: none did.
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

 private:
  gpumem::UniqueFd welcomed_;
  pid_t pid_ = -1;
};

class SessionServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/gpumem-session-server-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
    path_ = dir_ + "/session.sock";
    auto listener = gpumem::ListenUnix(path_, SOCK_SEQPACKET, 0600);
    ASSERT_TRUE(listener.ok()) << listener.status();
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 64 << 20}));
    options.random = [this] {
      Secret secret{};
      secret[0] = ++secrets_;
      return secret;
    };
    broker_ = std::make_unique<Broker>(std::move(options));
    server_ = std::make_unique<SessionServer>(*std::move(listener), broker_.get(),
                                              std::vector<Rule>{{.tenant = "t"}}, [](SessionId) {});
    server_->Start();
  }
  void TearDown() override {
    server_.reset();
    broker_.reset();
    unlink(path_.c_str());
    rmdir(dir_.c_str());
  }

  SessionId SessionOf(pid_t pid) {
    auto sessions = broker_->views().ListSessions("");
    for (const SessionView& session : *sessions) {
      if (session.details.peer.pid == pid) return session.id;
    }
    ADD_FAILURE() << "no session of process " << pid;
    return SessionId{};
  }

  std::string dir_, path_;
  uint8_t secrets_ = 0;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<SessionServer> server_;
};

TEST_F(SessionServerTest, ASignalReachesTheSessionsProcessAndNoOther) {
  ClientProcess one(path_), other(path_);
  ASSERT_TRUE(one.Welcomed() && other.Welcomed());
  const SessionId of_other = SessionOf(other.pid());
  EXPECT_EQ(server_->Signal(SessionOf(one.pid()), SIGTERM), absl::OkStatus());
  EXPECT_EQ(one.Wait(), SIGTERM);
  // Signal 0 only checks that the process exists.
  EXPECT_EQ(server_->Signal(of_other, 0), absl::OkStatus());
  EXPECT_EQ(server_->Signal(of_other, SIGKILL), absl::OkStatus());
  EXPECT_EQ(other.Wait(), SIGKILL);
}

TEST_F(SessionServerTest, AnEndedOrUnknownProcessIsNotFound) {
  ClientProcess peer(path_);
  ASSERT_TRUE(peer.Welcomed());
  const SessionId session = SessionOf(peer.pid());
  const pid_t pid = peer.pid();
  ASSERT_EQ(server_->Signal(session, SIGKILL), absl::OkStatus());
  ASSERT_EQ(peer.Wait(), SIGKILL);
  auto process = server_->ProcessOf(session);
  ASSERT_TRUE(process.ok()) << process.status();
  // Still watched: this broker has no caller that would forget it.
  absl::Status gone = server_->Signal(session, SIGKILL);
  EXPECT_EQ(gone, absl::NotFoundError(absl::StrCat("process ", pid, " of session ", ToInt(session),
                                                   ": the process has exited")));
  server_->Forget(session);
  EXPECT_EQ(server_->ProcessOf(session).status().code(), absl::StatusCode::kNotFound);
  // A pidfd taken before still names the process, even if its pid is reused.
  pollfd exited = {process->get(), POLLIN, 0};
  EXPECT_EQ(poll(&exited, 1, 0), 1);
  EXPECT_EQ(server_->Signal(session, SIGKILL),
            absl::NotFoundError(absl::StrCat("there is no session ", ToInt(session))));
}

TEST_F(SessionServerTest, WhatIsNoSignalIsRefused) {
  ClientProcess peer(path_);
  ASSERT_TRUE(peer.Welcomed());
  const absl::Status refused = server_->Signal(SessionOf(peer.pid()), 1000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_EQ(server_->Signal(SessionOf(peer.pid()), 0), absl::OkStatus());
}

// If another daemon follows, that one answers.
TEST_F(SessionServerTest, ParkedItNeitherWelcomesNorRefuses) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  auto early = gpumem::ConnectUnix(path_, SOCK_SEQPACKET);
  ASSERT_TRUE(early.ok()) << early.status();
  ClientProcess peer(path_);
  ASSERT_TRUE(peer.Welcomed());  // so the one before it is accepted
  server_->Park();
  auto late = gpumem::ConnectUnix(path_, SOCK_SEQPACKET);
  ASSERT_TRUE(late.ok()) << late.status();
  gpumem::v1::Hello hello;
  hello.set_protocol_version(gpumem::kProtocolVersion);
  for (const auto* socket : {&early, &late}) {
    EXPECT_EQ(gpumem::SendMessage((*socket)->get(), hello.SerializeAsString(), {}, deadline),
              absl::OkStatus());
  }
  server_->LeaveSessions();
  server_.reset();
  EXPECT_EQ(broker_->views().ListSessions("")->size(), 1u);
  const auto answer = gpumem::ReceiveMessage((*early).get(), deadline);
  ASSERT_TRUE(answer.ok()) << answer.status();
  gpumem::v1::ServerMessage message;
  ASSERT_TRUE(message.ParseFromString(answer->bytes));
  EXPECT_TRUE(message.goodbye().stopping()) << message.ShortDebugString();
  // With a socket that outlives the daemon it would wait in the queue; that process has it, too.
  ASSERT_EQ(kill(peer.pid(), SIGKILL), 0);
  EXPECT_EQ(peer.Wait(), SIGKILL);
  EXPECT_EQ(gpumem::ReceiveMessage((*late).get(), deadline).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gpumemd
