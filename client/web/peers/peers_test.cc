// SPDX-License-Identifier: Apache-2.0
// Requests to other nodes, of which some are hostile.
#include "client/web/peers/peers.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/web/peers/testing/fake_peer.h"
#include "common/unix_channel.h"

namespace gpumem::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kOverview[] = "{\"daemon\":\"ok\",\"tenants\":7}";

std::string Ok(const std::string& body, const std::string& fields = "") {
  return absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n", fields, "\r\n",
                      body);
}

class FetchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that peers have closed
    char dir[] = "/tmp/gpumem-peers-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  absl::StatusOr<std::string> FetchFrom(const Peer& peer) {
    boost::asio::io_context context;
    absl::StatusOr<std::string> result = absl::UnknownError("not called");
    Fetch(&context, &tls_, peer, limits_,
          [&](absl::StatusOr<std::string> text) { result = std::move(text); });
    context.run();
    return result;
  }
  absl::StatusOr<std::string> FetchFrom(const std::string& url) {
    const auto peer = ParsePeer(url);
    EXPECT_TRUE(peer.ok()) << peer.status();
    return FetchFrom(*peer);
  }
  // Trusts a certificate.
  void Trust(const FakeCertificate& certificate) {
    const std::string path = dir_ + "/ca.pem";
    FILE* const file = fopen(path.c_str(), "w");
    PEM_write_X509(file, certificate.certificate.get());
    fclose(file);
    tls_.load_verify_file(path);
  }

  std::string dir_;
  boost::asio::ssl::context tls_{boost::asio::ssl::context::tls_client};
  FetchLimits limits_{.time = absl::Seconds(20)};
};

TEST_F(FetchTest, AnOverview) {
  FakePeer node({.answer = Ok(kOverview)});
  auto peer = ParsePeer(absl::StrCat(node.Url(), "/gpu/"));
  ASSERT_TRUE(peer.ok());
  peer->headers = {{"Authorization", "Basic abc"}};
  EXPECT_EQ(*FetchFrom(*peer), kOverview);
  EXPECT_THAT(node.Heard(),
              AllOf(StartsWith("GET /gpu/api/v1/overview HTTP/1.1\r\n"),
                    HasSubstr(absl::StrCat("\r\nHost: 127.0.0.1:", node.port(), "\r\n")),
                    HasSubstr("\r\nAuthorization: Basic abc\r\n")));
}

TEST_F(FetchTest, AUnixSocket) {
  const std::string path = dir_ + "/web.sock";
  auto listener = ListenUnix(path, SOCK_STREAM, 0600);
  ASSERT_TRUE(listener.ok()) << listener.status();
  fcntl(listener->get(), F_SETFL, 0);  // the fake's accept() blocks
  FakePeer node({.answer = Ok(kOverview)}, listener->release());
  EXPECT_EQ(*FetchFrom(absl::StrCat("unix:", path)), kOverview);
  EXPECT_THAT(node.Heard(), HasSubstr("\r\nHost: localhost\r\n"));
}

TEST_F(FetchTest, Failures) {
  const auto answer = [this](FakePeer::Script script) {
    FakePeer node(std::move(script));
    return FetchFrom(node.Url()).status();
  };
  EXPECT_TRUE(absl::IsUnavailable(FetchFrom("http://127.0.0.1:1").status()));
  EXPECT_TRUE(absl::IsUnavailable(FetchFrom("unix:/nonexistent").status()));
  EXPECT_TRUE(absl::IsUnavailable(answer({})));  // closes without an answer
  EXPECT_TRUE(absl::IsUnavailable(answer({.answer = "SSH-2.0-OpenSSH\r\n", .hasty = true})));
  const absl::Status redirect =
      answer({.answer = "HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n"});
  EXPECT_TRUE(absl::IsFailedPrecondition(redirect));
  EXPECT_THAT(redirect.message(), HasSubstr("redirects"));
  EXPECT_THAT(answer({.answer = "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"}).message(),
              HasSubstr("HTTP 401"));
}

TEST_F(FetchTest, TooLarge) {
  const auto answer = [this](FakePeer::Script script) {
    FakePeer node(std::move(script));
    return FetchFrom(node.Url()).status();
  };
  EXPECT_TRUE(answer({.answer = Ok(std::string(64 * 1024, 'x'))}).ok());
  const absl::Status one_more = answer({.answer = Ok(std::string(64 * 1024 + 1, 'x'))});
  EXPECT_TRUE(absl::IsResourceExhausted(one_more)) << one_more;
  EXPECT_TRUE(absl::IsResourceExhausted(
      answer({.answer = "HTTP/1.1 200 OK\r\n\r\n", .more = std::string(1000, 'x')})));
  EXPECT_TRUE(
      absl::IsResourceExhausted(answer({.answer = "HTTP/1.1 200 OK\r\n", .more = "X: x\r\n"})));
}

TEST_F(FetchTest, TooSlow) {
  limits_.time = absl::Milliseconds(200);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);  // accepts nothing
  sockaddr_in address = {.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener, 4), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const int port = ntohs(address.sin_port);
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(FetchFrom(absl::StrCat("http://127.0.0.1:", port)).status()));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(FetchFrom(absl::StrCat("https://localhost:", port)).status()));
  close(listener);
}

TEST_F(FetchTest, Certificates) {
  const FakeCertificate ours("localhost"), other("other.example");
  FakePeer node({.answer = Ok(kOverview), .certificate = &ours});
  const std::string url = absl::StrCat("https://localhost:", node.port());
  const auto untrusted = FetchFrom(url);
  EXPECT_TRUE(absl::IsUnavailable(untrusted.status()));
  EXPECT_THAT(untrusted.status().message(), HasSubstr("certificate"));
  Trust(ours);
  Trust(other);
  EXPECT_EQ(*FetchFrom(url), kOverview);
  EXPECT_FALSE(FetchFrom(absl::StrCat("https://127.0.0.1:", node.port())).ok()) << "another name";
  FakePeer wrong({.answer = Ok(kOverview), .certificate = &other});
  EXPECT_FALSE(FetchFrom(absl::StrCat("https://localhost:", wrong.port())).ok());
  FakePeer plain({.answer = Ok(kOverview), .hasty = true});
  EXPECT_FALSE(FetchFrom(absl::StrCat("https://localhost:", plain.port())).ok());
}

// Returns a document in which `words` occur.
std::string AwaitDocument(Peers& peers, const std::string& words) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (absl::Now() < end) {
    std::string document = peers.Document();
    if (absl::StrContains(document, words)) return document;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::StrCat("no \"", words, "\" in ", peers.Document());
}

TEST_F(FetchTest, PeersAreFetchedWhileSomebodyLooks) {
  FakePeer good({.answer = Ok(kOverview)}), bad({.answer = Ok("<html>")});
  Peers::Options options;
  for (const std::string& url : {good.Url(), bad.Url(), std::string("http://127.0.0.1:1")}) {
    options.peers.push_back(*ParsePeer(url));
  }
  options.interval = absl::Milliseconds(20);
  options.look = absl::Milliseconds(200);
  const auto peers = Peers::Start(options);
  ASSERT_TRUE(peers.ok()) << peers.status();
  EXPECT_THAT((*peers)->Document(),
              HasSubstr(absl::StrCat("{\"url\":\"", good.Url(),
                                     "\",\"state\":\"unknown\",\"overview\":null}")));
  EXPECT_THAT(
      AwaitDocument(**peers, "\"tenants\":7"),
      HasSubstr(absl::StrCat("{\"url\":\"", good.Url(), "\",\"state\":\"ok\",\"seen_ms\":")));
  EXPECT_THAT(AwaitDocument(**peers, "its answer is no JSON object"), HasSubstr("\"failed\""));
  EXPECT_THAT(AwaitDocument(**peers, "no connection ("), HasSubstr("\"failed\""));
  // The last overview stays.
  good.SetAnswer("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(AwaitDocument(**peers, "HTTP 500"), HasSubstr("\"tenants\":7"));
  good.SetAnswer(Ok("{\"daemon\":\"ok\",\"tenants\":8}"));
  EXPECT_THAT(AwaitDocument(**peers, "\"tenants\":8"), HasSubstr("\"state\":\"ok\""));
}

TEST_F(FetchTest, TooManyPeers) {
  Peers::Options options;
  options.peers.resize(Peers::kMost);
  EXPECT_TRUE(Peers::Start(options).ok());
  options.peers.emplace_back();
  EXPECT_TRUE(absl::IsInvalidArgument(Peers::Start(options).status()));
}

}  // namespace
}  // namespace gpumem::web
