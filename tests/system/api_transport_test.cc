// SPDX-License-Identifier: Apache-2.0
// Bytes that are no requests on sessions' gRPC connections and the admin socket: bytes that are no
// HTTP/2, peers that are slow, silent or do not read, and floods. Only their sender notices.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "tests/support/attack.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::AttackTest;
using testing::CallBroker;
using testing::ConnectStream;
using testing::WireSession;
namespace http2 = testing::http2;
using Stub = v1::Broker::Stub;

constexpr char kListDevices[] = "/gpumem.v1.Broker/ListDevices";
constexpr uint32_t kStreams = 256;  // that the daemon allows on one connection

class ApiTransport : public AttackTest {
 protected:
  // Returns the gRPC connection of a new session, which stays until the test ends.
  UniqueFd ConnectApi() {
    sessions_.push_back(Session("bad"));
    return sessions_.back().TakeApi();
  }
  UniqueFd ConnectTo(absl::string_view what) {
    return what == "api" ? ConnectApi() : ConnectStream(daemon_->Socket(std::string(what)));
  }

  // Clients that have no connection yet, and those that have.
  void ExpectOthersUnharmed() {
    ExpectBystanderWorks();
    auto fresh = NewBroker();
    WireSession session = Session("other");
    EXPECT_OK(CallBroker(*fresh, &Stub::ListDevices, v1::ListDevicesRequest(), ""));
    v1::AcquireRequest acquire;
    acquire.set_bytes(1);
    auto acquired = CallBroker(*fresh, &Stub::Acquire, acquire, session.token());
    ASSERT_OK(acquired);
    v1::ReleaseRequest release;
    release.add_lease_ids(acquired->leases(0).lease_id());
    EXPECT_OK(CallBroker(*fresh, &Stub::Release, release, session.token()));
  }

  static void Write(const UniqueFd& socket, absl::string_view bytes) {
    // The daemon may have closed it by now, which is its right.
    while (!bytes.empty()) {
      const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  // True if the daemon closes the connection in time; reads and drops its data before that.
  static bool IsClosed(const UniqueFd& socket, absl::Time deadline) {
    while (true) {
      pollfd readable{socket.get(), POLLIN, 0};
      const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
      if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) <= 0) return false;
      char bytes[4096];
      if (recv(socket.get(), bytes, sizeof(bytes), 0) <= 0) return true;
    }
  }

  void TearDown() override {
    sessions_.clear();
    AttackTest::TearDown();
  }

  std::vector<WireSession> sessions_;
};

TEST_F(ApiTransport, WhatIsNoHttp2IsClosedInTime) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  std::vector<UniqueFd> sockets;
  for (const char* name : {"api", "admin.sock", "view.sock"}) {
    for (const std::string& bytes :
         {std::string(), std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(10000, '\0'),
          std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),  // a TLS greeting
          std::string("PRI * HTTP/2.0\r\n"),                                // cut off
          http2::Opening(65535) + std::string(100000, '\xff'),
          http2::Opening(65535) + http2::Frame(0, 0, 1, "data of no stream") +
              http2::Frame(9, 4, 7, "a continuation of nothing"),
          // A header with a field of 256 MiB, of which the first 32 kB come.
          http2::Opening(65535) +
              http2::Frame(1, 0, 1, std::string("\0\1a\x7f\x81\xff\xff\x7f", 8)) +
              http2::Frame(9, 0, 1, std::string(16000, 'b')) +
              http2::Frame(9, 0, 1, std::string(16000, 'b'))}) {
      // A session may leave its gRPC connection silent for as long as it lives.
      if (absl::string_view(name) == "api" && bytes.size() < http2::Opening(65535).size() &&
          absl::StartsWith(http2::Opening(65535), bytes)) {
        continue;
      }
      sockets.push_back(ConnectTo(name));
      Write(sockets.back(), bytes);
    }
  }
  // One that goes on byte by byte, as fast as its patience lets it.
  UniqueFd slow = ConnectTo("admin.sock");
  bool closed = false;
  const std::string opening = http2::Opening(65535);
  for (size_t i = 0; i < opening.size() && !closed && absl::Now() < deadline; ++i) {
    closed = send(slow.get(), &opening[i], 1, MSG_NOSIGNAL) < 1;
    closed = closed || IsClosed(slow, absl::Now() + absl::Milliseconds(500));
  }
  EXPECT_TRUE(closed);
  for (size_t i = 0; i < sockets.size(); ++i) EXPECT_TRUE(IsClosed(sockets[i], deadline)) << i;
  ExpectOthersUnharmed();
}

TEST_F(ApiTransport, TwoHundredIdleConnectionsHarmNobody) {
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(ConnectApi());
    if (i % 2 == 0) Write(idle.back(), http2::Opening(65535));
  }
  ExpectOthersUnharmed();
}

// An answer waits for room in its stream's window: with none, for ever. It must not keep a
// thread, or these few connections would stop the daemon.
TEST_F(ApiTransport, ClientsThatLeaveTheirAnswersNoWindowHarmNobody) {
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 6; ++i) {
    std::string bytes = http2::Opening(0);
    for (uint32_t stream = 0; stream < kStreams; ++stream) {
      bytes += http2::Headers(2 * stream + 1, kListDevices) + http2::Data(2 * stream + 1, "");
    }
    sockets.push_back(ConnectApi());
    Write(sockets.back(), bytes);
  }
  ExpectOthersUnharmed();
}

TEST_F(ApiTransport, ClientsThatDoNotReadTheirSocketHarmNobody) {
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 3; ++i) {
    sockets.push_back(ConnectApi());
    std::string bytes = http2::Opening(0x7fffffff);
    for (uint32_t stream = 1; stream < 10000; stream += 2) {
      bytes += http2::Headers(stream, kListDevices) + http2::Data(stream, "");
    }
    // As much as the socket takes; nothing is ever read.
    absl::string_view left = bytes;
    while (!left.empty()) {
      pollfd writable{sockets.back().get(), POLLOUT, 0};
      if (poll(&writable, 1, 200) <= 0) break;
      const ssize_t sent =
          send(sockets.back().get(), left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) break;
      left.remove_prefix(static_cast<size_t>(sent));
    }
  }
  ExpectOthersUnharmed();
}

TEST_F(ApiTransport, StreamsWithoutAMessageHarmNobody) {
  // All before the first: streams that gRPC itself answers with errors may pass for a flood, which
  // keeps its uid and tenant from new connections for a while.
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 12; ++i) sockets.push_back(ConnectApi());
  auto socket = sockets.begin();
  for (const char* method :
       {kListDevices, "/gpumem.v1.Broker/Acquire", "/gpumem.v1.Broker/Watch",
        "/gpumem.v1.Broker/None", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.health.v1.Health/Watch"}) {
    for (bool end : {false, true}) {
      std::string bytes = http2::Opening(65535);
      for (uint32_t stream = 0; stream < kStreams; ++stream) {
        bytes += http2::Headers(2 * stream + 1, method, end);
      }
      Write(*socket++, bytes);
    }
  }
  ExpectOthersUnharmed();
}

TEST_F(ApiTransport, StreamsThatAreResetAtOnceHarmNobody) {
  constexpr uint8_t kRstStream = 3;
  std::string bytes = http2::Opening(65535);
  for (uint32_t stream = 1; stream < 10000; stream += 2) {
    bytes += http2::Headers(stream, kListDevices) + http2::Data(stream, "") +
             http2::Frame(kRstStream, 0, stream, std::string("\0\0\0\x08", 4));
  }
  // All before the first flood: it keeps its uid and tenant from new connections for a while.
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 3; ++i) sockets.push_back(ConnectApi());
  for (const UniqueFd& socket : sockets) Write(socket, bytes);
  ExpectOthersUnharmed();
}

TEST_F(ApiTransport, DescriptorsWithARequestAreNotTaken) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  {
    const UniqueFd writer(ends[1]);
    for (const char* name : {"api", "admin.sock"}) {
      const UniqueFd socket = ConnectTo(name);
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      std::string bytes = http2::Opening(65535);
      iovec part = {bytes.data(), bytes.size()};
      msghdr header = {};
      header.msg_iov = &part;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      memcpy(CMSG_DATA(rights), &ends[1], sizeof(int));
      // The kernel refuses it if it can; else gRPC drops it.
      if (sendmsg(socket.get(), &header, MSG_NOSIGNAL) < 0) {
        EXPECT_EQ(errno, EPERM);
      }
    }
  }
  pollfd end{reader.get(), POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 10000), 1);
  EXPECT_TRUE((end.revents & POLLHUP) != 0) << "the daemon still has it";
  ExpectOthersUnharmed();
}

TEST_F(ApiTransport, AFloodOfOneTenantsCallsLeavesOthersTheirTurn) {
  WireSession session = Session("bad");
  std::atomic<int> answered = 0, refused = 0, others = 0;
  std::vector<std::thread> flood;
  for (int i = 0; i < 24; ++i) {
    flood.emplace_back([&] {
      auto broker = NewBroker();
      for (int call = 0; call < 200; ++call) {
        // More than it may have: each of these goes all the way to the ledger.
        v1::AcquireRequest acquire;
        acquire.set_bytes(128 * kMiB);
        const absl::StatusCode code =
            CallBroker(*broker, &Stub::Acquire, acquire, session.token()).status().code();
        ++(code == absl::StatusCode::kResourceExhausted ? refused : others);
        ++answered;
      }
    });
  }
  ExpectOthersUnharmed();
  for (std::thread& thread : flood) thread.join();
  EXPECT_EQ(refused, answered);
  EXPECT_EQ(others, 0);
}

}  // namespace
}  // namespace gpumem
