// SPDX-License-Identifier: Apache-2.0
// The server with peers that take much, or do not read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/web/server/server.h"
#include "client/web/server/testing/server_fixture.h"
#include "client/web/server/users/logins.h"

namespace gpumem::web {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kSnapshot[] = "GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n";

using Clients = std::vector<std::unique_ptr<RawClient>>;

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<size_t>(getpagesize());
}

TEST_F(ServerTest, The1025thConnectionClosesTheQuietest) {
  constexpr size_t kMost = 1024;
  ASSERT_TRUE(HasDescriptors(kMost));
  Limits limits;
  limits.connections_of_user = 2 * kMost;
  Serve({.limits = limits});
  Clients clients;
  for (size_t i = 0; i < kMost; ++i) {
    clients.push_back(std::make_unique<RawClient>(Path()));
    EXPECT_THAT(clients.back()->Get("/icon.svg"), StartsWith("HTTP/1.1 200 "));
  }
  for (const auto& client : clients) EXPECT_TRUE(client->IsOpen());
  EXPECT_THAT(clients[0]->Get("/icon.svg"), StartsWith("HTTP/1.1 200 "));  // not quiet
  RawClient last = Unix();
  EXPECT_THAT(last.Get("/icon.svg"), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(clients[1]->IsClosed());
  for (size_t i = 0; i < kMost; ++i) EXPECT_EQ(clients[i]->IsOpen(), i != 1) << i;
}

TEST_F(ServerTest, The129thConnectionOfAUserClosesOneOfTheUser) {
  constexpr size_t kMost = 128;
  Serve();
  // Another user: one that has not logged in.
  RawClient other = Tcp();
  EXPECT_THAT(other.Get("/icon.svg"), StartsWith("HTTP/1.1 200 "));
  Clients clients;
  for (size_t i = 0; i < kMost; ++i) {
    clients.push_back(std::make_unique<RawClient>(Path()));
    EXPECT_THAT(clients.back()->Get("/icon.svg"), StartsWith("HTTP/1.1 200 "));
  }
  for (const auto& client : clients) EXPECT_TRUE(client->IsOpen());
  // A login counts for the user, too.
  const auto link = server_->OwnLink();
  ASSERT_TRUE(link.ok()) << link.status();
  RawClient tcp = Tcp();
  const std::string answer = tcp.Post(
      "/api/v1/login", absl::StrCat("{\"token\":\"", link->substr(link->find('=') + 1), "\"}"));
  EXPECT_TRUE(clients[0]->IsOpen());
  const std::string bearer =
      absl::StrCat("Authorization: Bearer ", BodyOf(answer).substr(8, 43), "\r\n");
  EXPECT_THAT(tcp.Get("/api/v1/me", bearer), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(clients[0]->IsClosed());
  for (size_t i = 1; i < kMost; ++i) EXPECT_TRUE(clients[i]->IsOpen()) << i;
  EXPECT_TRUE(other.IsOpen());
}

// Changes the uid of the calling thread alone (setresuid(2)). False if it may not.
bool BecomeUser(uid_t uid) { return syscall(SYS_setresuid, -1, uid, -1) == 0; }

std::unique_ptr<RawClient> ClientOf(const std::string& path, uid_t uid) {
  EXPECT_TRUE(BecomeUser(uid));
  auto client = std::make_unique<RawClient>(path);
  EXPECT_TRUE(BecomeUser(0));
  return client;
}

// By /etc/subuid one person has as many uids as there are connections.
TEST_F(ServerTest, ManyUidsWithoutAnAccountAreOneUser) {
  if (geteuid() != 0 || !BecomeUser(1'000'000'000) || !BecomeUser(0)) {
    GTEST_SKIP() << "takes root, outside of a user namespace";
  }
  constexpr uid_t kAlice = 1'000'000'000, kFirst = 1'000'100'000;
  constexpr size_t kStreams = 40;
  Limits limits;
  limits.connections = 100;
  limits.connections_of_user = 50;
  Serve({.limits = limits, .has_account = [](uid_t uid) { return uid == kAlice; }});
  std::filesystem::permissions(Path(), std::filesystem::perms::all);
  std::filesystem::permissions(std::filesystem::path(Path()).parent_path(),
                               std::filesystem::perms::all);
  Clients streams;
  for (size_t i = 0; i < kStreams; ++i) {
    streams.push_back(ClientOf(Path(), i % 2 == 0 ? kAlice : 0));
    EXPECT_THAT(streams.back()->Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  }
  // Once the links of those without an account are used up, Alice gets one as another user.
  for (size_t i = 0; i < Logins::kLinksOfUser; ++i) {
    EXPECT_THAT(ClientOf(Path(), kFirst)->Post("/api/v1/links", ""), HasSubstr("200 OK"));
  }
  EXPECT_THAT(ClientOf(Path(), kFirst + 1)->Post("/api/v1/links", ""), HasSubstr(" 429 "));
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (!absl::StrContains(ClientOf(Path(), kAlice)->Post("/api/v1/links", ""), "200 OK")) {
    ASSERT_LT(absl::Now(), end);
  }
  Clients flood;
  for (uid_t i = 0; i < 150; ++i) {
    flood.push_back(ClientOf(Path(), kFirst + i));
    EXPECT_THAT(flood.back()->Get("/icon.svg"), StartsWith("HTTP/1.1 200 "));
  }
  EXPECT_EQ(feed_.readers(), kStreams);
  for (const auto& client : streams) EXPECT_TRUE(client->IsOpen());
  EXPECT_TRUE(flood[0]->IsClosed());
  EXPECT_TRUE(flood.back()->IsOpen());
}

TEST_F(ServerTest, AThousandStreamsGetTheSame) {
  constexpr size_t kStreams = 1000;
  ASSERT_TRUE(HasDescriptors(kStreams));
  Limits limits;
  limits.connections_of_user = kStreams;
  Serve({.limits = limits});
  Clients clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<RawClient>(Path()));
    clients.back()->Say("GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  feed_.WaitForReaders(kStreams);
  for (int i = 0; i < 20; ++i) {
    feed_.Broadcast(absl::StrCat("event: change\ndata: {\"number\":", i, "}\n\n"));
  }
  for (const auto& client : clients) {
    EXPECT_THAT(client->HearUpTo("{\"number\":19}\n\n"), HasSubstr("{\"number\":0}"));
  }
  clients.clear();
  feed_.WaitForReaders(0);
}

TEST_F(ServerTest, ASlowReaderLosesTheStreamAndHoldsUpNoOther) {
  Limits limits;
  limits.stream_bytes = 256 * 1024;
  Serve({.limits = limits});
  RawClient slow = Unix(), quick = Unix();
  EXPECT_THAT(slow.Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(quick.Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  feed_.WaitForReaders(2);
  const std::string fill(64 * 1024, 'x');
  int sent = 0;
  while (feed_.readers() == 2) {  // the kernel's buffers take some
    ASSERT_LT(++sent, 1000);
    feed_.Broadcast(absl::StrCat("event: change\ndata: ", fill, sent, "\n\n"));
    EXPECT_THAT(quick.HearUpTo(absl::StrCat(sent, "\n\n")), HasSubstr("change"));
  }
  EXPECT_TRUE(slow.IsClosed());
  EXPECT_TRUE(quick.IsOpen());
}

// Each has another snapshot, which is not read.
TEST_F(ServerTest, SlowStreamsHoldFewBytesInAll) {
  constexpr size_t kSnapshotBytes = 4 * 1024 * 1024, kStreams = 60;
  Limits limits;
  limits.unsent_bytes = 8 * kSnapshotBytes;
  Serve({.limits = limits});
  RawClient quick = Unix();
  EXPECT_THAT(quick.Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  quick.HearUpTo("\n\n");
  feed_.Pad(kSnapshotBytes);
  const size_t before = ResidentBytes();
  Clients slow;
  for (size_t i = 0; i < kStreams; ++i) {
    slow.push_back(std::make_unique<RawClient>(Path()));
    EXPECT_THAT(slow.back()->Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  }
  feed_.Broadcast("event: tick\ndata: {}\n\n");
  EXPECT_THAT(quick.HearUpTo("}\n\n"), HasSubstr("tick"));
  EXPECT_LE(feed_.readers(), 9U);
  EXPECT_TRUE(quick.IsOpen());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep freed memory
  EXPECT_LT(ResidentBytes(), before + 2 * limits.unsent_bytes);
#endif
}

TEST_F(ServerTest, AStreamsSnapshotHasADeadline) {
  Limits limits;
  limits.answer = absl::Milliseconds(200);
  limits.progress = absl::Seconds(1000);
  Serve({.limits = limits});
  RawClient quick = Unix();
  EXPECT_THAT(quick.Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  feed_.Pad(8 * 1024 * 1024);
  RawClient slow = Unix();
  EXPECT_THAT(slow.Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (feed_.readers() == 2) ASSERT_LT(absl::Now(), end);
  EXPECT_TRUE(quick.IsOpen());
}

TEST_F(ServerTest, DocumentsThatAreNotReadAreFew) {
  Limits limits;
  limits.documents_of_user = 2;
  limits.progress = absl::Milliseconds(300);
  Serve({.limits = limits});
  feed_.SetSnapshot(std::make_shared<const std::string>(8 * 1024 * 1024, 'x'));
  Clients slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(std::make_unique<RawClient>(Path()));
    slow.back()->Say(kSnapshot);
  }
  // One that reads gets its turn once the others are closed: they make no progress.
  RawClient reader = Unix();
  EXPECT_EQ(BodyOf(reader.Get("/api/v1/snapshot")).size(), 8U * 1024 * 1024);
}

// A peer that connects, asks and closes in a loop leaves nothing behind, and holds up no later one.
TEST_F(ServerTest, RequestsOfClosedConnectionsAreDropped) {
  constexpr int kRequests = 6000;
  Limits limits;
  limits.connections_of_user = 16;
  Serve({.limits = limits});
  feed_.Hold(true);
  const std::string query = absl::StrCat("GET /api/v1/history?device=", std::string(7000, 'x'),
                                         " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  size_t before = 0;
  for (int i = 0; i < kRequests; ++i) {
    if (i == 500) before = ResidentBytes();
    Unix().Say(i % 2 == 0 ? absl::string_view(query) : kSnapshot);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep freed memory
  EXPECT_LT(ResidentBytes(), before + 8 * 1024 * 1024);
#endif
  feed_.Hold(false);
  EXPECT_THAT(Unix().Get("/api/v1/me"), StartsWith("HTTP/1.1 200 "));
  EXPECT_LT(feed_.asked(), 100) << "of closed connections";
}

}  // namespace
}  // namespace gpumem::web
