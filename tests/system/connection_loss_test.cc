// SPDX-License-Identifier: Apache-2.0
// A client notices nothing when its gRPC connection ends while its session and daemon live.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::DaemonProcess;
using testing::Eventually;
using testing::HelloOf;
using testing::WireSession;

// Returns the connected stream sockets of this process whose peer has no name: socket pair ends.
std::set<int> PairedStreams() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1, type = 0;
    socklen_t size = sizeof(type);
    sockaddr_un peer{};
    socklen_t length = sizeof(peer);
    if (absl::SimpleAtoi(entry.path().filename().string(), &fd) &&
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sun_family == AF_UNIX && length == sizeof(sa_family_t)) {
      found.insert(fd);
    }
  }
  return found;
}

class ConnectionLoss : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.flags = {"--host-device-bytes", "64MiB"}});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    const std::set<int> before = PairedStreams();
    others_ = before;
    auto client = daemon_->Connect();
    ASSERT_OK(client);
    client_ = *std::move(client);
    ASSERT_FALSE(Connections().empty());
  }
  std::set<int> Connections() const {
    std::set<int> mine = PairedStreams();
    for (int other : others_) mine.erase(other);
    return mine;
  }
  void Cut() const {
    for (int fd : Connections()) shutdown(fd, SHUT_RDWR);
  }

  std::set<int> others_;  // of this process before the client came
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
};

TEST_F(ConnectionLoss, CallsGoOnOverANewConnection) {
  auto held = client_->Acquire({.bytes = kMiB});
  ASSERT_OK(held);
  static_cast<char*>(held->data())[0] = 42;
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    Cut();
    auto next = client_->Acquire({.bytes = kMiB});
    ASSERT_OK(next);
    Cut();
    auto ticket = held->Share();
    ASSERT_OK(ticket);
    Cut();
    auto opened = client_->Open(ticket->value);
    ASSERT_OK(opened);
    EXPECT_EQ(static_cast<char*>(opened->data())[0], 42);
    Cut();
    EXPECT_OK(next->Release());
    EXPECT_OK(opened->Release());
  }
  auto usage = client_->GetUsage();
  ASSERT_OK(usage);
  EXPECT_EQ(usage->sessions, 1u);
  EXPECT_EQ(usage->devices.front().leased_bytes, held->size());
}

TEST_F(ConnectionLoss, AWaitingRequestGoesOnOverANewConnection) {
  auto all = client_->Acquire({.bytes = 64 * kMiB});
  ASSERT_OK(all);
  absl::StatusOr<Segment> waited = absl::UnknownError("not yet");
  std::thread waiter([&] { waited = client_->Acquire({.bytes = kMiB, .wait = absl::Minutes(1)}); });
  const auto waiting = [&] {
    auto usage = client_->GetUsage();
    return usage.ok() && usage->waiting == 1;
  };
  EXPECT_TRUE(Eventually(waiting));
  for (int i = 0; i < 5; ++i) {
    Cut();
    EXPECT_TRUE(Eventually(waiting));
  }
  EXPECT_OK(all->Release());
  waiter.join();
  EXPECT_OK(waited);
}

TEST_F(ConnectionLoss, NothingIsGrantedTwiceUnderLoad) {
  std::atomic<bool> stop = false;
  std::atomic<int> rounds = 0;
  std::vector<std::thread> workers;
  std::vector<absl::Status> troubles(4);
  for (absl::Status& trouble : troubles) {
    workers.emplace_back([&] {
      while (!stop && trouble.ok()) {
        auto segment = client_->Acquire({.bytes = kMiB});
        trouble = segment.ok() ? segment->Release() : segment.status();
        ++rounds;
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    const int before = rounds;
    EXPECT_TRUE(Eventually([&] { return rounds >= before + 8; }));
    Cut();
  }
  stop = true;
  for (std::thread& worker : workers) worker.join();
  for (const absl::Status& trouble : troubles) EXPECT_OK(trouble) << daemon_->Log();
  // Memory of answers that were lost with the connections is given back.
  EXPECT_TRUE(Eventually([&] {
    auto usage = client_->GetUsage();
    return usage.ok() && usage->devices.front().leased_bytes == 0;
  }));
}

TEST_F(ConnectionLoss, AWatchGoesOnOverANewConnection) {
  std::atomic<int> told = 0, ended = 0;
  auto watch = client_->StartWatch({.quota_changed = [&](const Quota&) { ++told; },
                                    .ended = [&](const absl::Status&) { ++ended; }});
  ASSERT_OK(watch);
  EXPECT_TRUE(Eventually([&] { return told > 0; }));
  for (int i = 0; i < 3; ++i) {
    const int before = told;
    Cut();
    // Each Watch begins with how things stand.
    EXPECT_TRUE(Eventually([&] { return told > before; }));
  }
  EXPECT_EQ(ended, 0);
}

TEST_F(ConnectionLoss, OnlyTheProcessOfASessionGetsAnother) {
  WireSession session(daemon_->Socket("session.sock"));
  ASSERT_OK(session.Greet(HelloOf("")));
  v1::Hello resume = HelloOf("");
  resume.set_resume_token(session.token());
  const pid_t thief = fork();
  if (thief == 0) {
    WireSession stolen(daemon_->Socket("session.sock"));
    _exit(absl::IsNotFound(stolen.Greet(resume)) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(thief, &status, 0), thief);
  EXPECT_EQ(status, 0);
  // It has changed nothing.
  auto broker = session.TakeBroker();
  EXPECT_OK(testing::CallBroker(*broker, &v1::Broker::Stub::GetUsage, {}, session.token()));
  // The process itself gets it; the old socket and connection end.
  WireSession again(daemon_->Socket("session.sock"));
  ASSERT_OK(again.Greet(resume));
  EXPECT_TRUE(again.welcome().resumed());
  EXPECT_EQ(again.welcome().session_id(), session.welcome().session_id());
  EXPECT_TRUE(session.Ended());
  EXPECT_STATUS(testing::CallBroker(*broker, &v1::Broker::Stub::GetUsage, {}, session.token()),
                kUnavailable, "");
  // The daemon serves nothing before the client has reported its leases.
  auto next = again.TakeBroker();
  EXPECT_STATUS(testing::CallBroker(*next, &v1::Broker::Stub::GetUsage, {}, again.token()),
                kUnauthenticated, "Reconcile");
  EXPECT_OK(testing::CallBroker(*next, &v1::Broker::Stub::Reconcile, {}, again.token()));
  EXPECT_OK(testing::CallBroker(*next, &v1::Broker::Stub::GetUsage, {}, again.token()));
}

}  // namespace
}  // namespace gpumem
