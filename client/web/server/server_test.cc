// SPDX-License-Identifier: Apache-2.0
// What the server answers.
#include "client/web/server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/web/server/testing/server_fixture.h"

namespace gpumem::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string KeyOf(const std::string& answer) {
  const std::string body = BodyOf(answer);
  EXPECT_THAT(body, StartsWith("{\"key\":\""));
  return body.substr(8, 43);
}

TEST_F(ServerTest, ThePage) {
  Serve();
  RawClient client = Unix();
  const std::string page = client.Get("/");
  EXPECT_THAT(
      page,
      AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
            HasSubstr("\r\nContent-Type: text/html; charset=utf-8\r\n"),
            HasSubstr("\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; "
                      "style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
                      "form-action 'none'; frame-ancestors 'none'\r\n"),
            HasSubstr("\r\nX-Content-Type-Options: nosniff\r\n"),
            HasSubstr("\r\nReferrer-Policy: no-referrer\r\n"),
            HasSubstr("\r\nX-Frame-Options: DENY\r\n"),
            HasSubstr("\r\nCross-Origin-Resource-Policy: same-origin\r\n"),
            HasSubstr("\r\nCross-Origin-Opener-Policy: same-origin\r\n"),
            HasSubstr("\r\nCache-Control: no-cache\r\n"), Not(HasSubstr("Access-Control")),
            HasSubstr("<!doctype html>")));
  // The same connection goes on.
  const std::string packed = client.Get("/app.js", "Accept-Encoding: br, gzip;q=0.5\r\n");
  EXPECT_THAT(packed, AllOf(HasSubstr("\r\nContent-Encoding: gzip\r\n"), HasSubstr("javascript"),
                            HasSubstr("\r\nVary: Accept-Encoding\r\n")));
  EXPECT_THAT(BodyOf(packed), StartsWith("\x1f\x8b"));
  EXPECT_THAT(client.Get("/app.css", "Accept-Encoding: gzip;q=0\r\n"),
              Not(HasSubstr("Content-Encoding")));
  const size_t at = page.find("ETag: ") + 6;
  const std::string etag = page.substr(at, page.find('\r', at) - at);
  EXPECT_THAT(client.Get("/", absl::StrCat("If-None-Match: ", etag, "\r\n")),
              AllOf(StartsWith("HTTP/1.1 304 "), Not(HasSubstr("html>"))));
  EXPECT_THAT(client.Get("/icon.svg"), HasSubstr("image/svg+xml"));
  // Also without a login: there is no data in it.
  EXPECT_THAT(Tcp().Get("/app.js"), StartsWith("HTTP/1.1 200"));
}

TEST_F(ServerTest, Data) {
  Serve();
  RawClient client = Unix();
  const std::string me = client.Get("/api/v1/me");
  EXPECT_THAT(me, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                        HasSubstr("\r\nContent-Type: application/json\r\n"),
                        HasSubstr("\r\nCache-Control: no-store\r\n"), HasSubstr("\"sees\":\"all\""),
                        HasSubstr(absl::StrCat("\"uid\":", getuid())),
                        HasSubstr("\"node\":\"node1\""), HasSubstr("\"version\":\"")));
  EXPECT_EQ(BodyOf(client.Get("/api/v1/snapshot")),
            absl::StrCat("{\"uid\":", getuid(), ",\"all\":true}"));
  EXPECT_EQ(BodyOf(client.Get("/api/v1/history?device=G&tenant=a&tenant=b%20c")),
            "{\"device\":\"G\",\"tenants\":\"a|b c\"}");
  EXPECT_THAT(client.Get("/api/v1/history?tenant=%ff"), StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(BodyOf(client.Get("/api/v1/overview")), "{\"daemon\":\"ok\"}");
  EXPECT_EQ(BodyOf(client.Get("/api/v1/peers")), "[]");
  feed_.Fail(absl::UnavailableError("no daemon \xff"));
  EXPECT_THAT(client.Get("/api/v1/snapshot"),
              AllOf(StartsWith("HTTP/1.1 503 Service Unavailable\r\n"),
                    HasSubstr("{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"no daemon ")));
  feed_.Fail(absl::PermissionDeniedError("not admitted"));
  EXPECT_THAT(client.Get("/api/v1/snapshot"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(ServerTest, HeadHasNoBody) {
  Serve();
  RawClient client = Unix();
  client.Say("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.HearUpTo("\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: ")));
  client.Say("HEAD /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.HearAll(), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("event-stream")));
  EXPECT_EQ(feed_.readers(), 0U);
}

TEST_F(ServerTest, Refusals) {
  Serve({.hosts = {"gpu.example"}});
  RawClient client = Unix();
  EXPECT_THAT(client.Get("/%2e%2e/etc/passwd"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(client.Get("/../etc/passwd"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(client.Get("http://localhost/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(client.Post("/api/v1/snapshot", ""),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")));
  EXPECT_THAT(client.Get("/api/v1/links"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: POST\r\n")));
  client.Say("OPTIONS /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.HearAnswer(), AllOf(StartsWith("HTTP/1.1 405 "), Not(HasSubstr("Access-"))));
  EXPECT_THAT(client.Get("/", "Origin: http://evil.example\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(client.Get("/app.js", "Sec-Fetch-Site: cross-site\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(client.Get("/", "Host: localhost\r\n"), StartsWith("HTTP/1.1 421 ")) << "two hosts";
  const auto with_host = [&](const char* host) {
    client.Say(absl::StrCat("GET /api/v1/me HTTP/1.1\r\n", host, "\r\n"));
    return client.HearAnswer();
  };
  EXPECT_THAT(with_host("Host: evil.example\r\n"), StartsWith("HTTP/1.1 421 "));
  EXPECT_THAT(with_host("Host: gpu.example:443\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(with_host(""), StartsWith("HTTP/1.1 421 "));
}

TEST_F(ServerTest, Logins) {
  Serve();
  RawClient tcp = Tcp();
  EXPECT_THAT(tcp.Get("/api/v1/me"), AllOf(StartsWith("HTTP/1.1 401 Unauthorized\r\n"),
                                           HasSubstr("\r\nWWW-Authenticate: Bearer\r\n"),
                                           HasSubstr("{\"error\":{\"code\":\"UNAUTHENTICATED\"")));
  EXPECT_THAT(tcp.Post("/api/v1/links", ""), StartsWith("HTTP/1.1 401 "));
  const std::string link = BodyOf(Unix().Post("/api/v1/links", ""));
  const std::string begin =
      absl::StrCat("{\"expires_s\":60,\"link\":\"http://127.0.0.1:", port_, "/#login=");
  EXPECT_THAT(link, StartsWith(begin));
  const std::string token = link.substr(begin.size(), 43);
  const std::string login = absl::StrCat("{\"token\":\"", token, "\"}");
  for (const char* wrong : {"", "{", "[]", "\"\"", "{\"token\":1}", "{\"token\":null}", "\xff"}) {
    EXPECT_THAT(tcp.Post("/api/v1/login", wrong), StartsWith("HTTP/1.1 400 ")) << wrong;
  }
  EXPECT_THAT(tcp.Post("/api/v1/login", "{\"token\":\"x\"}"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(Unix().Post("/api/v1/login", login), StartsWith("HTTP/1.1 409 "));
  const std::string key = KeyOf(tcp.Post("/api/v1/login", login));
  EXPECT_THAT(tcp.Post("/api/v1/login", login), StartsWith("HTTP/1.1 401 ")) << "used twice";
  const std::string bearer = absl::StrCat("Authorization: Bearer ", key, "\r\n");
  EXPECT_THAT(tcp.Get("/api/v1/me", bearer),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr(absl::StrCat("\"uid\":", getuid()))));
  EXPECT_THAT(tcp.Get("/api/v1/me"), StartsWith("HTTP/1.1 401 ")) << "the key is for a request";
  EXPECT_THAT(tcp.Get("/api/v1/me", absl::StrCat("Authorization: Basic ", key, "\r\n")),
              StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(tcp.Get("/api/v1/me", absl::StrCat(bearer, bearer)), StartsWith("HTTP/1.1 401 "));
  // A key makes no links.
  tcp.Say(absl::StrCat("POST /api/v1/links HTTP/1.1\r\nHost: localhost\r\n", bearer, "\r\n"));
  EXPECT_THAT(tcp.HearAnswer(), StartsWith("HTTP/1.1 403 "));
  Advance(absl::Hours(12));
  EXPECT_THAT(tcp.Get("/api/v1/me", bearer), StartsWith("HTTP/1.1 401 "));
}

TEST(ServerOptionsTest, LoginsUseAClockThatCannotBeSet) {
  timespec before = {}, after = {};
  clock_gettime(CLOCK_BOOTTIME, &before);
  const absl::Time now = Server::Options().now();
  clock_gettime(CLOCK_BOOTTIME, &after);
  EXPECT_LE(absl::TimeFromTimespec(before), now);
  EXPECT_LE(now, absl::TimeFromTimespec(after));
}

TEST_F(ServerTest, LinksNeedAPortAndAreFew) {
  Serve();
  RawClient client = Unix();
  for (int i = 0; i < 8; ++i) {
    EXPECT_THAT(client.Post("/api/v1/links", ""), StartsWith("HTTP/1.1 200 "));
  }
  EXPECT_THAT(client.Post("/api/v1/links", ""), StartsWith("HTTP/1.1 429 "));
  EXPECT_TRUE(absl::IsResourceExhausted(server_->OwnLink().status()));
  server_.reset();
  Serve({}, /*tcp=*/false);
  EXPECT_THAT(Unix().Post("/api/v1/links", ""), StartsWith("HTTP/1.1 409 "));
  EXPECT_TRUE(absl::IsFailedPrecondition(server_->OwnLink().status()));
}

TEST_F(ServerTest, Streams) {
  Limits limits;
  limits.heartbeat = absl::Milliseconds(50);
  Serve({.limits = limits});
  RawClient client = Unix();
  const std::string head = client.Get("/api/v1/stream");
  EXPECT_THAT(head, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                          HasSubstr("\r\nContent-Type: text/event-stream\r\n"),
                          HasSubstr("\r\nX-Accel-Buffering: no\r\n")));
  EXPECT_EQ(client.HearUpTo("}\n\n"),
            absl::StrCat("event: snapshot\ndata: {\"uid\":", getuid(), "}\n\n"));
  feed_.Broadcast("event: tick\ndata: {}\n\n");
  EXPECT_THAT(client.HearUpTo("}\n\n"), HasSubstr("event: tick\ndata: {}\n\n"));
  EXPECT_EQ(client.HearUpTo(":\n\n"), ":\n\n");  // a comment
  feed_.WaitForReaders(1);
  client = Unix();
  feed_.WaitForReaders(0);  // it was closed
}

TEST_F(ServerTest, AStreamEndsWithItsKey) {
  Limits limits;
  limits.heartbeat = absl::Milliseconds(20);
  Serve({.limits = limits});
  const auto link = server_->OwnLink();
  ASSERT_TRUE(link.ok()) << link.status();
  RawClient tcp = Tcp();
  const std::string key = KeyOf(tcp.Post(
      "/api/v1/login", absl::StrCat("{\"token\":\"", link->substr(link->find('=') + 1), "\"}")));
  EXPECT_THAT(tcp.Get("/api/v1/stream", absl::StrCat("Authorization: Bearer ", key, "\r\n")),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(tcp.HearUpTo("\n\n:\n\n"), HasSubstr("snapshot"));
  EXPECT_TRUE(tcp.IsOpen());
  Advance(absl::Hours(12));
  EXPECT_TRUE(tcp.IsClosed());
}

TEST_F(ServerTest, EndsWithStreamsAndRequestsInProgress) {
  Serve();
  RawClient stream = Unix(), waiting = Unix();
  stream.Get("/api/v1/stream");
  feed_.Hold(true);
  waiting.Say("GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(Unix().Get("/"), StartsWith("HTTP/1.1 200 ")) << "a call holds up no other request";
  feed_.Hold(false);
  server_.reset();
  EXPECT_TRUE(stream.IsClosed());
  EXPECT_TRUE(waiting.IsClosed());
  struct stat info;
  EXPECT_NE(stat(Path().c_str(), &info), 0) << "the socket's file is removed";
}

// A hung daemon blocks its calls, but not the page.
TEST_F(ServerTest, MeDoesNotWaitForTheDaemon) {
  Serve();
  feed_.Hold(true);
  std::vector<std::unique_ptr<RawClient>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(std::make_unique<RawClient>(Path()));
    waiting.back()->Say("GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  EXPECT_THAT(Unix().Get("/api/v1/me"), StartsWith("HTTP/1.1 200 "));
  feed_.Hold(false);
  for (const auto& client : waiting) {
    EXPECT_THAT(client->HearAnswer(), StartsWith("HTTP/1.1 200 "));
  }
}

TEST_F(ServerTest, IdleWithoutConnectionsAndLogins) {
  absl::Notification idle;
  Serve({.idle = absl::Milliseconds(20), .on_idle = [&] { idle.Notify(); }});
  {
    RawClient client = Unix();
    EXPECT_THAT(client.Get("/"), StartsWith("HTTP/1.1 200 "));
  }
  EXPECT_TRUE(idle.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

}  // namespace
}  // namespace gpumem::web
