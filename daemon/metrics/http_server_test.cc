// SPDX-License-Identifier: Apache-2.0
// The server, with regular scrapers and hostile peers.
#include "daemon/metrics/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/descriptors_left.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/gpumem-test-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Serve(HttpServerOptions options = {}) {
    auto listener = gpumem::ListenUnix(Path(), SOCK_STREAM, 0600);
    ASSERT_TRUE(listener.ok()) << listener.status();
    if (options.page == nullptr) {
      options.page = [this] { return absl::StrCat("page ", ++pages_, "\n"); };
    }
    auto server = HttpServer::Start(*std::move(listener), std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Path() const { return dir_ + "/http"; }

  UniqueFd Connect() {
    auto socket = gpumem::ConnectUnix(Path(), SOCK_STREAM);
    EXPECT_TRUE(socket.ok()) << socket.status();
    // A test that waits in vain fails, and does not hang.
    const timeval patience{.tv_sec = 20};
    setsockopt(socket->get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    return *std::move(socket);
  }
  static void Say(const UniqueFd& socket, const std::string& words) {
    EXPECT_EQ(send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
  }
  // Returns all data until the other end closes.
  static std::string HearAll(const UniqueFd& socket) {
    std::string heard;
    char buffer[4096];
    ssize_t got = 0;
    while ((got = recv(socket.get(), buffer, sizeof(buffer), 0)) > 0) {
      heard.append(buffer, static_cast<size_t>(got));
    }
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "it was not closed";
    return heard;
  }
  // What comes up to these words.
  static std::string HearUpTo(const UniqueFd& socket, absl::string_view words) {
    std::string heard;
    char byte = 0;
    while (!EndsWithWords(heard, words) && recv(socket.get(), &byte, 1, 0) == 1) heard += byte;
    return heard;
  }
  static bool EndsWithWords(const std::string& text, absl::string_view words) {
    return text.size() >= words.size() && text.substr(text.size() - words.size()) == words;
  }
  std::string Ask(const std::string& request) {
    const UniqueFd socket = Connect();
    Say(socket, request);
    return HearAll(socket);
  }
  std::string Get(const std::string& target) {
    return Ask(absl::StrCat("GET ", target, " HTTP/1.0\r\n\r\n"));
  }

  std::string dir_;
  std::atomic<int> pages_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ServesItsPageAndNothingElse) {
  Serve();
  EXPECT_THAT(Get("/metrics"),
              AllOf(StartsWith("HTTP/1.0 200 OK\r\n"),
                    HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                    HasSubstr("Content-Length: 7\r\n"), EndsWith("\r\n\r\npage 1\n")));
  EXPECT_THAT(Get("/metrics?name[]=x"), HasSubstr("200 OK"));
  for (const char* other : {"/", "/metrics/", "/metric", "/../metrics", "*", "//"}) {
    EXPECT_THAT(Get(other), AllOf(HasSubstr("404 Not Found"), HasSubstr("there is only /metrics")));
  }
}

TEST_F(HttpServerTest, HeadGetsTheHeadersWithoutThePage) {
  Serve();
  EXPECT_THAT(Ask("HEAD /metrics HTTP/1.0\r\n\r\n"),
              AllOf(HasSubstr("200 OK"), HasSubstr("Content-Length: 7\r\n"), EndsWith("\r\n\r\n")));
}

TEST_F(HttpServerTest, OtherMethodsAreRefused) {
  Serve();
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "CONNECT"}) {
    EXPECT_THAT(Ask(absl::StrCat(method, " /metrics HTTP/1.0\r\n\r\n")),
                AllOf(HasSubstr("405 Method Not Allowed"), HasSubstr("Allow: GET, HEAD")))
        << method;
  }
  EXPECT_EQ(pages_, 0);
}

TEST_F(HttpServerTest, AConnectionServesManyRequestsAlsoWhereTheyComeAtOnce) {
  Serve();
  const UniqueFd socket = Connect();
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  for (int i = 0; i < 3; ++i) {
    Say(socket, request);
    EXPECT_THAT(HearUpTo(socket, "page 1\n"), HasSubstr("200 OK"));
  }
  Say(socket, absl::StrCat(request, request,
                           "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  HearUpTo(socket, "page 1\n");
  HearUpTo(socket, "page 1\n");
  EXPECT_THAT(HearAll(socket), HasSubstr("Connection: close"));
}

TEST_F(HttpServerTest, APageIsKeptForAMoment) {
  Serve({.page_holds = absl::InfiniteDuration()});
  EXPECT_THAT(Get("/metrics"), EndsWith("page 1\n"));
  EXPECT_THAT(Get("/metrics"), EndsWith("page 1\n"));
}

TEST_F(HttpServerTest, APageIsMadeAnewOnceItIsOld) {
  Serve({.page_holds = absl::ZeroDuration()});
  EXPECT_THAT(Get("/metrics"), EndsWith("page 1\n"));
  EXPECT_THAT(Get("/metrics"), EndsWith("page 2\n"));
}

TEST_F(HttpServerTest, ARequestThatIsNotHttpIsCutOff) {
  Serve();
  const std::string endless(64 * 1024, 'x');
  for (const std::string& nonsense :
       {std::string("hello\r\n\r\n"), std::string("\x16\x03\x01\x02\x00\x01", 6) + "\r\n\r\n",
        std::string("GET\r\n\r\n"), "GET /" + endless, "GET / HTTP/1.1\r\nX: " + endless,
        std::string("GET / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n")}) {
    const UniqueFd socket = Connect();
    send(socket.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    HearAll(socket);
  }
  EXPECT_THAT(Get("/metrics"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, AConnectionWithoutARequestIsClosed) {
  Serve({.patience = absl::Milliseconds(50), .keep_alive = absl::Milliseconds(50)});
  const UniqueFd silent = Connect();
  EXPECT_EQ(HearAll(silent), "");
  const UniqueFd slow = Connect();
  Say(slow, "GET /metr");
  EXPECT_EQ(HearAll(slow), "");
  const UniqueFd idle = Connect();
  Say(idle, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(HearAll(idle), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, AConnectionThatDoesNotReadTheAnswerIsClosed) {
  Serve({.page = [] { return std::string(8 << 20, 'x'); }, .patience = absl::Milliseconds(50)});
  const UniqueFd deaf = Connect();
  Say(deaf, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  pollfd closed{.fd = deaf.get(), .events = POLLRDHUP};
  ASSERT_EQ(poll(&closed, 1, 20'000), 1) << "it waits for ever";
  EXPECT_LT(HearAll(deaf).size(), size_t{8} << 20);
}

TEST_F(HttpServerTest, IdleConnectionsDoNotKeepNewOnesOut) {
  Serve({.max_connections = 4, .patience = absl::Hours(1)});
  std::vector<UniqueFd> held;
  for (int i = 0; i < 20; ++i) held.push_back(Connect());
  EXPECT_THAT(Get("/metrics"), HasSubstr("200 OK"));
  EXPECT_EQ(HearAll(held.front()), "") << "the one that was quiet for longest had to go";

  // One that asks is not the quiet one.
  const UniqueFd asks = Connect();
  for (int i = 0; i < 3; ++i) {
    Say(asks, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(HearUpTo(asks, "\n\r\npage"), HasSubstr("200 OK"));
    HearUpTo(asks, "\n");
    held.push_back(Connect());
    held.push_back(Connect());
  }
}

TEST_F(HttpServerTest, WithoutDescriptorsItGoesOnOnceThereAreSome) {
  Serve({.patience = absl::Hours(1)});
  UniqueFd first = Connect();
  Say(first, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  HearUpTo(first, "page 1\n");
  const UniqueFd second = Connect();
  Say(second, "GET /metrics HTTP/1.0\r\n\r\n");
  HearAll(second);

  const UniqueFd waits(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::optional<gpumem::testing::DescriptorsLeft> none(std::in_place, 0);
  sockaddr_un address = {.sun_family = AF_UNIX};
  Path().copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int connected =
      connect(waits.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  Say(waits, "GET /metrics HTTP/1.0\r\n\r\n");
  // It cannot be let in: the one that was quiet for longest goes, to make room.
  EXPECT_EQ(HearAll(first), "");
  none.reset();
  ASSERT_EQ(connected, 0);
  EXPECT_THAT(HearAll(waits), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, ItEndsWithConnectionsOpen) {
  Serve();
  const UniqueFd silent = Connect();
  const UniqueFd idle = Connect();
  Say(idle, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  HearUpTo(idle, "page 1\n");
  server_.reset();
  EXPECT_EQ(HearAll(silent), "");
  EXPECT_EQ(HearAll(idle), "");
  EXPECT_EQ(gpumem::ConnectUnix(Path(), SOCK_STREAM).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(HttpServerTest, ServesOverTcp) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener.get(), generic, length), 0);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  ASSERT_EQ(getsockname(listener.get(), generic, &length), 0);
  auto server = HttpServer::Start(std::move(listener), {.page = [] { return "over TCP\n"; }});
  ASSERT_TRUE(server.ok()) << server.status();
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(client.get(), generic, length), 0);
  Say(client, "GET /metrics HTTP/1.0\r\n\r\n");
  EXPECT_THAT(HearAll(client), EndsWith("over TCP\n"));
}

}  // namespace
}  // namespace gpumemd
